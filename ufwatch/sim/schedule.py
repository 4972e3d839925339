"""How long an engine step takes: the known law behind every interval between tokens.

Pure. A schedule is a value; the randomness is handed in, so that the same seed gives the same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol


class StepSchedule(Protocol):
    """A law of step times."""

    def draw(self, random: Random) -> float:
        """The duration of the next step in seconds, without the time its prefill takes."""
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """Every step takes the same time."""

    seconds: float

    def __post_init__(self) -> None:
        _positive(self.seconds)

    def draw(self, random: Random) -> float:  # noqa: ARG002
        return self.seconds


@dataclass(frozen=True, slots=True)
class Jittery:
    """Log-normal steps with this mean and this standard deviation, in seconds."""

    mean_seconds: float
    stddev_seconds: float

    def __post_init__(self) -> None:
        _positive(self.mean_seconds)
        _positive(self.stddev_seconds)

    def draw(self, random: Random) -> float:
        variance = math.log1p((self.stddev_seconds / self.mean_seconds) ** 2)
        return random.lognormvariate(math.log(self.mean_seconds) - variance / 2, math.sqrt(variance))


@dataclass(frozen=True, slots=True)
class WithStalls:
    """Another schedule, and in one step out of ``every`` on average a stall on top of it."""

    base: StepSchedule
    every: int
    stall_seconds: float

    def __post_init__(self) -> None:
        _positive(self.every)
        _positive(self.stall_seconds)

    def draw(self, random: Random) -> float:
        seconds = self.base.draw(random)
        return seconds + self.stall_seconds if random.random() * self.every < 1 else seconds


def _positive(value: float) -> None:
    if not value > 0:
        raise ValueError(f"a schedule needs positive values, not {value}")
