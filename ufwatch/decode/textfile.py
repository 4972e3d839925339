"""Textfiles summed over their writers: counters that only grow, whatever the writers do.

A writer is a file name and a start time. Its counts enter the totals as deltas against what was last seen of the same
writer, so that a restart, an expiry or a file that cannot be read for a while loses nothing and counts nothing twice.
Expiry decides about health, ages and absolute values only: what an expired file still gained did happen.

Floor 2: pure. The format of a file is told in :mod:`ufwatch.decode.textfile_format`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ufwatch.decode.textfile_format import (
    KNOWN,
    PINNED_CODES,
    SeriesKey,
    TextFile,
    TextFileFault,
    merged,
    parse_file,
    sequence_of,
)
from ufwatch.model import UP, Health, Reason
from ufwatch.spec import Kind

__all__ = [
    "EXPIRY_SECONDS",
    "KNOWN",
    "PINNED_CODES",
    "SeriesKey",
    "TextFile",
    "TextFileFault",
    "TextfileSnapshot",
    "TextfileState",
    "parse_file",
    "sequence_of",
    "step",
]

EXPIRY_SECONDS = 15.0
"""Three heartbeats: a file older than this has no writer any more."""
MAX_FUTURE_SECONDS = 60.0
"""A heartbeat further ahead than two clocks differ is refused, or a file would be fresh for ever."""
MAX_WRITERS = 1024
"""Writers remembered, the longest unseen forgotten first: each restart of a worker makes one more."""
_DETAILS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    values: Mapping[SeriesKey, float]
    whole: bool
    """Whether every line was good when last seen: only then is a series that appears later known to begin at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextfileState:
    """What is kept between polls."""

    writers: Mapping[tuple[str, float], _Writer] = field(default_factory=dict)
    """By file name and start time, the longest unseen first."""
    latest_start: Mapping[str, float] = field(default_factory=dict)
    totals: Mapping[SeriesKey, float] = field(default_factory=dict)
    forgotten_start: float = float("-inf")
    """The latest start among forgotten writers: one that begins no later may have been counted already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextfileSnapshot:
    """One poll of a target's directory."""

    health: Health
    totals: Mapping[SeriesKey, float] = field(default_factory=dict)
    """Counters: gains since the agent's start. They never fall, and are given while the source is down too."""
    absolute: Mapping[SeriesKey, float] = field(default_factory=dict)
    """The live files' own numbers: counters summed, of gauges the largest. Empty while the source is down."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """What live files say they cannot give (a metric's name without prefix), and why, in their words."""
    heartbeat_age_seconds: float | None = None
    """Age of the youngest heartbeat, expired or not; None without a readable file."""
    files: int = 0
    """Well-formed files, expired ones among them."""
    expired: int = 0
    faults: int = 0
    """Files refused whole at this poll."""
    refused_lines: int = 0
    unknown_lines: int = 0
    fallen: int = 0
    """Series that fell a little without a restart; their interval was not counted."""
    details: tuple[str, ...] = ()
    """For the log and the doctor: the first few faults, as ``file: what is wrong``."""


def step(
    state: TextfileState,
    files: Mapping[str, TextFile],
    *,
    agent_start_wall: float,
    now_wall: float,
    faults: Mapping[str, TextFileFault] | None = None,
) -> tuple[TextfileState, TextfileSnapshot]:
    """Takes one poll's files, by file name, and gives the new state and what the poll shows.

    Both times are unix seconds of the agent's clock. ``faults`` are the files that could not be read. A writer seen
    for the first time is a baseline, except when it began after the agent, or after the writer it replaces: then it
    counts from 0. The files of a poll that are refused here leave the state as it was.
    """
    problems = {name: f"{name}: {fault.detail}" for name, fault in (faults or {}).items()}
    reasons = [fault.reason for fault in (faults or {}).values()]
    writers, latest, totals = dict(state.writers), dict(state.latest_start), dict(state.totals)
    absolute: dict[SeriesKey, float] = {}
    absent: dict[str, str] = {}
    ages: list[float] = []
    fallen = 0
    for name, file in sorted(files.items()):
        age = now_wall - file.heartbeat_wall
        if age < -MAX_FUTURE_SECONDS:
            problems[name] = f"{name}: its heartbeat is {-age:.0f} s in the future; set the clocks"
            reasons.append(Reason.OUT_OF_RANGE)
            continue
        ages.append(max(0.0, age))
        identity = (name, file.start_wall)
        before = writers.pop(identity, None)
        now = _counters(file)
        if before is None:
            whole = _counts_from_zero(state, name, file, agent_start_wall, now_wall)
            gained = now if whole else dict.fromkeys(now, 0.0)
            writers[identity] = _Writer(values=now, whole=whole or not file.refused)
        else:
            gained, writers[identity], fell = _gained(before, now, clean=not file.refused)
            fallen += fell
        for key, value in gained.items():
            totals[key] = totals.get(key, 0.0) + value
        latest[name] = max(file.start_wall, latest.get(name, file.start_wall))
        if age <= EXPIRY_SECONDS:
            for key, value in file.values.items():
                absolute[key] = merged(key.metric, absolute.get(key), value)
            absent |= file.absent
    forgotten = state.forgotten_start
    while len(writers) > MAX_WRITERS:
        name, start = next(iter(writers))
        del writers[name, start]
        if latest.get(name) == start:
            del latest[name]
        forgotten = max(forgotten, start)
    expired = sum(age > EXPIRY_SECONDS for age in ages)
    snapshot = TextfileSnapshot(
        health=_health(len(ages), expired, min(ages, default=0.0), reasons, tuple(problems.values())),
        totals=totals,
        absolute=absolute,
        absent=absent,
        heartbeat_age_seconds=min(ages, default=None),
        files=len(ages),
        expired=expired,
        faults=len(problems),
        refused_lines=sum(file.refused for file in files.values()),
        unknown_lines=sum(file.unknown for file in files.values()),
        fallen=fallen,
        details=tuple(problems.values())[:_DETAILS],
    )
    return (
        TextfileState(writers=writers, latest_start=latest, totals=totals, forgotten_start=forgotten),
        snapshot,
    )


def _counters(file: TextFile) -> dict[SeriesKey, float]:
    return {key: value for key, value in file.values.items() if KNOWN[key.metric].kind is Kind.COUNTER}


def _counts_from_zero(
    state: TextfileState, name: str, file: TextFile, agent_start_wall: float, now_wall: float
) -> bool:
    """Whether a writer seen for the first time did all of its counting since the agent's start.

    A start ahead of our clock proves nothing, and a writer once forgotten may be back: both are baselines.
    """
    if file.start_wall > now_wall + MAX_FUTURE_SECONDS or file.start_wall <= state.forgotten_start:
        return False
    replaced = state.latest_start.get(name)
    return file.start_wall > agent_start_wall or (replaced is not None and file.start_wall > replaced)


def _gained(
    before: _Writer, now: Mapping[SeriesKey, float], *, clean: bool
) -> tuple[dict[SeriesKey, float], _Writer, int]:
    """What each counter of a known writer gained, the writer as it is now, and how many counters fell a little.

    A fall to half or less is a restart that kept its start time: all of the file then counts from 0. A smaller fall
    is a writer's inaccuracy; taking 999,999 after 1,000,000 for a restart would add a million.
    """
    gained: dict[SeriesKey, float] = {}
    fallen = 0
    for key, value in now.items():
        last = before.values.get(key)
        if last is None:
            gained[key] = value if before.whole else 0.0
        elif value >= last:
            gained[key] = value - last
        elif value <= last / 2:
            return dict(now), _Writer(values=now, whole=True), 0
        else:
            gained[key] = 0.0
            fallen += 1
    # A series missing this time (its line was refused) stays remembered, or its return would count from 0.
    return gained, _Writer(values={**before.values, **now}, whole=before.whole or clean), fallen


def _health(files: int, expired: int, age: float, reasons: list[Reason], problems: tuple[str, ...]) -> Health:
    if files > expired:
        return UP
    if problems:
        return Health(up=False, reason=reasons[0], detail=problems[0])
    if files:
        return Health(
            up=False,
            reason=Reason.STALE,
            detail=f"no file has a live writer: the youngest of {files} heartbeats is {age:.0f} s old",
        )
    return Health(up=False, reason=Reason.NO_SOURCE, detail="no <role>-<id>.prom file in the directory")
