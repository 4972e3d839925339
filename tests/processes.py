"""Real ``ufwatch`` processes on loopback: started on a free port, watched through their log, ended by signals."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

COMMAND = (sys.executable, "-W", "error", "-m", "ufwatch")
WITHOUT_UVLOOP = (
    *(sys.executable, "-W", "error", "-c"),
    "import sys; sys.modules['uvloop'] = None; from ufwatch.cli.main import main; sys.exit(main())",
)
_QUIET = ("Traceback", "Exception ignored", "Warning:")
"""What a process never writes, whatever happens to it."""


def until(holds: Callable[[], T], seconds: float = 15.0) -> T:
    """What ``holds`` returns, once that is true; AssertionError when it is not in time."""
    end = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        assert time.monotonic() < end, f"{holds} did not hold within {seconds:g} s"
        time.sleep(0.02)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would configure the agent, and with ``more``."""
    foreign = ("UFWATCH_", "PYTHON")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and not k.lower().endswith("_proxy")}
    return {**kept, "COLUMNS": "200", **(more or {})}


def finished(
    *arguments: str, env: Mapping[str, str] | None = None, stdin: int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[str]:
    """A verb run to its end, quietly."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(env),
        stdin=stdin,
        check=False,
    )
    assert not [word for word in _QUIET if word in done.stderr], done.stderr
    return done


def one_line(text: str) -> str:
    """The only line of ``text``, which has its line feed."""
    assert text.endswith("\n"), text
    assert text.count("\n") == 1, text
    return text[:-1]


class Running:
    """``ufwatch run …``, or another ``command``, whose output goes to one file. Killed at the end if still alive."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = (*COMMAND, "run"),
        cwd: Path | None = None,
        host: str | None = None,
        port: int = 0,
    ) -> None:
        where = ["--port", str(port), *(["--host", host] if host is not None else [])]
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, *arguments, *where],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._out,
            env=environment(env),
            cwd=cwd,
        )
        self._address: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._out.close()

    def log(self) -> str:
        """Everything written so far."""
        return os.pread(self._out.fileno(), 1 << 24, 0).decode()

    def lines(self, *parts: str) -> list[str]:
        """The lines that hold all of ``parts``."""
        return [line for line in self.log().splitlines() if all(part in line for part in parts)]

    def logged(self, *parts: str, times: int = 1) -> list[str]:
        """The lines that hold all of ``parts``, once there are so many."""
        return until(lambda: found if len(found := self.lines(*parts)) >= times else [])

    @property
    def address(self) -> str:
        """Where it serves; waits until it does."""
        if self._address is None:
            self._address = until(self._announced)
        return self._address

    def serves_at(self, address: str) -> None:
        """Waits until it answers at an address that its log does not tell."""

        def answers() -> bool:
            assert self.process.poll() is None, self.log()
            try:
                return self.get("/-/healthy")[0] == 200
            except urllib.error.URLError:
                return False

        self._address = address
        until(answers)

    def _announced(self) -> str:
        assert self.process.poll() is None, self.log()
        found = re.search(r'"?address"?[=:] ?"?(https?://[^\s"]+)', self.log())
        return found[1] if found is not None else ""

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def get(self, path: str = "/metrics", **headers: str) -> tuple[int, str]:
        """Status and body."""
        request = urllib.request.Request(self.address + path, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def page(self) -> str:
        status, text = self.get()
        assert status == 200
        return text

    def value(self, series: str) -> float | None:
        """The value of a series as it is written on the page; None when it is not there."""
        found = [line for line in self.page().splitlines() if line.startswith(series + " ")]
        return float(found[0].rpartition(" ")[2]) if found else None

    def shows(self, series: str, value: float | None = 1.0) -> None:
        """Waits until the page shows this value, or does not show the series where it is None."""
        until(lambda: self.value(series) == value)

    def end(self, *signals: int, within: float = 2.0) -> None:
        """Ended by these signals, in time, with 0 and not one word of complaint."""
        for number in signals or (signal.SIGTERM,):
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
        begun = time.monotonic()
        code = self.process.wait(30)
        took = time.monotonic() - begun
        log = self.log()
        assert code == 0, log
        assert took < within, f"{took:.2f} s\n{log}"
        assert not [word for word in _QUIET if word in log], log


def series(page: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Every series of a page of ours: its name and its labels."""
    found = set()
    for line in page.splitlines():
        if line.startswith("#"):
            continue
        name, _, rest = line.rpartition(" ")[0].partition("{")
        pairs: list[Any] = re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', rest)
        found.add((name, frozenset((key, _plain(value)) for key, value in pairs)))
    return found


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value)
