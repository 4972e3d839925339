"""A formula is data with two readers: :func:`evaluate` for the live agent, :func:`promql` for the recording rules.

Both must give the same number on a full window; ``tests/test_formula.py`` holds them against promtool on random series
with counter resets. They part only on *young* counters, where Prometheus extrapolates and we say ``warming_up``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from ufwatch.spec import PREFIX


class Window(Protocol):
    """What a formula reads: counters that never fall (resets are folded in), over ``seconds`` of real time."""

    @property
    def seconds(self) -> float:
        """Time between the window's first and last sample."""

    def increase(self, metric: str) -> float | None:
        """How much the counter grew over the window; None when it is not there at both ends."""

    def last(self, metric: str) -> float | None:
        """The newest value of a gauge or counter."""


@dataclass(frozen=True, slots=True)
class Last:
    """The newest value."""

    metric: str


@dataclass(frozen=True, slots=True)
class Rate:
    """Growth of a counter per second."""

    metric: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """``over / under``; nothing when ``under`` is not above zero, so an idle target has no ratio rather than NaN."""

    over: Formula
    under: Formula


@dataclass(frozen=True, slots=True)
class Minus:
    left: Formula
    right: Formula


@dataclass(frozen=True, slots=True)
class StdDev:
    """Standard deviation from counters of n, Σx and Σx²; the variance is clamped at 0 against rounding."""

    count: str
    total: str
    squared: str


@dataclass(frozen=True, slots=True)
class GeometricMean:
    """√(low · high), the best point between two bounds of a standard deviation."""

    low: Formula
    high: Formula


Formula = Last | Rate | Ratio | Minus | StdDev | GeometricMean


def evaluate(formula: Formula, window: Window) -> float | None:
    """The formula's value over the window, in the base unit of its metrics.

    None when anything it needs is absent, or when numbers of a broken page run over.
    """
    value = _evaluate(formula, window)
    return value if value is not None and math.isfinite(value) else None


def _evaluate(formula: Formula, window: Window) -> float | None:
    if isinstance(formula, Rate):
        grown = window.increase(formula.metric)
        return None if grown is None or window.seconds <= 0 else grown / window.seconds
    if isinstance(formula, Ratio):
        under = _evaluate(formula.under, window)
        over = _evaluate(formula.over, window) if under is not None and under > 0 else None
        return None if over is None or under is None else over / under
    if isinstance(formula, Last):
        return window.last(formula.metric)
    if isinstance(formula, Minus):
        left, right = _evaluate(formula.left, window), _evaluate(formula.right, window)
        return None if left is None or right is None else left - right
    if isinstance(formula, StdDev):
        n, total = window.increase(formula.count), window.increase(formula.total)
        squared = window.increase(formula.squared)
        if n is None or total is None or squared is None or n <= 0:
            return None
        mean = total / n
        return math.sqrt(max(0.0, squared / n - mean * mean))
    low, high = _evaluate(formula.low, window), _evaluate(formula.high, window)
    return None if low is None or high is None else math.sqrt(max(0.0, low * high))


def promql(formula: Formula, *, window: str, by: tuple[str, ...], where: str = "") -> str:
    """The same as an expression over our exported metrics, aggregated by ``by``; ``window`` like ``1m``.

    ``where`` is the inside of a label matcher (``source="histogram"``) put on every selector.
    """
    if isinstance(formula, Last):
        return f"max by ({', '.join(by)}) ({PREFIX}{formula.metric}{_matcher(where)})"
    if isinstance(formula, Rate):
        return f"sum by ({', '.join(by)}) (rate({PREFIX}{formula.metric}{_matcher(where)}[{window}]))"

    def part(inner: Formula) -> str:
        return promql(inner, window=window, by=by, where=where)

    if isinstance(formula, Ratio):
        return f"({part(formula.over)}) / (({part(formula.under)}) > 0)"
    if isinstance(formula, Minus):
        return f"({part(formula.left)}) - ({part(formula.right)})"
    if isinstance(formula, StdDev):
        n = f"(({part(Rate(formula.count))}) > 0)"
        mean = f"(({part(Rate(formula.total))}) / {n})"
        return f"sqrt(clamp_min((({part(Rate(formula.squared))}) / {n}) - {mean} ^ 2, 0))"
    return f"sqrt(clamp_min(({part(formula.low)}) * ({part(formula.high)}), 0))"


def _matcher(where: str) -> str:
    return f"{{{where}}}" if where else ""


@lru_cache(maxsize=256)
def counters_of(formula: Formula) -> frozenset[str]:
    """The counters a formula reads, for the check that each is exported."""
    if isinstance(formula, Rate):
        return frozenset({formula.metric})
    if isinstance(formula, StdDev):
        return frozenset({formula.count, formula.total, formula.squared})
    if isinstance(formula, Ratio):
        return counters_of(formula.over) | counters_of(formula.under)
    if isinstance(formula, Minus):
        return counters_of(formula.left) | counters_of(formula.right)
    if isinstance(formula, GeometricMean):
        return counters_of(formula.low) | counters_of(formula.high)
    return frozenset()
