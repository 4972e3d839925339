"""What share of a target's look-ups usually misses at this hour: its own last week, hour by hour (alerts.md, 2).

Floor 2: pure; an hour is the number of whole hours since 1970 in UTC. Nothing is ever taken back: a clock that was
wrong for a while leaves hours that no later hour asks for.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from math import nan
from typing import NamedTuple

HOUR_SECONDS = 3600
DAYS = 7
MIN_LOOKUPS = 1_000.0
"""An hour with fewer look-ups says little of what is usual, and the alert does not look at one either."""
MIN_HOURS = 3
"""Fewer hours than this make no median: one odd day would be half of it."""
_SLOTS = 24 * DAYS
_MOST_WEEKS = 0xFFFF


class HourCount(NamedTuple):
    """What one hour came to: its number, the tokens looked up, those that missed."""

    hour: int
    lookups: float
    misses: float


class Baseline(NamedTuple):
    """The usual miss ratio of an hour, and of how many days it was made; None while those are too few."""

    ratio: float | None
    days: int


class Hours:
    """One target's last 168 hours as ratios, and the counts of the hour under way.

    A slot is the hour of the week. It keeps the ratio (4 bytes: exact to 1e-7) and which week it is of (2 bytes), so a
    target takes 1 kB, and nothing before its first hour is over.
    """

    __slots__ = ("_ratios", "_weeks", "hour", "lookups", "misses")

    def __init__(self, hour: int) -> None:
        self.hour, self.lookups, self.misses = hour, 0.0, 0.0
        self._ratios = array("f")
        self._weeks = array("H")
        """Week number plus one; 0 is empty."""

    def count(self, hour: int, lookups: float, misses: float) -> None:
        """Adds what was looked up in ``hour``. A clock that slewed back over the hour's edge changes nothing."""
        if hour not in (self.hour, self.hour - 1):
            self._keep(self.hour, self.lookups, self.misses)
            self.hour, self.lookups, self.misses = hour, 0.0, 0.0
        self.lookups += lookups
        self.misses += misses

    def put(self, kept: HourCount) -> None:
        """Takes an hour that was kept on disk."""
        if kept.hour == self.hour:
            self.lookups += kept.lookups
            self.misses += kept.misses
        else:
            self._keep(*kept)

    def now(self) -> HourCount:
        """The hour under way."""
        return HourCount(self.hour, self.lookups, self.misses)

    def ratio(self, hour: int) -> float | None:
        """The miss ratio of an hour that is over; None where it is not kept or had too few look-ups."""
        slot, week = hour % _SLOTS, hour // _SLOTS + 1
        if not self._weeks or self._weeks[slot] != week:
            return None
        return round(self._ratios[slot], 6)

    def baseline(self) -> Baseline:
        """What is usual for the hour under way."""
        days = (self.ratio(self.hour - 24 * day) for day in range(1, DAYS + 1))
        known = [ratio for ratio in days if ratio is not None]
        return Baseline(median(known) if len(known) >= MIN_HOURS else None, len(known))

    def kept(self) -> Iterator[HourCount]:
        """Every hour that is over and counts, as ratios of the fewest look-ups that it can have had."""
        for slot, week in enumerate(self._weeks):
            if week:
                yield HourCount((week - 1) * _SLOTS + slot, MIN_LOOKUPS, MIN_LOOKUPS * self._ratios[slot])

    def _keep(self, hour: int, lookups: float, misses: float) -> None:
        week = hour // _SLOTS + 1
        if lookups < MIN_LOOKUPS or not 0 < week <= _MOST_WEEKS:
            return
        if not self._weeks:
            self._ratios, self._weeks = array("f", [nan]) * _SLOTS, array("H", [0]) * _SLOTS
        slot = hour % _SLOTS
        self._ratios[slot], self._weeks[slot] = min(1.0, misses / lookups), week


def median(values: Sequence[float]) -> float:
    """The middle of at least one value, of two middles their mean (``statistics`` would cost a megabyte to import)."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
