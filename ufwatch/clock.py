"""Time as an argument: the only module that reads a clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds for every duration and age; wall seconds only for display, export and file heartbeats."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


@dataclass(slots=True)
class ManualClock:
    """A clock that moves only when told to; shipped, because replay and every test of an age need one."""

    now: float = 1000.0
    wall_offset: float = 1_700_000_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.wall_offset

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward."""
        if seconds < 0:
            raise ValueError("monotonic time does not run backwards")
        self.now += seconds
