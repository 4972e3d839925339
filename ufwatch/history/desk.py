"""What was learned of every target and card, and its way to disk: loaded once, saved every ten seconds in a thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from ufwatch.clock import Clock
from ufwatch.config import TargetConfig
from ufwatch.core.ageing import CURRENT_SECONDS, Ageing, Reference, Sample
from ufwatch.core.baseline import DAYS, HOUR_SECONDS, HourCount
from ufwatch.core.budget import JUMP_SECONDS, LedgerTime, ledger_step
from ufwatch.core.gpu import TargetGpus
from ufwatch.core.target import TargetReport
from ufwatch.decode.gpu import CardId, GpuSnapshot
from ufwatch.errors import SourceError
from ufwatch.history.cards import CardBook
from ufwatch.history.misses import MissBook
from ufwatch.history.store import Batch, HourRow, ReferenceRow, Store, StretchRow, Takes
from ufwatch.keeper import Keeper
from ufwatch.model import Reading, Samples
from ufwatch.statefile import StoreDamagedError, StoreError, StoreTakenError

_LOG = logging.getLogger("ufwatch.history")
SAVE_SECONDS = 10.0
"""What a kill can take: the look-ups of so long and of the minute before, and a stretch of a minute."""
_LOOK_SECONDS = 1.0
_TEND_SECONDS = 60.0
_ASK_AGAIN_SECONDS = 300.0
_KEPT_HOURS = 24 * (DAYS + 1)
_STEADY_SECONDS = 6 * 3600.0
"""How long the clock must not have jumped before hours are thrown away by it: one that is wrong would take them all."""

Identify = Callable[[TargetConfig], Awaitable[str | None]]
"""What an engine's process says it is: version and flags as one text, None where it does not say."""


class _Unloaded:
    """What is read from disk, until all of it is there."""

    def __init__(self) -> None:
        self.hours: dict[str, list[HourCount]] = {}
        self.references: dict[str, list[tuple[str, str, Reference]]] = {}
        self.stretches: dict[str, list[Sample]] = {}

    def takes(self) -> Takes:
        return Takes(
            lambda row: self.hours.setdefault(row.target, []).append(row.counted),
            lambda cards, row: self.references.setdefault(cards, []).append(row),
            lambda row: self.stretches.setdefault(row.cards, []).append(row.sample),
        )


