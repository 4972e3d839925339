"""Is this page the continuation of the last one? Restarts, workers that answer in turn, and small steps back.

A Prometheus ``rate()`` takes every fall of a counter for a restart. Behind several workers that answer in turn, or
after a scrape that went back by one, that invents events. Here a restart is believed one scrape later, when the same
process has answered twice; a process that comes back after another has answered makes the source *inconsistent*
until five scrapes in a row have come from one process.
"""

from __future__ import annotations

from array import array
from enum import StrEnum
from operator import sub
from typing import NamedTuple

CLEAN_SCRAPES = 5
CLOCK_SLACK_SECONDS = 60.0
_REMEMBERED = 8
_STEP_BACK_MEMORY = 12


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
    """A counter fell, and it is the same process or fell by less than half: no restart. What grew is counted."""
    INCONSISTENT = "inconsistent"


class Identity(NamedTuple):
    """What tells one process from another; either may be missing (multiprocess mode has neither)."""

    process_start: float | None
    created: float | None

    def same_as(self, other: Identity) -> bool | None:
        """None when there is nothing to compare."""
        pairs = ((self.process_start, other.process_start), (self.created, other.created))
        known = [a == b for a, b in pairs if a is not None and b is not None]
        return all(known) if known else None

    @property
    def began(self) -> float | None:
        """When the process began, in Unix time of its host."""
        return self.process_start if self.process_start is not None else self.created


class Continuity(NamedTuple):
    """What is remembered of the pages before. ``base`` is the vector that deltas are taken from."""

    identity: Identity
    base: array[float]
    suspect: array[float] | None = None
    suspect_identity: Identity | None = None
    past: tuple[Identity, ...] = ()
    inconsistent: bool = False
    clean: int = 0
    since_step_back: int = _STEP_BACK_MEMORY
    """Scrapes since a counter last stepped back, up to the number after which that is forgotten."""


Judgement = tuple[Continuity, Verdict, "list[float] | None"]
"""The new memory, the verdict, and how much each counter grew (None when nothing may be counted)."""


def judge(
    memory: Continuity | None,
    identity: Identity,
    counters: array[float],
    *,
    hold: bool = False,
    seen_wall: float | None = None,
) -> Judgement:
    """Whether this page continues the ones before.

    ``counters`` must be laid out like ``memory.base`` (see :func:`ufwatch.core.align.realign`). ``hold`` puts the
    growth off to the next scrape: a series that comes back after a gap must first show the value it had, or
    Prometheus would not see the growth. ``seen_wall`` is when the process before last answered, in Unix time.
    """
    if memory is None:
        return Continuity(identity, counters), Verdict.FIRST, None
    if memory.inconsistent:
        return _while_inconsistent(memory, identity, counters)
    same = identity.same_as(memory.suspect_identity or memory.identity)
    if memory.suspect is not None:
        return _after_restart(memory, memory.suspect, same, identity, counters, hold, seen_wall)
    if same is False:
        if any(identity.same_as(old) for old in memory.past):
            return _inconsistent(memory, identity, counters)
        return _suspect(memory, identity, counters)
    delta = list(map(sub, counters, memory.base))
    if min(delta) >= 0.0:
        if hold:
            return memory._replace(identity=identity), Verdict.HELD, None
        calm = min(memory.since_step_back + 1, _STEP_BACK_MEMORY)
        return memory._replace(identity=identity, base=counters, since_step_back=calm), Verdict.CONTINUES, delta
    slight = all(now > before / 2 for now, before in zip(counters, memory.base, strict=True) if now < before)
    if same is None and (not slight or memory.since_step_back < _STEP_BACK_MEMORY):
        # Without an identity a deep fall may be a restart; slight ones again and again are workers with like counts.
        return _inconsistent(memory, identity, counters) if slight else _suspect(memory, identity, counters)
    # One process, so no restart: what fell counts again from where it was, and only what it then has more.
    base = array("d", map(max, counters, memory.base))
    stepped = memory._replace(identity=identity, base=base, since_step_back=0)
    return stepped, Verdict.STEP_BACK, [max(0.0, grown) for grown in delta]


def _suspect(memory: Continuity, identity: Identity, counters: array[float]) -> Judgement:
    past = (*memory.past, memory.suspect_identity or memory.identity)[-_REMEMBERED:]
    return memory._replace(suspect=counters, suspect_identity=identity, past=past), Verdict.RESTART_SEEN, None


def _after_restart(
    memory: Continuity,
    suspect: array[float],
    same: bool | None,
    identity: Identity,
    counters: array[float],
    hold: bool,
    seen_wall: float | None,
) -> Judgement:
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
    if not _began_after(identity, memory.identity, seen_wall):
        # Another server has taken over the address: what it did before is not ours to count.
        return confirmed, Verdict.FIRST, None
    if hold:
        return memory._replace(suspect=counters, suspect_identity=identity), Verdict.RESTART_SEEN, None
    return confirmed, Verdict.RESTARTED, list(counters)


def _began_after(new: Identity, old: Identity, seen_wall: float | None) -> bool:
    """Whether the new process can have counted only after the old one was last seen.

    Its start is by the server's clock and ``seen_wall`` by ours, so a minute's difference is let pass.
    """
    began, before = new.began, old.began
    if began is None:
        return True
    if before is not None and began <= before:
        return False
    return seen_wall is None or began >= seen_wall - CLOCK_SLACK_SECONDS


def _inconsistent(memory: Continuity, identity: Identity, counters: array[float]) -> Judgement:
    past = (*memory.past, memory.suspect_identity or memory.identity)[-_REMEMBERED:]
    return Continuity(identity, counters, past=past, inconsistent=True), Verdict.INCONSISTENT, None


def _while_inconsistent(memory: Continuity, identity: Identity, counters: array[float]) -> Judgement:
    steady = identity.same_as(memory.identity) is not False and all(
        now >= before for now, before in zip(counters, memory.base, strict=True)
    )
    clean = memory.clean + 1 if steady else 0
    if clean >= CLEAN_SCRAPES:
        return Continuity(identity, counters), Verdict.FIRST, None
    return memory._replace(identity=identity, base=counters, clean=clean), Verdict.INCONSISTENT, None
