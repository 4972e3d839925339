"""What the tests of the exporters share: the agent's own reader, and a clock in the test's hand."""

from __future__ import annotations

import threading
from pathlib import Path

from ufwatch_torch.textfile import Exporter

from ufwatch.decode.textfile_format import TextFile, parse_file


class Steps:
    """Stands for clock and pause: the writer's thread waits until the test lets it take its next turn."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._turn = threading.Semaphore(0)
        self._idle = threading.Semaphore(0)
        self._end = False

    def wait(self, seconds: float) -> bool:
        assert seconds == 1.0
        self._idle.release()
        self._turn.acquire()
        self.now += seconds
        return self._end

    def settle(self) -> None:
        """Returns when the thread has ended its turn."""
        assert self._idle.acquire(timeout=10)

    def turn(self) -> None:
        self._turn.release()
        self.settle()

    def end(self) -> None:
        self._end = True
        self._turn.release()


def read(path: str | Path) -> TextFile:
    found = parse_file(Path(path).read_bytes())
    assert isinstance(found, TextFile), found
    assert found.refused == 0
    return found


def values(path: str | Path) -> dict[str, float]:
    """``name{labels}`` → value, of what the agent takes."""
    return {
        key.metric + (str(dict(key.labels)) if key.labels else ""): value for key, value in read(path).values.items()
    }


def comments(path: str | Path) -> list[str]:
    """The lines that say what is absent."""
    return [line for line in Path(path).read_text().splitlines() if line.startswith("# absent")]


def write(exporter: Exporter) -> None:
    exporter._turn(last=True)
