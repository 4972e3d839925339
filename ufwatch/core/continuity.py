"""Is this page the continuation of the last one? Restarts, workers that answer in turn, and small steps back.

A Prometheus ``rate()`` takes every fall of a counter for a restart. Behind several workers that answer in turn, or
after a scrape that went back by one, that invents events. Here a restart is believed one scrape later, when the same
process has answered twice; a process that comes back after another has answered makes the source *inconsistent*
until five scrapes in a row have come from one process.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from enum import StrEnum

CLEAN_SCRAPES = 5
_REMEMBERED = 8


class Verdict(StrEnum):
    FIRST = "first"
    """Nothing to compare with: a baseline."""
    CONTINUES = "continues"
    RESTART_SEEN = "restart_seen"
    """Looks like a new process; nothing is counted until the next scrape agrees."""
    RESTARTED = "restarted"
    """A new process, seen twice: its counters count from 0."""
    HELD = "held"
    """Back after a gap: the growth over it is counted at the next scrape."""
    STEP_BACK = "step_back"
    """A counter fell by less than half: no restart, and nothing to be counted for this interval."""
    INCONSISTENT = "inconsistent"


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one process from another; either may be missing (multiprocess mode has neither)."""

    process_start: float | None
    created: float | None

    def same_as(self, other: Identity) -> bool | None:
        """None when there is nothing to compare."""
        pairs = ((self.process_start, other.process_start), (self.created, other.created))
        known = [a == b for a, b in pairs if a is not None and b is not None]
        return all(known) if known else None


@dataclass(frozen=True, slots=True)
class Continuity:
    """What is remembered of the pages before. ``base`` is the vector that deltas are taken from."""

    identity: Identity
    base: array[float]
    suspect: array[float] | None = None
    suspect_identity: Identity | None = None
    past: tuple[Identity, ...] = ()
    inconsistent: bool = False
    clean: int = 0


def judge(
    memory: Continuity | None, identity: Identity, counters: array[float], *, hold: bool = False
) -> tuple[Continuity, Verdict, list[float] | None]:
    """The new memory, the verdict, and how much each counter grew (None when nothing may be counted).

    ``counters`` must be laid out like ``memory.base`` (see :func:`ufwatch.core.track.realign`). ``hold`` puts the
    growth off to the next scrape: a series that comes back after a gap must first show the value it had, or
    Prometheus would not see the growth.
    """
    if memory is None:
        return Continuity(identity, counters), Verdict.FIRST, None
    if memory.inconsistent:
        return _while_inconsistent(memory, identity, counters)
    same = identity.same_as(memory.suspect_identity or memory.identity)
    if memory.suspect is not None:
        return _after_restart(memory, memory.suspect, same, identity, counters)
    delta = [now - before for now, before in zip(counters, memory.base, strict=True)]
    if same is False:
        if any(identity.same_as(old) for old in memory.past):
            return _inconsistent(memory, identity, counters)
        return _suspect(memory, identity, counters)
    if min(delta) >= 0.0:
        if hold:
            return replace(memory, identity=identity), Verdict.HELD, None
        return replace(memory, identity=identity, base=counters), Verdict.CONTINUES, delta
    fallen = [(now, before) for now, before in zip(counters, memory.base, strict=True) if now < before]
    if all(now > before / 2 for now, before in fallen):
        return replace(memory, identity=identity, base=counters), Verdict.STEP_BACK, None
    return _suspect(memory, identity, counters)


def _suspect(
    memory: Continuity, identity: Identity, counters: array[float]
) -> tuple[Continuity, Verdict, list[float] | None]:
    past = (*memory.past, memory.suspect_identity or memory.identity)[-_REMEMBERED:]
    return (
        replace(memory, suspect=counters, suspect_identity=identity, past=past),
        Verdict.RESTART_SEEN,
        None,
    )


def _after_restart(
    memory: Continuity, suspect: array[float], same: bool | None, identity: Identity, counters: array[float]
) -> tuple[Continuity, Verdict, list[float] | None]:
    if same is False:
        if any(identity.same_as(old) for old in memory.past):
            return _inconsistent(memory, identity, counters)
        return _suspect(memory, identity, counters)
    grew = all(now >= before for now, before in zip(counters, suspect, strict=True))
    # Without an identity, a page that has passed the old process's counts again is the old process.
    old_again = same is None and all(now >= before for now, before in zip(counters, memory.base, strict=True))
    if not grew or old_again:
        return _inconsistent(memory, identity, counters)
    confirmed = Continuity(identity, counters, past=memory.past)
    return confirmed, Verdict.RESTARTED, list(counters)


def _inconsistent(
    memory: Continuity, identity: Identity, counters: array[float]
) -> tuple[Continuity, Verdict, list[float] | None]:
    past = (*memory.past, memory.suspect_identity or memory.identity)[-_REMEMBERED:]
    return Continuity(identity, counters, past=past, inconsistent=True), Verdict.INCONSISTENT, None


def _while_inconsistent(
    memory: Continuity, identity: Identity, counters: array[float]
) -> tuple[Continuity, Verdict, list[float] | None]:
    steady = identity.same_as(memory.identity) is not False and all(
        now >= before for now, before in zip(counters, memory.base, strict=True)
    )
    clean = memory.clean + 1 if steady else 0
    if clean >= CLEAN_SCRAPES:
        return Continuity(identity, counters), Verdict.FIRST, None
    return replace(memory, identity=identity, base=counters, clean=clean), Verdict.INCONSISTENT, None
