"""Error budgets on disk, in one SQLite file (:mod:`ufwatch.statefile`).

What a save writes is absolute (a bucket's counts, an engine's raw counters), so one that is repeated changes nothing,
and one that is cut off by a kill never happened. All of it blocks; the desk calls it from a thread.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from ufwatch.core.counting import Tally
from ufwatch.core.objectives import WINDOWS_DAYS
from ufwatch.statefile import StateFile, StoreError

FILE = "slo.sqlite"
FINE, HOUR = 0, 1
_MOST_SECONDS, _MOST_EVENTS = 1e12, 2.0**32
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS bucket(
  target TEXT, slo TEXT, tier INTEGER, start INTEGER, events REAL, low REAL, high REAL, unknown REAL,
  PRIMARY KEY(target, slo, tier, start)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objective(slo TEXT PRIMARY KEY, definition TEXT, ratio REAL, days INTEGER);
CREATE TABLE IF NOT EXISTS last(target TEXT PRIMARY KEY, wall REAL, engines TEXT);
"""


class Row(NamedTuple):
    """One bucket: tier ``FINE`` or ``HOUR``, its start in Unix seconds, its counts."""

    target: str
    slo: str
    tier: int
    start: int
    tally: Tally


class Last(NamedTuple):
    """A target at its last save: the Unix time, and the raw counters of its engines."""

    wall: float
    engines: Mapping[str, Any]


class Saved(NamedTuple):
    """An objective as it was last saved; ``days`` 0: it is none any more, and is kept for its definition."""

    slo: str
    definition: str
    ratio: float
    days: int


class Batch(NamedTuple):
    """What one transaction writes. ``forget_before`` are the starts that either tier keeps; ``forget_after`` a start
    after which nothing can be true any more, where the clock was set back."""

    number: int = 0
    """Batches are numbered: one that a slow disk held up must not undo a later one."""
    rows: tuple[Row, ...] = ()
    last: Mapping[str, Last] = {}
    objectives: tuple[Saved, ...] = ()
    forget_before: tuple[int, int] | None = None
    forget_after: int | None = None


class Loaded(NamedTuple):
    """What is kept beside the buckets."""

    last: Mapping[str, Last] = {}
    objectives: tuple[Saved, ...] = ()


Take = Callable[[Row], None]
"""Is given each bucket in turn, oldest first: all of them at once would be hundreds of megabytes."""


class Store(StateFile):
    """The budgets of one directory. ``moved_to`` ends the name of a file that was found unsound and moved aside."""

    def __init__(self, directory: Path, moved_to: str = "corrupt") -> None:
        super().__init__(directory / FILE, holds="budgets", schema=_SCHEMA, version=_VERSION, moved_to=moved_to)
        self._written = 0

    def load(self, take: Take) -> Loaded:
        """Hands every bucket to ``take`` and returns the rest. Raises StoreError.

        StoreDamagedError: the file was unsound and is out of the way; what ``take`` was given of it is to be forgotten.
        """
        with self._busy:
            return self._checked(lambda: _read(self._sound(), take))

    def save(self, batch: Batch) -> None:
        """Writes all of ``batch`` or nothing. Raises StoreError."""
        with self._busy:
            if batch.number > self._written:
                self._checked(lambda: self._save(batch))
                self._written = batch.number

    def _save(self, batch: Batch) -> None:
        with self._transaction() as database:
            _write(database, batch)


def read_only(directory: Path, take: Take) -> Loaded:
    """As :meth:`Store.load`, without touching the file; an agent may be writing. Raises StoreError."""
    path = directory / FILE
    if not path.is_file():
        raise StoreError(f"{path}: no such file; give the --state-dir of the agent")
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return _read(database, take)
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from error


def _write(database: sqlite3.Connection, batch: Batch) -> None:
    if batch.forget_after is not None:
        database.execute("DELETE FROM bucket WHERE start > ?", (batch.forget_after,))
    if batch.forget_before is not None:
        for tier, start in zip((FINE, HOUR), batch.forget_before, strict=True):
            database.execute("DELETE FROM bucket WHERE tier = ? AND start < ?", (tier, start))
    known = dict(database.execute("SELECT slo, definition FROM objective").fetchall())
    for slo, definition, _, _ in batch.objectives:
        if known.get(slo, definition) != definition:
            # Counts under another definition are other counts.
            database.execute("DELETE FROM bucket WHERE slo = ?", (slo,))
    if batch.objectives:
        database.execute("UPDATE objective SET days = 0")
    database.executemany("INSERT OR REPLACE INTO objective VALUES(?,?,?,?)", batch.objectives)
    database.executemany(
        "INSERT OR REPLACE INTO bucket VALUES(?,?,?,?,?,?,?,?)",
        [(r.target, r.slo, r.tier, r.start, *r.tally) for r in batch.rows],
    )
    database.executemany(
        "INSERT OR REPLACE INTO last VALUES(?,?,?)",
        [(name, last.wall, json.dumps(last.engines)) for name, last in batch.last.items()],
    )


def _read(database: sqlite3.Connection, take: Take) -> Loaded:
    last = database.execute("SELECT target, wall, engines FROM last").fetchall()
    try:
        engines = {name: Last(wall, json.loads(text)) for name, wall, text in last}
    except (ValueError, TypeError) as error:
        raise sqlite3.DatabaseError(f"the saved counters cannot be read ({error})") from None
    for name, each in engines.items():
        _must(isinstance(name, str) and _wall(each.wall) and isinstance(each.engines, dict), "saved counters")
    objectives = tuple(Saved(*row) for row in database.execute("SELECT slo, definition, ratio, days FROM objective"))
    for saved in objectives:
        _must(_objective(*saved), "an objective")
    for row in database.execute("SELECT target, slo, tier, start, events, low, high, unknown FROM bucket"):
        _must(_bucket(*row), "a bucket")
        target, slo, tier, start, *counts = row
        take(Row(target, slo, tier, start, Tally(*counts)))
    return Loaded(engines, objectives)


def _must(holds: bool, what: str) -> None:
    """SQLite keeps whatever it is given, and its own check looks at pages alone."""
    if not holds:
        raise sqlite3.DatabaseError(f"{what} cannot be what was saved")


def _wall(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < _MOST_SECONDS


def _objective(slo: object, definition: object, ratio: object, days: object) -> bool:
    if not (isinstance(slo, str) and isinstance(definition, str)):
        return False
    limit = definition.partition("<=")[2]
    try:
        readable = not limit or isfinite(float(limit))
    except ValueError:
        return False
    return readable and isinstance(ratio, float) and 0 < ratio < 1 and days in (0, *WINDOWS_DAYS)


def _bucket(target: object, slo: object, tier: object, start: object, *counts: object) -> bool:
    if not (isinstance(target, str) and isinstance(slo, str) and tier in (FINE, HOUR) and isinstance(start, int)):
        return False
    numbers = [float(count) for count in counts if isinstance(count, int | float)]
    if len(numbers) != len(counts) or not all(0 <= number <= _MOST_EVENTS for number in numbers):
        return False
    events, low, high, _ = numbers
    return 0 <= start < _MOST_SECONDS and low <= high <= events
