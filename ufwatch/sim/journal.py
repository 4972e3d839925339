"""What really happened, kept for a while, and the exact figures of any window of it.

Pure. A window is ``(start, stop]``: what ``page`` shows after ``advance(stop)`` less what it showed after
``advance(start)`` (within one process), because an event at ``stop`` itself is on the page.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul

from ufwatch.model import EngineState

_TRIM_AT = 4096
"""Expired events are dropped in batches of at least this many, which keeps the cost per event constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The exact figures of one window; counts are of events, times in seconds, tokens and blocks in pieces.

    Means and deviations are None when nothing was observed.
    """

    start_seconds: float
    stop_seconds: float
    interval_count: int
    """Inter-token intervals as vLLM observes them: one per engine step and request that yielded tokens."""
    interval_sum: float
    interval_square_sum: float
    interval_stddev: float | None
    """Population standard deviation."""
    prefill_tokens_computed: int
    """Credited with a request's first token, as vLLM does; recomputation after a preemption is not in it."""
    prefill_tokens_cached: int
    prefill_tokens_recomputed: int
    """Computed again after a preemption; on no counter of vLLM's."""
    decode_tokens: int
    lookup_tokens: int
    """Prompt tokens looked up in the prefix cache, once a request, when it was admitted."""
    miss_tokens: int
    evictions: int
    recycles: int
    preemptions: int
    requests_finished: int
    requests_aborted: int
    ttft_seconds: tuple[float, ...]
    e2e_seconds: tuple[float, ...]
    queue_seconds: tuple[float, ...]
    prefill_seconds: float
    decode_seconds: float
    """Both sums over requests that finished in the window, as vLLM counts them."""
    kv_blocks: int
    state: EngineState
    """At the window's end; of several engines the worst."""

    @property
    def ttft_mean(self) -> float | None:
        return _mean(self.ttft_seconds)

    @property
    def e2e_mean(self) -> float | None:
        return _mean(self.e2e_seconds)

    @property
    def queue_mean(self) -> float | None:
        return _mean(self.queue_seconds)

    @property
    def itl_mean(self) -> float | None:
        return self.interval_sum / self.interval_count if self.interval_count else None

    @property
    def miss_ratio(self) -> float | None:
        return self.miss_tokens / self.lookup_tokens if self.lookup_tokens else None

    @property
    def prefill_decode_ratio(self) -> float | None:
        return self.prefill_tokens_computed / self.decode_tokens if self.decode_tokens else None

    @property
    def evictions_per_second(self) -> float:
        return self.evictions / (self.stop_seconds - self.start_seconds)


class Series:
    """Events in order of time, each with a value and a weight (how many equal ones there were)."""

    __slots__ = ("_times", "_values", "_weights")

    def __init__(self) -> None:
        self._times = array("d")
        self._values = array("d")
        self._weights = array("L")

    def add(self, at: float, value: float, weight: int = 1) -> None:
        self._times.append(at)
        self._values.append(value)
        self._weights.append(weight)

    def trim(self, before: float) -> None:
        """Forgets events before a time, or leaves them for now when they are few."""
        if len(self._times) >= _TRIM_AT and (expired := bisect_right(self._times, before)) >= _TRIM_AT // 2:
            del self._times[:expired], self._values[:expired], self._weights[:expired]

    def window(self, start: float, stop: float) -> tuple[Sequence[float], Sequence[int]]:
        """Values and weights of the events in ``(start, stop]``."""
        first, last = bisect_right(self._times, start), bisect_right(self._times, stop)
        return self._values[first:last], self._weights[first:last]

    def total(self, start: float, stop: float) -> int:
        """Sum of the window's values times weights, of a series of whole numbers."""
        return round(math.fsum(map(mul, *self.window(start, stop))))

    def last(self, stop: float, default: float) -> float:
        """The value in force at a time, of a series that records changes."""
        position = bisect_right(self._times, stop)
        return self._values[position - 1] if position else default


_STATES = tuple(EngineState)


