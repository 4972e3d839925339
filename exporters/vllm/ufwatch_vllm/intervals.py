"""The sums over token intervals and first-token times, so exact that a variance may be taken from them.

Each list is summed by ``math.fsum``; over lists the sums are compensated (Neumaier), so a total is its true value
rounded once, however many lists there were. σ² = Σx²/n − (Σx/n)² then loses no more than the subtraction itself:
about 1e-16 · mean²/σ² of σ².

One thread (the engine client's event loop) takes lists, another (the writer's) exports. They share no lock: the state
is one tuple that is replaced as a whole.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from .settings import Settings

COUNTERS = (
    "token_intervals_total",
    "token_interval_seconds_total",
    "token_interval_squared_total",
    "ttft_requests_total",
    "ttft_over_total",
    "jitter_slices_total",
    "jitter_slices_over_total",
)


class Totals(Protocol):
    """Takes totals: the exporter, or what stands before it."""

    def total(self, name: str, value: float, **labels: str) -> None:
        """As ``Exporter.total``."""


class _Sum(NamedTuple):
    """A compensated sum: ``high + low`` is its value."""

    high: float = 0.0
    low: float = 0.0


class _Slice(NamedTuple):
    """The slice of time that is still open. ``number`` is unix time over its length."""

    number: int = -1
    n: int = 0
    sum: float = 0.0
    squares: float = 0.0


class _State(NamedTuple):
    n: int
    sum: _Sum
    squares: _Sum
    first_tokens: int
    late: tuple[int, ...]
    """First tokens over each TTFT threshold."""
    slices: int
    uneven: tuple[int, ...]
    """Closed slices whose σ was over each threshold."""
    open: _Slice


class IntervalSums:
    """Of one engine, as this process sees it."""

    def __init__(self, settings: Settings, *, wall: Callable[[], float] | None = None) -> None:
        self._settings, self._wall = settings, wall or _steady()
        late, uneven = (0,) * len(settings.ttft), (0,) * len(settings.jitter)
        self._state = _State(0, _Sum(), _Sum(), 0, late, 0, uneven, _Slice())

    def take(self, intervals: Sequence[float], first_tokens: Sequence[float]) -> None:
        """One engine step's intervals and times to first token, in seconds. What is no time is left out."""
        state = self._state
        n, total, squares, open_slice = state.n, state.sum, state.squares, state.open
        slices, uneven = state.slices, state.uneven
        intervals, step, step_squares = _summed(intervals)
        count = len(intervals)
        if count:
            n, total, squares = n + count, _plus(total, step), _plus(squares, step_squares)
            number = int(self._wall() // self._settings.slice)
            if number > open_slice.number:
                if open_slice.n > 1:
                    slices, uneven = slices + 1, self._judged(open_slice, uneven)
                open_slice = _Slice(number, count, step, step_squares)
            else:
                _, m, s, q = open_slice
                open_slice = _Slice(open_slice.number, m + count, s + step, q + step_squares)
        late = state.late
        if first_tokens:
            first_tokens = _summed(first_tokens)[0]
            late = tuple(
                m + sum(1 for x in first_tokens if x > threshold) for m, threshold in zip(late, self._settings.ttft)
            )
        self._state = _State(
            n, total, squares, state.first_tokens + len(first_tokens), late, slices, uneven, open_slice
        )

    def export(self, exporter: Totals, engine: str, unit: str) -> None:
        """Hands all totals over; a slice whose time is up counts although nothing came after it."""
        state = self._state
        labels = {"engine": engine, "unit": unit}
        exporter.total("token_intervals_total", state.n, **labels)
        exporter.total("token_interval_seconds_total", state.sum.high + state.sum.low, **labels)
        exporter.total("token_interval_squared_total", state.squares.high + state.squares.low, **labels)
        exporter.total("ttft_requests_total", state.first_tokens, engine=engine)
        for seconds, count in zip(self._settings.ttft, state.late):
            exporter.total("ttft_over_total", count, engine=engine, threshold_seconds=_text(seconds))
        slices, uneven = state.slices, state.uneven
        if state.open.n > 1 and int(self._wall() // self._settings.slice) > state.open.number:
            # Not written back: the next list closes it in the same way.
            slices, uneven = slices + 1, self._judged(state.open, uneven)
        exporter.total("jitter_slices_total", slices, engine=engine)
        for seconds, count in zip(self._settings.jitter, uneven):
            exporter.total("jitter_slices_over_total", count, engine=engine, threshold_seconds=_text(seconds))

    def _judged(self, of: _Slice, uneven: tuple[int, ...]) -> tuple[int, ...]:
        mean = of.sum / of.n
        deviation = math.sqrt(max(0.0, of.squares / of.n - mean * mean))
        return tuple(m + (deviation > threshold) for m, threshold in zip(uneven, self._settings.jitter))


def _summed(times: Sequence[float]) -> tuple[Sequence[float], float, float]:
    """Those that are times, their sum and that of their squares. Raises for what is no number: a vLLM not known."""
    try:
        total, squares = math.fsum(times), math.fsum([x * x for x in times])
        if squares < math.inf and not (times and min(times) < 0.0):
            return times, total, squares
    except (ValueError, OverflowError):
        pass  # inf and -inf; beyond what a float holds
    times = [x for x in times if 0.0 <= x < 1e150]
    return times, math.fsum(times), math.fsum([x * x for x in times])


def _steady() -> Callable[[], float]:
    """Unix time as it was when this began, and from there on without the steps that a clock may be set by.

    Set back for hours it would hold one slice open all that time.
    """
    ahead = time.time() - time.monotonic()
    return lambda: ahead + time.monotonic()


def _plus(total: _Sum, x: float) -> _Sum:
    high, low = total
    new = high + x
    return _Sum(new, low + ((high - new) + x if high >= x else (x - new) + high))


def _text(seconds: float) -> str:
    return f"{seconds:.12g}"
