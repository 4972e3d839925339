"""All targets' books, and their way to disk: loaded once, saved every ten seconds in a thread, never waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ufwatch.clock import Clock
from ufwatch.config import Objective
from ufwatch.core.budget import FINE_BUCKETS, FINE_SECONDS, JUMP_SECONDS, LedgerTime, ledger_step
from ufwatch.core.sources import Life
from ufwatch.core.standing import standing
from ufwatch.errors import SourceError
from ufwatch.keeper import Keeper
from ufwatch.model import Samples
from ufwatch.slo.book import Book
from ufwatch.slo.store import Batch, Last, Loaded, Row, Saved, Store
from ufwatch.statefile import StoreDamagedError, StoreError, StoreTakenError

_LOG = logging.getLogger("ufwatch.slo")
SAVE_SECONDS = 10.0
"""What a kill can take: the slices and probes of so long, which are then unknown. Requests are found again."""
_LOOK_SECONDS = 0.5
_KEPT_HOURS = 31 * 24
_FORGET_EVERY = 360
"""Saves between two looks for buckets that are too old."""


class Desk:
    """The objectives of every target. For the event loop's thread only.

    Without a ``store`` the budgets live as long as the process.
    """

    def __init__(
        self, objectives: Sequence[Objective], *, clock: Clock, interval_seconds: float, store: Store | None = None
    ) -> None:
        self.objectives = tuple(objectives)
        self.books: dict[str, Book] = {}
        """Every target ever known, so that one that comes back finds its budget."""
        self._clock, self._interval_seconds, self._store = clock, interval_seconds, store
        self._time = LedgerTime(clock.wall() - clock.monotonic())
        self._open: set[str] = set()
        self._away: dict[str, float] = {}
        """Since when a target that has been here is not looked at any more."""
        self._loaded = store is None
        self._keeper = Keeper("slo_store", "error budgets", _LOG, clock)
        self._saves = self._batches = 0
        self._forget_after: int | None = None

    def now(self) -> float:
        """The Unix time that the books go by (see :func:`~ufwatch.core.budget.ledger_step`)."""
        self._time, back = ledger_step(self._time, self._clock.monotonic(), self._clock.wall())
        now = self._clock.monotonic() + self._time.offset
        if back:
            _LOG.warning("the clock was set back; what was dated ahead of it is counted as of now")
            for book in self.books.values():
                book.fold(now)
            self._away = {name: min(since, now) for name, since in self._away.items()}
            self._forget_after = int(now)
        return now

    async def start(self) -> None:
        """Loads what was kept. Raises SourceError when another agent keeps its budgets in the same place."""
        if self._store is None:
            _LOG.info("error budgets are not persisted; give --state-dir to keep them over restarts")
            return
        try:
            await self._load(self._store)
        except StoreTakenError as error:
            self._store = None  # there is nothing to save to at the end either
            raise SourceError(f"{error}; give each its own --state-dir") from None
        except StoreError as error:
            self._keeper.failed(error)

    def open(self, name: str) -> Book:
        """The book of a target that is looked at from now on, with its first page still to come."""
        now = self.now()
        book = self.books.get(name)
        if book is None:
            book = self.books[name] = self._book(name)
        else:
            book.new_process()
            since = self._away.pop(name, None)
            if since is not None:
                book.missed(since, now)
        self._open.add(name)
        return book

    def close(self, name: str) -> None:
        """The target is not looked at any more."""
        if name in self._open:
            self._open.discard(name)
            self._away[name] = self.now()

    async def run(self) -> None:
        """Saves every ten seconds, and soon after an engine's first page, until cancelled.

        From that page on nothing is lost: without it a kill in the first ten seconds would leave nothing to go on from.
        """
        waited = 0.0
        while self._store is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            waited += _LOOK_SECONDS
            if waited >= SAVE_SECONDS or any(book.begun for book in self.books.values()):
                waited = 0.0
                await self.save()

    async def save(self) -> None:
        """One save, all or nothing; what failed is told once and saved with the next."""
        if self._store is None:
            return
        store = self._store
        try:
            if not self._loaded:
                await self._load(store)
            now = self.now()  # first: it may find that the clock was set back
            dirty = {name: book.dirty for name, book in self.books.items() if book.dirty}
            batch = self._batch(now, dirty)
            for name in dirty:
                self.books[name].dirty = set()
            for book in self.books.values():
                book.begun = False
            try:
                await self._keeper.answered(lambda: store.save(batch))
            except BaseException:
                for name, keys in dirty.items():
                    self.books[name].dirty |= keys
                raise
        except StoreError as error:
            if isinstance(error, StoreDamagedError):
                for book in self.books.values():
                    book.all_dirty()
            self._keeper.failed(error)
        else:
            self._keeper.saved(store.path)
            self._saves += 1
            if self._forget_after == batch.forget_after:
                self._forget_after = None

    async def finish(self) -> None:
        """The last save, then the file is let go of."""
        if self._store is not None:
            await self.save()
            self._store.close()

    def samples(self) -> Samples:
        """The objectives, and whether the store takes what is saved."""
        samples = Samples()
        for objective in self.objectives:
            samples.add("slo_objective_ratio", (("slo", objective.id),), objective.ratio)
        if self._store is not None:
            samples += self._keeper.samples()
        return samples

    def report(self) -> dict[str, Any]:
        """The JSON object of ``/api/v1/slo``: where every objective of every target stands."""
        now = self.now()
        targets = [
            {
                "target": name,
                "unrecovered": book.unrecovered,
                "slos": [standing(o, a, now) for o, a in zip(self.objectives, book.accounts, strict=True)],
            }
            for name, book in self.books.items()
            if name in self._open
        ]
        return {"at": now, "persisted": self._store is not None and self._life.health.up, "targets": targets}

    @property
    def _life(self) -> Life:
        return self._keeper.life

    def _book(self, name: str) -> Book:
        return Book(name, self.objectives, self._interval_seconds, self.now)

    async def _load(self, store: Store) -> None:
        """Takes over what was kept; what has been counted since the start stays on top of it."""
        books: dict[str, Book] = {}
        places = {o.id: place for place, o in enumerate(self.objectives)}

        def take(row: Row) -> None:
            place = places.get(row.slo)
            if place is not None:
                if row.target not in books:  # nobody else knows of these books yet
                    books[row.target] = self._book(row.target)
                books[row.target].put(place, row)

        try:
            loaded = await self._keeper.answered(lambda: store.load(take))
        except StoreDamagedError as error:
            _LOG.error("the error budgets could not be read and begin anew", extra={"fields": {"error": str(error)}})
            books.clear()
            loaded = await self._keeper.answered(lambda: store.load(take))
        self._drop_redefined(loaded, books)
        self._loaded = True
        self._doubt(max((last.wall for last in loaded.last.values()), default=0.0))
        now = self.now()
        for name in {*books, *loaded.last}:
            self._adopt(name, books.get(name) or self._book(name), loaded.last.get(name), now)

    def _doubt(self, saved_wall: float) -> None:
        """A clock behind the last save is wrong, or was wrong then. Which, time will tell: a machine that boots without
        a battery has its time in a minute, and a month of events must not be dated by what it says until then."""
        monotonic = self._clock.monotonic()
        if saved_wall > self._clock.wall() + JUMP_SECONDS:
            _LOG.warning("the clock is behind the last save; budgets go on from there unless it stays so")
            self._time = LedgerTime(saved_wall - monotonic, monotonic)

    def _adopt(self, name: str, kept: Book, last: Last | None, now: float) -> None:
        book = self.books.get(name)
        if book is None:
            book = self.books[name] = kept
            book.last = last
        else:
            book.merge(kept)
        if any(ring.newest * ring.seconds > now for a in book.accounts for ring in (a.fine, a.hours)):
            _LOG.warning("budgets dated ahead of the clock are counted as of now", extra={"fields": {"target": name}})
            book.fold(now)
            self._forget_after = int(now)
        if last is not None:
            if name in self._open:
                book.missed(last.wall, now)
            else:
                self._away[name] = last.wall

    def _drop_redefined(self, loaded: Loaded, books: dict[str, Book]) -> None:
        """Counts under another definition are other counts: that budget begins anew."""
        before = {saved.slo: saved.definition for saved in loaded.objectives}
        for place, objective in enumerate(self.objectives):
            if before.get(objective.id, objective.definition) != objective.definition:
                fields = {"slo": objective.id, "was": before[objective.id], "is": objective.definition}
                _LOG.warning("the objective has changed, its budget begins anew", extra={"fields": fields})
                for name, book in books.items():
                    book.accounts[place] = self._book(name).accounts[place]

    def _batch(self, now: float, dirty: dict[str, set[tuple[int, int, int]]]) -> Batch:
        """Counts never go without the raw counters that they reach up to: that is what keeps an event from counting
        twice."""
        self._batches += 1
        return Batch(
            number=self._batches,
            rows=tuple(row for name, keys in dirty.items() for row in self.books[name].rows(keys)),
            last={name: self.books[name].kept(self._away.get(name, now)) for name in {*self._open, *dirty}},
            objectives=tuple(Saved(o.id, o.definition, o.ratio, o.window_days) for o in self.objectives),
            forget_before=self._too_old(now) if self._saves % _FORGET_EVERY == _FORGET_EVERY - 1 else None,
            forget_after=self._forget_after,
        )

    @staticmethod
    def _too_old(now: float) -> tuple[int, int]:
        return int(now) - (FINE_BUCKETS + 1) * FINE_SECONDS, int(now) - _KEPT_HOURS * 3600