class Journal:
    """The events of one engine, across restarts of its process."""

    def __init__(self, kv_blocks: int, retention_seconds: float) -> None:
        self.kv_blocks = kv_blocks
        self._retention = retention_seconds
        self._forgotten = -math.inf
        self.intervals = Series()
        self.computed = Series()
        self.cached = Series()
        self.recomputed = Series()
        self.decoded = Series()
        self.looked_up = Series()
        self.missed = Series()
        self.evicted = Series()
        self.recycled = Series()
        self.preempted = Series()
        self.ttft = Series()
        self.e2e = Series()
        self.queue = Series()
        self.prefill_seconds = Series()
        self.decode_seconds = Series()
        self.aborted = Series()
        self._states = Series()
        self._state = EngineState.IDLE
        self._all = [value for value in vars(self).values() if isinstance(value, Series) and value is not self._states]

    def count(self, series: Series, at: float, value: int) -> None:
        """Adds a count, if there is anything to count."""
        if value:
            series.add(at, value)

    def enter(self, at: float, state: EngineState) -> None:
        """Records a change of state; saying the same again costs nothing."""
        if state is not self._state:
            self._state = state
            self._states.add(at, _STATES.index(state))

    def trim(self, now: float) -> None:
        """Drops what is older than the retention."""
        self._forgotten = now - self._retention
        for series in self._all:
            series.trim(self._forgotten)

    def state(self, at: float) -> EngineState:
        return _STATES[int(self._states.last(at, _STATES.index(EngineState.IDLE)))]

    def require(self, start: float) -> None:
        """Raises ValueError when a window would begin before what is kept."""
        if start < self._forgotten:
            raise ValueError(f"events before {self._forgotten:.3f} s are forgotten; raise Scenario.retention_seconds")


def truth(journals: Sequence[Journal], start: float, stop: float) -> Truth:
    """The figures of ``(start, stop]``, pooled over engines. ValueError when it begins before what is kept."""
    if not start <= stop:
        raise ValueError(f"a window runs forwards, not from {start} to {stop}")
    for journal in journals:
        journal.require(start)

    def total(pick: Iterable[Series]) -> int:
        return sum(series.total(start, stop) for series in pick)

    def values(pick: Iterable[Series]) -> tuple[float, ...]:
        return tuple(value for series in pick for value in series.window(start, stop)[0])

    count, interval_sum, square_sum, stddev = _moments([j.intervals.window(start, stop) for j in journals])
    e2e = values(j.e2e for j in journals)
    return Truth(
        start_seconds=start,
        stop_seconds=stop,
        interval_count=count,
        interval_sum=interval_sum,
        interval_square_sum=square_sum,
        interval_stddev=stddev,
        prefill_tokens_computed=total(j.computed for j in journals),
        prefill_tokens_cached=total(j.cached for j in journals),
        prefill_tokens_recomputed=total(j.recomputed for j in journals),
        decode_tokens=total(j.decoded for j in journals),
        lookup_tokens=total(j.looked_up for j in journals),
        miss_tokens=total(j.missed for j in journals),
        evictions=total(j.evicted for j in journals),
        recycles=total(j.recycled for j in journals),
        preemptions=total(j.preempted for j in journals),
        requests_finished=len(e2e),
        requests_aborted=total(j.aborted for j in journals),
        ttft_seconds=values(j.ttft for j in journals),
        e2e_seconds=e2e,
        queue_seconds=values(j.queue for j in journals),
        prefill_seconds=math.fsum(values(j.prefill_seconds for j in journals)),
        decode_seconds=math.fsum(values(j.decode_seconds for j in journals)),
        kv_blocks=sum(j.kv_blocks for j in journals),
        state=max((j.state(stop) for j in journals), key=_STATES.index),
    )


def _moments(windows: Sequence[tuple[Sequence[float], Sequence[int]]]) -> tuple[int, float, float, float | None]:
    """Count, sum, sum of squares and population standard deviation; in two passes, so nothing cancels."""
    values = [value for window in windows for value in window[0]]
    weights = [weight for window in windows for weight in window[1]]
    count = sum(weights)
    total = math.fsum(map(mul, values, weights))
    squares = math.fsum(value * value * weight for value, weight in zip(values, weights, strict=True))
    if not count:
        return 0, 0.0, 0.0, None
    mean = total / count
    spread = math.fsum((value - mean) ** 2 * weight for value, weight in zip(values, weights, strict=True))
    return count, total, squares, math.sqrt(spread / count)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
