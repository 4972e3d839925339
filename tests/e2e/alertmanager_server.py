"""A real Alertmanager on loopback, alone (no gossip), in a directory of its own; and a webhook that keeps its pages."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.processes import until
from tests.sources.loopback import free_port
from tests.tools import require_tool


class Alertmanager:
    """Started at once with this configuration."""

    def __init__(self, work: Path, config: str) -> None:
        program = require_tool("prometheus-alertmanager")
        (work / "alertmanager.yml").write_text(config, encoding="utf-8")
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = work / "alertmanager.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={work / 'alertmanager.yml'}",
                    f"--storage.path={work / 'alertmanager'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                    f"--web.external-url={self.url}",
                    "--cluster.listen-address=",
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

    def post(self, *alerts: dict[str, str]) -> None:
        """Adds alerts by their labels."""
        body = json.dumps([{"labels": labels} for labels in alerts]).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/v2/alerts", data=body, headers=headers)
        urllib.request.urlopen(request, timeout=10).close()

    def states(self) -> list[tuple[dict[str, str], str]]:
        """Labels and state (``active``, ``suppressed``, ``unprocessed``) of every alert."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=10) as answer:
            return [(one["labels"], one["status"]["state"]) for one in json.load(answer)]


class Webhook:
    """Keeps every notification with the time it came and the path it was sent to."""

    def __init__(self) -> None:
        self.got: list[tuple[float, str, dict[str, Any]]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got.append((time.time(), self.path, json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
