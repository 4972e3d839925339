"""A real Alertmanager on loopback, alone (no gossip), in a directory of its own; and a webhook that keeps its pages."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.e2e.daemon import Daemon
from tests.sources.loopback import free_port
from tests.tools import require_tool


class Alertmanager(Daemon):
    """Started at once with this configuration."""

    def __init__(self, work: Path, config: str) -> None:
        program = require_tool("prometheus-alertmanager")
        (work / "alertmanager.yml").write_text(config, encoding="utf-8")
        url = f"http://127.0.0.1:{free_port()}"
        command = [
            program,
            f"--config.file={work / 'alertmanager.yml'}",
            f"--storage.path={work / 'alertmanager'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            f"--web.external-url={url}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
        super().__init__(url, command, work / "alertmanager.log")

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
    """Keeps every notification with the time it came and the path it was sent to. ``port`` 0 is any free one."""

    def __init__(self, port: int = 0) -> None:
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

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
