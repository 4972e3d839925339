"""A real server program on loopback, for as long as a test needs it."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.processes import until


class Daemon:
    """Started at once with this command, whose output goes into ``log``; entering waits until it is ready."""

    def __init__(self, url: str, command: Sequence[str], log: Path) -> None:
        self.url = url
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

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
