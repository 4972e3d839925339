"""A real Prometheus on loopback, in directories of its own, that scrapes one address, every second unless told."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.processes import until
from tests.sources.loopback import free_port
from tests.tools import require_tool

_CONFIG = """
global: {{scrape_interval: {seconds:g}s, scrape_timeout: 900ms, evaluation_interval: {seconds:g}s}}
scrape_configs:
  - job_name: ufwatch
    static_configs: [{{targets: ['{target}']}}]
"""
_ALERTING = """
alerting:
  alertmanagers:
    - static_configs: [{{targets: ['{alertmanager}']}}]
"""


class Prometheus:
    """Started at once; ``work`` takes its configuration, its data and its log.

    ``rules`` are rule files that it evaluates, as often as it scrapes; their alerts go to ``alertmanager``, a URL.
    """

    def __init__(
        self, work: Path, target: str, rules: Sequence[Path] = (), *, alertmanager: str = "", seconds: float = 1
    ) -> None:
        program = require_tool("prometheus")
        config = _CONFIG.format(target=target, seconds=seconds) + f"rule_files: {[str(path) for path in rules]}\n"
        if alertmanager:
            config += _ALERTING.format(alertmanager=alertmanager.removeprefix("http://"))
        (work / "prometheus.yml").write_text(config, encoding="utf-8")
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = work / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={work / 'prometheus.yml'}",
                    f"--storage.tsdb.path={work / 'tsdb'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                    f"--web.external-url={self.url}",
                    "--rules.alert.resend-delay=1s",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        until(self._ready, 30)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._process.wait()

    def _ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def api(self, path: str, **parameters: str) -> Any:
        """The ``data`` of an answer of the HTTP API."""
        query = urllib.parse.urlencode({key.replace("match", "match[]"): value for key, value in parameters.items()})
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            document = json.load(answer)
        assert document["status"] == "success"
        assert not document.get("warnings")
        return document["data"]

    def now(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        found = self.api("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def samples(self, selector: str, window: str = "5m") -> list[list[tuple[float, float]]]:
        """The stored (time, value) pairs of each series of a selector."""
        found = self.api("query", query=f"{selector}[{window}]")["result"]
        return [[(when, float(value)) for when, value in one["values"]] for one in found]

    def at(self, expression: str, times: list[float]) -> dict[float, dict[frozenset[tuple[str, str]], float]]:
        """By time, each series' value there; name, job and instance are left out of its labels."""
        answers = {}
        for when in times:
            found = self.api("query", query=expression, time=repr(when))["result"]
            answers[when] = {
                frozenset((k, v) for k, v in one["metric"].items() if k not in ("__name__", "job", "instance")): float(
                    one["value"][1]
                )
                for one in found
            }
        return answers
