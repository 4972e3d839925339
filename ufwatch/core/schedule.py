"""When each target is due: an even grid over the interval that no late round shifts. Pure: the time is an argument.

Floor 2.
"""

from __future__ import annotations

from math import ceil

SLOTS = 10
"""Moments of an interval at which targets are due. Those of one moment are read back to back, which costs a third of
reading each alone: after a pause, code and data have to come back into the caches first."""
_GOLDEN = 0.6180339887498949


def offset(index: int, interval_seconds: float) -> float:
    """When, within an interval, the ``index``-th target that ever arrived is due; seconds, at least 0.

    Multiples of the golden ratio, taken modulo one and brought down to one of ``SLOTS`` moments: an offset depends on
    nothing but the target's own index, so it stays when others come and go, and any run of consecutive indexes, also
    one whose first have gone, fills the moments nearly evenly. Bit reversal is even only at powers of two and from 0.
    """
    return int(index * _GOLDEN % 1.0 * SLOTS) * interval_seconds / SLOTS


def next_due(first_seconds: float, interval_seconds: float, now_seconds: float) -> float:
    """The moment of the grid ``first + n · interval`` at which the next round is to begin.

    It may lie up to one slot back: a round that late is begun at once. One that is later is left out, so that rounds
    missed by a suspended machine are not made up in a burst, and the grid stays as it was.
    """
    missed = (now_seconds - first_seconds) / interval_seconds
    return first_seconds + max(0, ceil(missed - 1 / SLOTS)) * interval_seconds


def between(moment_seconds: float, began_seconds: float, interval_seconds: float) -> float:
    """The first time from ``moment_seconds`` on that lies half-way between two moments at which targets are due.

    ``began_seconds`` and ``interval_seconds`` are those of the targets' grid. What is done then, such as a request of
    our own, neither waits behind a scrape nor holds one up.
    """
    slot = interval_seconds / SLOTS
    return began_seconds + (ceil((moment_seconds - began_seconds) / slot - 0.5) + 0.5) * slot
