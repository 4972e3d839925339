"""What was compared, and how a scenario is described."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.load import Load
from tests.e2e.server import Server
from tests.e2e.watch import Look

CLOSE = 1e-9


@dataclass
class Checks:
    """What was compared in one scenario. ``figures`` are for the last line."""

    name: str
    failed: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def that(self, passed: bool, what: str, got: object, wanted: object) -> None:
        """Notes one comparison and prints it."""
        print(f"{'ok  ' if passed else 'FAIL'} {self.name}: {what}: {_text(got)} | {_text(wanted)}", flush=True)
        if not passed:
            self.failed.append(f"{self.name}: {what}")

    def equal(self, what: str, got: float | None, wanted: float) -> None:
        """Equal but for the rounding of sums of floats."""
        self.that(got is not None and math.isclose(got, wanted, rel_tol=CLOSE, abs_tol=CLOSE), what, got, wanted)

    def clean(self, what: str, look: Look) -> None:
        faults = list(look.faults())
        self.that(not faults, f"{what}: nothing negative, NaN, out of its bounds or absent unsaid", faults, [])


@dataclass(frozen=True)
class Scenario:
    name: str
    flags: Sequence[str]
    load: Load
    run: Callable[[Scenario, Server, Path, Checks], Awaitable[None]]
    ranks: int = 1
    plugin: bool = True
    evicts: bool = True


def _text(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)
