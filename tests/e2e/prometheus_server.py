"""A real Prometheus on loopback, in directories of its own, that scrapes one address, every second unless told."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.daemon import Daemon
from tests.sources.loopback import free_port
from tests.tools import require_tool

_CONFIG = """
global: {{scrape_interval: {seconds:g}s, scrape_timeout: {timeout}, evaluation_interval: {seconds:g}s}}
scrape_configs:
  - job_name: ufwatch
    static_configs: [{{targets: ['{target}']}}]
"""
_ALERTING = """
alerting:
  alertmanagers:
    - static_configs: [{{targets: ['{alertmanager}']}}]
"""


class Prometheus(Daemon):
    """Started at once; ``work`` takes its configuration, its data and its log.

    ``rules`` are rule files that it evaluates, as often as it scrapes; their alerts go to ``alertmanager``, a URL.
    """

    def __init__(
        self, work: Path, target: str, rules: Sequence[Path] = (), *, alertmanager: str = "", seconds: float = 1
    ) -> None:
        program = require_tool("prometheus")
        timeout = "900ms" if seconds <= 1 else f"{min(10, seconds):g}s"
        config = (
            _CONFIG.format(target=target, seconds=seconds, timeout=timeout)
            + f"rule_files: {[str(path) for path in rules]}\n"
        )
        if alertmanager:
            config += _ALERTING.format(alertmanager=alertmanager.removeprefix("http://"))
        (work / "prometheus.yml").write_text(config, encoding="utf-8")
        url = f"http://127.0.0.1:{free_port()}"
        command = [
            program,
            f"--config.file={work / 'prometheus.yml'}",
            f"--storage.tsdb.path={work / 'tsdb'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            f"--web.external-url={url}",
            "--rules.alert.resend-delay=1s",
            "--log.level=warn",
        ]
        super().__init__(url, command, work / "prometheus.log")

    def api(self, path: str, **parameters: str) -> Any:
        """The ``data`` of an answer of the HTTP API."""
        query = urllib.parse.urlencode({key.replace("match", "match[]"): value for key, value in parameters.items()})
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            document = json.load(answer)
        assert document["status"] == "success"
        assert not document.get("warnings")
        return document["data"]

    def raw(self, selector: str, window: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels and the stored (time, value) pairs of each series of a selector."""
        found = self.api("query", query=f"{selector}[{window}]")["result"]
        return [(one["metric"], [(when, float(value)) for when, value in one["values"]]) for one in found]

    def now(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        found = self.api("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def samples(self, selector: str, window: str = "5m") -> list[list[tuple[float, float]]]:
        """The stored (time, value) pairs of each series of a selector."""
        return [pairs for _, pairs in self.raw(selector, window)]

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
