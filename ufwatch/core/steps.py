"""What an engine's steps took over a minute, and the load, heat and clocks they took it under (alerts.md, 12).

Floor 2: pure; times are monotonic seconds.

A request that is being decoded gets one token, or the few of a speculative step, from every engine step, so the mean
interval between tokens is the mean step, each weighed by the requests that it served. An engine without work makes no
interval and no step: idling lengthens nothing, as it would time over a count of steps. Intervals over steps are the
requests of a step. A prefill chunk lengthens the step that it shares, which is why prompt tokens are part of the load.
A preempted request's interval is a wait and no step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor, log
from operator import itemgetter
from typing import NamedTuple

from ufwatch.catalogue import MIN_INTERVALS
from ufwatch.core.track import COLUMN, EngineTrack

STRETCH_SECONDS = 60.0
MIN_LOOKS = 3
"""Scrapes that must have seen requests run; at a scrape interval of a minute a stretch takes two."""
MOST_SECONDS = 240.0
MOST_UNEVEN = 1.5
"""Mean square over squared mean of the requests running: of a minute that is more uneven, no one load can be told."""

BATCH_RATIO = 1.25
USAGE_WIDTH = 0.05
PREFILL_FLOOR, PREFILL_RATIO = 0.01, 1.5
"""Prompt tokens computed for each token decoded. Up to the floor there is one bucket, from there on each is half as
much again as the last: shares of 1 %, 1.5 %, 2.2 % … of all tokens."""
TEMPERATURE_WIDTH = 5.0
CLOCK_WIDTH_HERTZ = 60e6

_COUNTED = itemgetter(
    COLUMN["itl_sum"],
    COLUMN["itl_count"],
    COLUMN["engine_steps"],
    COLUMN["prefill_tokens_total"],
    COLUMN["preemptions_total"],
)


class Step(NamedTuple):
    """A stretch: the cell it lies in, and the logarithm of its mean step in seconds, followed by where in the cell it
    lies in each of the five directions, 0–1 from edge to edge."""

    cell: str
    values: tuple[float, ...]


class Climate:
    """What the cards of one engine were like over a stretch: the hottest one, the slowest one, any that was capped."""

    __slots__ = ("_capped", "_clock", "_known", "_polls", "_temperature")

    def __init__(self) -> None:
        self._polls = self._capped = 0
        self._temperature = self._clock = 0.0
        self._known = True

    def polled(self, cards: Iterable[Mapping[str, float] | None]) -> None:
        """Takes one poll of every card; None is a card that could not be read, which spoils the stretch."""
        hottest, slowest, capped = -1.0, float("inf"), 0.0
        for values in cards:
            temperature = values.get("temperature_celsius") if values is not None else None
            clock = values.get("sm_clock_hertz") if values is not None else None
            if values is None or temperature is None or clock is None:
                self._known = False
                return
            hottest, slowest = max(hottest, temperature), min(slowest, clock)
            capped = max(capped, values.get("power_capped", 0.0))
        self._polls += 1
        self._temperature += hottest
        self._clock += slowest
        self._capped += capped > 0

    def told(self) -> tuple[float, float, str] | None:
        """Mean temperature (°C), mean SM clock (Hz), and whether power was capped: ``no``, ``yes`` or ``some``times."""
        if not self._known or self._polls == 0:
            return None
        capped = "no" if self._capped == 0 else "yes" if self._capped == self._polls else "some"
        return self._temperature / self._polls, self._clock / self._polls, capped


class Stretch:
    """One engine's scrapes from a first one on. It changes in place, a few additions a scrape."""

    __slots__ = ("_base", "_looks", "_running", "_squared", "_usage", "climate", "since")

    def __init__(self, track: EngineTrack, at_seconds: float) -> None:
        self.since = at_seconds
        self._base: tuple[float, ...] = _COUNTED(track.totals)
        self._looks = 0
        self._running = self._squared = self._usage = 0.0
        self.climate = Climate()
        self._look(track)

    def step(self, track: EngineTrack, at_seconds: float) -> bool:
        """Takes one more scrape; True when the stretch is to end."""
        self._look(track)
        elapsed = at_seconds - self.since
        return elapsed >= STRETCH_SECONDS and (self._looks >= MIN_LOOKS or elapsed >= MOST_SECONDS)

    def _look(self, track: EngineTrack) -> None:
        running, usage = track.gauge("running"), track.gauge("kv_usage")
        if running and usage is not None:  # an idle look says nothing of how steps are
            self._looks += 1
            self._running += running
            self._squared += running * running
            self._usage += running * usage

    def end(self, track: EngineTrack) -> Step | None:
        """What the stretch came to; None where it says nothing certain of the card."""
        total, intervals, steps, prefill, preempted = (
            now - then for now, then in zip(_COUNTED(track.totals), self._base, strict=True)
        )
        climate = self.climate.told()
        if climate is None or intervals < MIN_INTERVALS or preempted > 0 or self._looks < MIN_LOOKS:
            return None
        if total <= 0 or steps <= 0:
            return None
        uneven = self._looks * self._squared / (self._running * self._running)
        if uneven > MOST_UNEVEN:
            return None
        # Each step is weighed by its requests, so their mean must be too: Σn²/Σn = Σn/steps · mean square over squared
        # mean, of which the last is small and known from the scrapes.
        batch = intervals / steps * uneven
        # Requests come and go faster than scrapes, and what each holds of the cache changes slowly: times the requests
        # of a step, that is the usage which a step reads, without the chance of what a scrape met.
        usage = min(1.0, self._usage / self._squared * batch)
        usage, size = in_blocks(usage, track.shape.cache_number("num_gpu_blocks"))
        step = located(total / intervals, batch, usage, prefill / intervals, *climate)
        return step._replace(cell=f"{step.cell},{size}")


def in_blocks(usage: float, blocks: float | None) -> tuple[float, int]:
    """The usage of a cache of the next power of two of blocks, and which that is; 0 where their number is unknown.

    What a step reads is so many blocks. Their number differs from start to start, by the memory that the engine finds
    free, and the same share of ten percent more of them takes six percent longer.
    """
    if blocks is None or blocks < 1:
        return usage, 0
    size = round(log(blocks, 2))
    return usage * blocks / 2.0**size, size


def located(
    step_seconds: float, batch: float, usage: float, prefill: float, temperature: float, clock: float, capped: str
) -> Step:
    """The step in its cell. ``prefill`` is in prompt tokens computed for each token decoded, ``clock`` in hertz."""
    over = prefill / PREFILL_FLOOR
    places = (
        log(max(batch, 0.01)) / log(BATCH_RATIO) + 0.5,  # a lone request is the middle of a bucket and not an edge
        usage / USAGE_WIDTH,
        over if over < 1 else 1 + log(over) / log(PREFILL_RATIO),
        temperature / TEMPERATURE_WIDTH,
        clock / CLOCK_WIDTH_HERTZ,
    )
    numbers = [floor(place) for place in places]
    cell = ",".join([*map(str, numbers), capped])
    return Step(cell, (log(step_seconds), *(place - number for place, number in zip(places, numbers, strict=True))))
