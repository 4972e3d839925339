"""One target's way from its sources to a report: fetch, decode, step. The only place where sources and core meet."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ufwatch.catalogue import WINDOW_SECONDS
from ufwatch.clock import Clock
from ufwatch.config import TargetConfig
from ufwatch.core import target as core
from ufwatch.core.export import availability, target_samples
from ufwatch.core.extras import plugin_totals, process_readings, process_samples
from ufwatch.core.signals import LOST_BATCHES, MISSING_BATCHES
from ufwatch.core.sources import Life, ScrapeCounts, life_samples, scrape_samples
from ufwatch.core.target import EngineTotals, Seen, TargetReport
from ufwatch.decode.layout import Layouts, PageReader
from ufwatch.decode.textfile import TextfileSnapshot
from ufwatch.decode.vllm import VllmPage, decode
from ufwatch.model import Health, Reading, Reason, Samples
from ufwatch.sources.fetch import Fetched

_LOG = logging.getLogger("ufwatch.target")
_UNSEEN = Health(up=False, reason=Reason.WARMING_UP)
MISSED_BEFORE_GONE = 3


class Page(Protocol):
    """Where a target's page comes from: a scrape, or a replay."""

    async def poll(self, deadline_seconds: float) -> Fetched: ...


class Texts(Protocol):
    async def poll(self) -> TextfileSnapshot: ...


class KvCounts(Protocol):
    """What the KV-event source knows without waiting."""

    @property
    def health(self) -> Health: ...

    @property
    def evictions_by_rank(self) -> Mapping[int, float]: ...

    @property
    def lost_batches(self) -> int: ...

    @property
    def missing_batches(self) -> int: ...


class Judge(Protocol):
    """Counts what a target showed, for longer than a window, and gives the samples of that."""

    def scraped(self, report: TargetReport, texts: TextfileSnapshot | None, at_seconds: float) -> None: ...

    def samples(self, model_name: str) -> Samples: ...


class KvEvents(Protocol):
    def snapshot(self) -> KvCounts: ...


