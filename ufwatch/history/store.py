"""What was learned, on disk, in one SQLite file of its own (:mod:`ufwatch.statefile`).

Apart from the error budgets: damage to either costs only that one, ``ufwatch slo`` reads budgets alone, and what was
learned can be thrown away by removing a file. What a save writes is absolute, so one that is repeated changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from array import array
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from ufwatch.core.ageing import VALUES, WIDTH, Reference, Sample
from ufwatch.core.baseline import HourCount
from ufwatch.statefile import StateFile

_LOG = logging.getLogger("ufwatch.history")
FILE = "history.sqlite"
RESET = "reset-ageing"
"""A file of this name makes every card's references begin anew, ``reset-ageing-UUID`` those of one card."""
JOINT = "+"
"""Between the UUIDs of cards that work on one engine's steps together."""
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS hour(
  target TEXT, hour INTEGER, lookups REAL, misses REAL, PRIMARY KEY(target, hour)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reference(
  cards TEXT, engine TEXT, cell TEXT, born REAL, closed INTEGER, sums BLOB,
  PRIMARY KEY(cards, engine, cell)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stretch(
  cards TEXT, at REAL, engine TEXT, cell TEXT, place BLOB, PRIMARY KEY(cards, at)) WITHOUT ROWID;
"""


class HourRow(NamedTuple):
    """One hour of one target."""

    target: str
    counted: HourCount


class ReferenceRow(NamedTuple):
    """One cell of one set of cards."""

    cards: str
    engine: str
    cell: str
    born: float
    closed: bool
    sums: bytes


class StretchRow(NamedTuple):
    """One stretch of one set of cards."""

    cards: str
    sample: Sample


class Batch(NamedTuple):
    """What one transaction writes, and the first and last of the hours and of the stretches that it keeps."""

    number: int = 0
    """Batches are numbered: one that a slow disk held up must not undo a later one."""
    hours: tuple[HourRow, ...] = ()
    references: tuple[ReferenceRow, ...] = ()
    stretches: tuple[StretchRow, ...] = ()
    gone: tuple[tuple[str, str], ...] = ()
    """Cards and engine whose references are forgotten."""
    kept_hours: tuple[int, int] | None = None
    kept_stretches: tuple[float, float] | None = None


class Takes(NamedTuple):
    """What is given each row that is kept."""

    hour: Callable[[HourRow], None]
    reference: Callable[[str, tuple[str, str, Reference]], None]
    stretch: Callable[[StretchRow], None]


class Store(StateFile):
    """What one directory holds. Its lock is its own, ``history.lock``."""

    def __init__(self, directory: Path, moved_to: str = "corrupt") -> None:
        super().__init__(directory / FILE, holds="history", schema=_SCHEMA, version=_VERSION, moved_to=moved_to)
        self._written = 0
        self._obeyed: set[Path] = set()
        """Resets that were made and whose files could not be removed."""

    def load(self, takes: Takes) -> None:
        """Hands every row to ``takes``, hours in their order. Raises StoreError.

        StoreDamagedError: the file was unsound and is out of the way; what was given of it is to be forgotten.
        """
        with self._busy:
            self._checked(lambda: self._load(takes))

    def save(self, batch: Batch) -> frozenset[str]:
        """Writes all of ``batch`` or nothing, and returns the cards whose references were asked to begin anew.

        Raises StoreError.
        """
        with self._busy:
            if batch.number <= self._written:
                return frozenset()
            asked = self._asked()
            reset = self._checked(lambda: self._save(batch, asked))
            self._written = batch.number
            for path in asked:
                if path.name != RESET and not any(_card(path) in cards.split(JOINT) for cards in reset):
                    _LOG.warning("no such card is known, nothing begins anew", extra={"fields": {"file": path.name}})
                with contextlib.suppress(OSError):
                    path.unlink()
            self._obeyed |= {path for path in asked if path.exists()}
            return reset

    def _load(self, takes: Takes) -> None:
        database = self._sound()
        for target, *count in database.execute("SELECT target, hour, lookups, misses FROM hour ORDER BY hour"):
            _must(isinstance(target, str) and isinstance(count[0], int) and all(map(_count, count)), "an hour")
            takes.hour(HourRow(target, HourCount(*count)))
        for cards, engine, cell, born, closed, sums in database.execute("SELECT * FROM reference"):
            reference = Reference(born, closed=bool(closed), sums=_numbers(sums, WIDTH))
            _must(_count(born) and reference.sums[0] >= 1, "a reference")
            takes.reference(cards, (engine, cell, reference))
        for cards, at, engine, cell, place in database.execute("SELECT * FROM stretch ORDER BY at"):
            _must(_count(at), "a stretch")
            takes.stretch(StretchRow(cards, Sample(at, engine, cell, tuple(_numbers(place, VALUES)))))

    def _asked(self) -> list[Path]:
        """The files that ask for a reset; one that is gone may ask again."""
        self._obeyed = {path for path in self._obeyed if path.exists()}
        found = self.path.parent.glob(f"{RESET}*")
        ours = (path for path in found if path.name == RESET or _card(path))
        return [path for path in ours if path not in self._obeyed]

    def _save(self, batch: Batch, asked: Sequence[Path]) -> frozenset[str]:
        with self._transaction() as database:
            _write(database, batch)
            if not asked:
                return frozenset()
            names, every = {_card(path) for path in asked}, any(path.name == RESET for path in asked)
            known = [cards for (cards,) in database.execute("SELECT DISTINCT cards FROM reference")]
            reset = frozenset(cards for cards in known if every or names & set(cards.split(JOINT)))
            for table in ("reference", "stretch"):
                database.executemany(f"DELETE FROM {table} WHERE cards = ?", [(cards,) for cards in reset])
            return reset


def _card(path: Path) -> str | None:
    """The UUID that a file asks to begin anew; None for one that names none."""
    return path.name.removeprefix(f"{RESET}-") if path.name.startswith(f"{RESET}-") else None


def _must(holds: bool, what: str) -> None:
    """SQLite keeps whatever it is given, and its own check looks at pages alone."""
    if not holds:
        raise sqlite3.DatabaseError(f"{what} cannot be what was saved")


def _count(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value) and value >= 0


def _numbers(held: bytes, width: int) -> array[float]:
    numbers = array("d")
    try:
        numbers.frombytes(held)
    except (TypeError, ValueError) as error:
        raise sqlite3.DatabaseError(f"numbers cannot be read ({error})") from None
    _must(all(map(isfinite, numbers)), "numbers")
    if len(numbers) != width:
        raise sqlite3.DatabaseError(f"{len(numbers)} numbers where {width} belong")
    return numbers


def _write(database: sqlite3.Connection, batch: Batch) -> None:
    if batch.kept_hours is not None:
        database.execute("DELETE FROM hour WHERE hour NOT BETWEEN ? AND ?", batch.kept_hours)
    if batch.kept_stretches is not None:
        database.execute("DELETE FROM stretch WHERE at NOT BETWEEN ? AND ?", batch.kept_stretches)
    database.executemany("DELETE FROM reference WHERE cards = ? AND engine = ?", batch.gone)
    # A clock that went back over an hour's edge must not replace the hour by its last minutes.
    database.executemany(
        "INSERT INTO hour VALUES(?,?,?,?) ON CONFLICT DO UPDATE SET lookups = excluded.lookups, "
        "misses = excluded.misses WHERE excluded.lookups >= lookups",
        [(row.target, *row.counted) for row in batch.hours],
    )
    database.executemany("INSERT OR REPLACE INTO reference VALUES(?,?,?,?,?,?)", batch.references)
    database.executemany(
        "INSERT OR REPLACE INTO stretch VALUES(?,?,?,?,?)",
        [(cards, each.at, each.group, each.cell, array("d", each.values).tobytes()) for cards, each in batch.stretches],
    )