class History:
    """For the event loop's thread only. Without a ``store`` what is learned lives as long as the process.

    ``identify`` is asked once for each process of an engine that has cards to itself.
    """

    def __init__(self, *, clock: Clock, identify: Identify, store: Store | None = None) -> None:
        self.misses: dict[str, MissBook] = {}
        """Every target ever known, so that one that comes back finds its hours."""
        self.cards = CardBook(self.now)
        self._clock, self._identify, self._store = clock, identify, store
        self._time = LedgerTime(clock.wall() - clock.monotonic())
        self._configs: dict[str, TargetConfig] = {}
        self._loaded = store is None
        self._keeper = Keeper("history_store", "learned baselines", _LOG, clock)
        self._batches = 0
        self._tended = self._asked = self._steady_since = clock.monotonic()

    def now(self) -> float:
        """The Unix time that the books go by (see :func:`~ufwatch.core.budget.ledger_step`)."""
        monotonic, before = self._clock.monotonic(), self._time.offset
        self._time, _ = ledger_step(self._time, monotonic, self._clock.wall())
        if abs(self._time.offset - before) > JUMP_SECONDS:
            self._steady_since = monotonic
        return monotonic + self._time.offset

    async def start(self) -> None:
        """Loads what was kept. Raises SourceError when another agent keeps its history in the same place."""
        if self._store is None:
            return
        try:
            await self._load(self._store)
        except StoreTakenError as error:
            self._store = None  # there is nothing to save to at the end either
            raise SourceError(f"{error}; give each its own --state-dir") from None
        except StoreError as error:
            self._keeper.failed(error)

    def open(self, config: TargetConfig) -> MissBook:
        """The book of a target that is looked at from now on, with its first page still to come."""
        self._configs[config.name] = config
        book = self._book(config.name)
        book.new_process()
        book.expected = config.expected_miss
        return book

    def close(self, name: str) -> None:
        """The target is not looked at any more."""
        self._configs.pop(name, None)

    def mapped(self, mapped: Mapping[str, TargetGpus], models: Mapping[CardId, str]) -> None:
        """Which cards each target has, and the names of the cards' models."""
        self.cards.mapped(mapped, models)

    def scraped(self, report: TargetReport, at_seconds: float) -> None:
        """Takes one look at a target, for its cards."""
        self.cards.scraped(report, at_seconds)

    def polled(self, snapshot: GpuSnapshot) -> Samples:
        """Takes one poll of the cards, and returns the series of their drifts."""
        self.cards.polled(snapshot)
        return self.cards.samples()

    async def run(self) -> None:
        """Asks for versions, and saves every ten seconds, until cancelled."""
        waited = 0.0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.tend()
            waited += _LOOK_SECONDS
            if waited >= SAVE_SECONDS:
                waited = 0.0
                await self.save()

    async def tend(self) -> None:
        """Asks engines for their versions where that is due, and lets go of what is not current any more."""
        for wanted in list(self.cards.wanted()):
            config = self._configs.get(wanted.target)
            if config is not None:
                self.cards.identified(wanted, await self._identify(config))
        now = self._clock.monotonic()
        if now - self._tended >= _TEND_SECONDS:
            self._tended = now
            self.cards.evaluate()
            if self._store is None:
                self._batch()  # what there is to be saved is saved nowhere, and must not pile up
        if now - self._asked >= _ASK_AGAIN_SECONDS:
            self._asked = now
            self.cards.ask_again()

    async def save(self) -> None:
        """One save, all or nothing; what failed is told once and saved with the next."""
        if self._store is None:
            return
        store = self._store
        try:
            if not self._loaded:
                await self._load(store)
            batch = self._batch()
            try:
                reset = await self._keeper.answered(lambda: store.save(batch))
            except BaseException:
                self._put_back(batch)
                raise
        except StoreError as error:
            if isinstance(error, StoreDamagedError):
                for book in self.misses.values():
                    book.all_unsaved()
                for ageing in self.cards.sets.values():
                    ageing.all_dirty()
            self._keeper.failed(error)
        else:
            self._keeper.saved(store.path)
            if reset:
                _LOG.info("ageing begins anew, as asked", extra={"fields": {"cards": ", ".join(sorted(reset))}})
                self.cards.forget(reset)

    async def finish(self) -> None:
        """The last save, then the file is let go of."""
        if self._store is not None:
            await self.save()
            self._store.close()

    def samples(self) -> Samples:
        """Whether the store takes what is saved."""
        return Samples() if self._store is None else self._keeper.samples()

    def readings(self, target: str) -> tuple[Reading, ...]:
        """The baseline of a target and the drift of its cards, or why they are not known."""
        book = self.misses.get(target)
        return (*((book.reading(),) if book is not None else ()), *self.cards.readings(target))

    def _book(self, name: str) -> MissBook:
        book = self.misses.get(name)
        if book is None:
            book = self.misses[name] = MissBook(name, self.now)
        return book

    async def _load(self, store: Store) -> None:
        """Takes over what was kept; what has been learned since the start stays on top of it."""
        found = _Unloaded()
        try:
            await self._keeper.answered(lambda: store.load(found.takes()))
        except StoreDamagedError as error:
            _LOG.error(
                "the learned baselines could not be read and begin anew", extra={"fields": {"error": str(error)}}
            )
            found = _Unloaded()
            await self._keeper.answered(lambda: store.load(found.takes()))
        self._loaded = True
        now = self.now()
        current = int(now // HOUR_SECONDS)
        for name, hours in found.hours.items():
            book = self._book(name)
            for hour in hours:
                # Hours dated ahead are of a clock that was wrong, then or now: they stay on disk and wait.
                if current - _KEPT_HOURS <= hour.hour <= current:
                    book.hours.put(hour)
            book.refresh(now)
        for cards in {*found.references, *found.stretches}:
            ageing = self.cards.sets.setdefault(cards, Ageing())
            ageing.merge(found.references.get(cards, ()), found.stretches.get(cards, ()))
            ageing.evaluate(now)

    def _batch(self) -> Batch:
        """Everything that is not on disk as it is here; from now on it counts as if it were."""
        self._batches += 1
        now = self.now()
        hours = [HourRow(name, each) for name, book in self.misses.items() for each in book.unsaved.values()]
        references, stretches, gone = [], [], []
        for cards, ageing in self.cards.sets.items():
            gone += [(cards, engine) for engine in ageing.gone]
            for engine, cell in ageing.dirty:
                kept = ageing.cells[engine, cell]
                references.append(ReferenceRow(cards, engine, cell, kept.born, kept.closed, kept.sums.tobytes()))
            stretches += [StretchRow(cards, each) for each in ageing.fresh]
            ageing.gone, ageing.dirty, ageing.fresh = set(), set(), []
        for book in self.misses.values():
            book.unsaved = {}
        current = int(now // HOUR_SECONDS)
        steady = self._clock.monotonic() - self._steady_since >= _STEADY_SECONDS
        return Batch(
            number=self._batches,
            hours=tuple(hours),
            references=tuple(references),
            stretches=tuple(stretches),
            gone=tuple(gone),
            kept_hours=(current - _KEPT_HOURS, current) if hours and steady else None,
            kept_stretches=(now - CURRENT_SECONDS, now) if stretches else None,
        )

    def _put_back(self, batch: Batch) -> None:
        """A batch that was not written is to be written again, with what has changed since."""
        for row in batch.hours:
            self.misses[row.target].unsaved.setdefault(row.counted.hour, row.counted)
        for cards, engine in batch.gone:
            self.cards.sets[cards].gone.add(engine)
        for reference in batch.references:
            ageing = self.cards.sets[reference.cards]
            if (reference.engine, reference.cell) in ageing.cells:
                ageing.dirty.add((reference.engine, reference.cell))
        for stretch in batch.stretches:
            self.cards.sets[stretch.cards].fresh.append(stretch.sample)