class Target:
    """A target and all that is remembered of it. ``cycle`` is called once per interval, never twice at a time."""

    def __init__(
        self,
        config: TargetConfig,
        *,
        page: Page,
        clock: Clock,
        layouts: Layouts,
        interval_seconds: float,
        texts: Texts | None = None,
        kv_events: KvEvents | None = None,
        window_seconds: float | None = WINDOW_SECONDS,
        judges: Sequence[Judge] = (),
    ) -> None:
        self.config = config
        self._judges = tuple(judges)
        self.report: TargetReport | None = None
        self.process_readings: tuple[Reading, ...] = process_readings(None)
        self._page, self._texts, self._kv_events, self._clock = page, texts, kv_events, clock
        self._reader = PageReader(layouts)
        now = clock.monotonic()
        self._state = core.begin(config, now, interval_seconds=interval_seconds, window_seconds=window_seconds)
        self._counts = ScrapeCounts()
        self._texts_missed = 0
        self._text_snapshot: TextfileSnapshot | None = None
        self.lives: dict[str, Life] = {"vllm": Life(now, _UNSEEN)}
        if texts is not None:
            self.lives["textfile"] = Life(now, _UNSEEN)
        if kv_events is not None:
            self.lives["kv_events"] = Life(now, _UNSEEN)

    async def cycle(self, deadline_seconds: float, device_over: bool | None = None) -> TargetReport:
        """Reads every source of the target once and returns what that shows. Raises nothing but CancelledError."""
        scrape = await self._page.poll(deadline_seconds)
        page, health, faults = self._decode(scrape)
        self._counts = self._counts.add(health, seconds=scrape.seconds, wire_bytes=scrape.wire_bytes, faults=faults)
        self._note("vllm", health, scrape.at_seconds)
        extra = await self._extra()
        seen = Seen(
            at_seconds=scrape.at_seconds,
            health=health,
            wall_seconds=self._clock.wall(),
            page=page,
            extra=extra,
            device_over=device_over,
        )
        before = self.report
        self._state, self.report = core.step(self._state, seen)
        _log_changes(before, self.report)
        for judge in self._judges:
            judge.scraped(self.report, self._text_snapshot, scrape.at_seconds)
        return self.report

    @property
    def told_absent(self) -> Mapping[str, str]:
        """What the exporters inside the server say they cannot give, by metric, and why."""
        return self._text_snapshot.absent if self._text_snapshot is not None else {}

    def awaits_publisher(self) -> bool:
        """Whether KV events are configured and their publisher is not connected (yet)."""
        return self._kv_events is not None and not self._kv_events.snapshot().health.up

    def samples(self, sm_utilization: Reading) -> Samples:
        """The target's part of the page; ``sm_utilization`` is the best reading among its cards."""
        if self.report is None:
            return life_samples(self.config.name, self.lives, self._clock.monotonic())
        best = {reading.signal: reading for reading in reversed(self.process_readings)}
        best["sm_utilization"] = sm_utilization
        samples = target_samples(self.report)
        if self._text_snapshot is not None and self._texts_missed < MISSED_BEFORE_GONE:
            name = self.report.model_name
            samples += process_samples(self.config.name, name, self._text_snapshot, self.process_readings)
        for judge in self._judges:
            samples += judge.samples(self.report.model_name)
        samples += availability(self.report, best)
        samples += life_samples(self.config.name, self.lives, self._clock.monotonic())
        samples += scrape_samples(self.config.name, self._counts)
        return samples

    def readings(self) -> tuple[Reading, ...]:
        """Every reading of the target but those of its cards, engines in order."""
        engines = self.report.engines if self.report is not None else ()
        return (*self.process_readings, *(reading for engine in engines for reading in engine.readings))

    def _decode(self, scrape: Fetched) -> tuple[VllmPage | None, Health, int]:
        if scrape.body is None:
            return None, scrape.health, 0
        try:
            layout, values = self._reader.read(scrape.body)
            return decode(layout, values), scrape.health, layout.faults
        except (ValueError, ArithmeticError) as error:
            # No page may take the target's own series, such as its state, off ours.
            detail = f"the page cannot be taken apart: {error}"
            return None, Health(up=False, reason=Reason.CONTENT, detail=detail), 1

    async def _extra(self) -> dict[str, EngineTotals]:
        extra: dict[str, EngineTotals] = {}
        if self._texts is not None:
            snapshot = await self._texts.poll()
            now = self._clock.monotonic()
            self._note("textfile", snapshot.health, now)
            if snapshot.health.up and self._texts_missed >= MISSED_BEFORE_GONE:
                # A series that comes back shows what it had, a new one 0: only then is its growth seen, one look later.
                had = self._text_snapshot.totals if self._text_snapshot is not None else {}
                snapshot = replace(snapshot, totals={key: had.get(key, 0.0) for key in snapshot.totals})
            self._text_snapshot = snapshot
            self._texts_missed = 0 if snapshot.health.up else self._texts_missed + 1
            self.process_readings = process_readings(snapshot)
            totals = plugin_totals(snapshot.totals, snapshot.absolute)
            if snapshot.health.up and totals:
                extra["plugin"] = totals
        if self._kv_events is not None:
            counts = self._kv_events.snapshot()
            self._note("kv_events", counts.health, self._clock.monotonic())
            if counts.health.up:
                losses = {LOST_BATCHES: float(counts.lost_batches), MISSING_BATCHES: float(counts.missing_batches)}
                extra["kv_events"] = {
                    str(rank): {"kv_evictions_total": removed, **losses}
                    for rank, removed in counts.evictions_by_rank.items()
                }
        return extra

    def _note(self, source: str, health: Health, at_seconds: float) -> None:
        """Keeps the source's health, and logs a change of it once."""
        life = self.lives[source]
        if life.health.up != health.up or (not health.up and life.health.reason is not health.reason):
            fields = {"target": self.config.name, "source": source}
            if health.up:
                _LOG.info("source up", extra={"fields": fields})
            else:
                reason = health.reason.value if health.reason is not None else ""
                _LOG.warning("source down", extra={"fields": {**fields, "reason": reason, "detail": health.detail}})
        self.lives[source] = life.seen(health, at_seconds)


def _log_changes(before: TargetReport | None, now: TargetReport) -> None:
    if before is None or before.state is not now.state:
        state = now.state.value if now.state is not None else "unknown"
        was = before.state.value if before is not None and before.state is not None else "unknown"
        _LOG.info("state", extra={"fields": {"target": now.name, "state": state, "before": was}})
    if before is None:
        return
    _log_source_changes(before, now)
    for kind, was_open, is_open, decided in (
        ("kv", before.kv_breaker.open, now.kv_breaker.open, now.kv_breaker.decided),
        ("device", before.device_breaker.open, now.device_breaker.open, now.device_breaker.decided),
    ):
        if was_open != is_open and decided:
            text = "memory breaker opened" if is_open else "memory breaker closed"
            _LOG.warning(text, extra={"fields": {"target": now.name, "kind": kind}})


def _log_source_changes(before: TargetReport, now: TargetReport) -> None:
    if _sources(before) == _sources(now):
        return
    sources = {(e.engine, r.signal, r.labels): r.source for e in before.engines for r in e.readings if r.source}
    for engine in now.engines:
        for reading in engine.readings:
            old = sources.get((engine.engine, reading.signal, reading.labels))
            if reading.source is not None and old is not None and old != reading.source:
                fields = {"target": now.name, "engine": engine.engine, "signal": reading.signal}
                _LOG.info("source changed", extra={"fields": {**fields, "from": old, "to": reading.source}})


def _sources(report: TargetReport) -> list[str | None]:
    return [reading.source for engine in report.engines for reading in engine.readings]
