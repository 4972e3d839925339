"""Events by time, and what they leave of an error budget. Floor 2: pure; times are Unix seconds, burn is a factor.

Every event is counted in two tiers, whose buckets are dropped whole: five minutes for windows up to six hours, and an
hour for everything longer. So a window may reach back one bucket further than its name says, never less.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from ufwatch.core.counting import Tally

FINE_SECONDS, HOUR_SECONDS = 300, 3600
FINE_BUCKETS = 6 * HOUR_SECONDS // FINE_SECONDS + 1
WINDOWS = {"5m": 300, "30m": 1800, "1h": 3600, "2h": 7200, "6h": 21600, "1d": 86400, "3d": 259200}
"""The windows that burn is told over, with their seconds."""
_WIDTH = 5
"""A bucket's number and the four counts of a tally."""
_MOST = 2**32 - 1
"""Of events in one bucket: more than a million a second for an hour."""
_EMPTY = _MOST
_BLANK = array("I", [_EMPTY, 0, 0, 0, 0])


class Ring:
    """The newest ``size`` buckets of ``seconds`` each, in one array, and the sum over all of them.

    It changes in place: a target has a dozen, and a month of hours made anew at each event would be megabytes a second.
    The array grows with the time it has seen, up to 14 kB for a month of hours.
    """

    __slots__ = ("_base", "_cells", "newest", "seconds", "size", "total")

    def __init__(self, seconds: int, size: int) -> None:
        self.seconds, self.size = seconds, size
        self._cells = array("I")
        self._base = 0
        """The number of the bucket that stands first in the array."""
        self.newest = -1
        self.total = Tally()
        """Over every bucket that is kept; exact, because counts are whole numbers."""

    def advance(self, at_wall: float) -> None:
        """Drops what is too old at ``at_wall``. Earlier times than before change nothing."""
        number = int(at_wall // self.seconds)
        if number <= self.newest:
            return
        gone = range(self.newest + 1, number + 1) if number - self.newest < self.size else range(self.size)
        if self.newest >= 0:
            for each in gone:
                self._clear((each - self._base) % self.size)
        self.newest = number

    def add(self, at_wall: float, tally: Tally) -> int | None:
        """Counts ``tally`` at ``at_wall`` and returns its bucket's start; None where that is older than the ring."""
        number = int(at_wall // self.seconds)
        if number > self.newest:
            self.advance(at_wall)
        elif number <= self.newest - self.size:
            return None
        cells = self._cells
        if not cells:
            self._base = number
        at = _WIDTH * ((number - self._base) % self.size)
        if at >= len(cells):
            cells.extend(_BLANK * ((at - len(cells)) // _WIDTH + 1))
        cells[at] = number
        counted = [0.0, 0.0, 0.0, 0.0]
        for place, count in enumerate(tally):
            if count:
                held = cells[at + 1 + place]
                cells[at + 1 + place] = after = min(held + round(min(count, _MOST)), _MOST)
                counted[place] = float(after - held)
        self.total = self.total.plus(Tally(*counted))
        return number * self.seconds

    def at(self, start: int) -> Tally:
        """What the bucket that starts at ``start`` holds; nothing when it is not kept."""
        number = start // self.seconds
        at = _WIDTH * ((number - self._base) % self.size)
        if at >= len(self._cells) or self._cells[at] != number:
            return Tally()
        return Tally(*map(float, self._cells[at + 1 : at + _WIDTH]))

    def last(self, seconds: int, at_wall: float) -> Tally:
        """The sum over the ``seconds`` before ``at_wall``, and the rest of the bucket in which they begin."""
        self.advance(at_wall)
        found = Tally()
        number = int(at_wall // self.seconds)
        for each in range(number - -(-seconds // self.seconds), self.newest + 1):
            found = found.plus(self.at(each * self.seconds))
        return found

    def cells(self) -> Iterator[tuple[int, Tally]]:
        """Start and counts of every bucket that holds any."""
        for at in range(0, len(self._cells), _WIDTH):
            if self._cells[at] != _EMPTY:
                yield self._cells[at] * self.seconds, Tally(*map(float, self._cells[at + 1 : at + _WIDTH]))

    def fold(self, at_wall: float) -> None:
        """Moves what is dated after ``at_wall`` to it: the clock had been wrong, but the events did happen."""
        number = int(at_wall // self.seconds)
        if self.newest <= number:
            return
        held = [(start, tally) for start, tally in self.cells()]
        self._cells = array("I")
        self.newest, self.total = number, Tally()
        for start, tally in held:
            self.add(min(start, number * self.seconds), tally)

    def _clear(self, slot: int) -> None:
        at = _WIDTH * slot
        cells = self._cells
        if at >= len(cells) or cells[at] == _EMPTY:
            return
        held = Tally(*cells[at + 1 : at + _WIDTH])
        self.total = Tally(*(a - b for a, b in zip(self.total, held, strict=True)))
        cells[at : at + _WIDTH] = _BLANK


class Account:
    """One objective of one target: its events by time."""

    __slots__ = ("fine", "hours")

    def __init__(self, window_days: int) -> None:
        self.fine = Ring(FINE_SECONDS, FINE_BUCKETS)
        self.hours = Ring(HOUR_SECONDS, 24 * window_days + 1)

    def over(self, seconds: int, at_wall: float) -> Tally:
        """The events of a window."""
        return (self.fine if seconds <= WINDOWS["6h"] else self.hours).last(seconds, at_wall)


class Bounds(NamedTuple):
    """The least and the most that a number can be."""

    low: float
    high: float


def remaining(tally: Tally, ratio: float) -> Bounds | None:
    """Share of the error budget that is left, negative when overspent; None without events: no data is not met.

    Weighted by requests: bad events over all events of the window, over the share that may be bad.
    """
    burnt = burn(tally, ratio)
    return None if burnt is None else Bounds(1 - burnt.high, 1 - burnt.low)


def burn(tally: Tally, ratio: float) -> Bounds | None:
    """How many times faster than allowed the budget goes; None without events."""
    if tally.events <= 0:
        return None
    allowed = tally.events * (1 - ratio)
    return Bounds(tally.low / allowed, tally.high / allowed)


def exhaustion_seconds(left: float, burnt: float, window_seconds: float) -> float | None:
    """After what time a budget is gone if it goes on burning ``burnt`` at the window's mean traffic; None: never."""
    if left <= 0:
        return 0.0
    return left * window_seconds / burnt if burnt > 0 else None


class LedgerTime(NamedTuple):
    """Which Unix time the books go by: the wall clock, without believing every jump of it at once."""

    offset: float
    """Unix time minus monotonic time."""
    doubted_since: float | None = None


JUMP_SECONDS = 60.0
BELIEVED_AFTER_SECONDS = 600.0


def ledger_step(time: LedgerTime, monotonic: float, wall: float) -> tuple[LedgerTime, bool]:
    """The time after one more look, and whether it was just set back.

    A jump of over a minute is believed once it has lasted ten minutes: a clock that is wrong for a moment must neither
    age a month of events nor date them into the future.
    """
    offset = wall - monotonic
    if abs(offset - time.offset) <= JUMP_SECONDS:
        return LedgerTime(offset), False
    since = monotonic if time.doubted_since is None else time.doubted_since
    if monotonic - since < BELIEVED_AFTER_SECONDS:
        return LedgerTime(time.offset, since), False
    return LedgerTime(offset), offset < time.offset
