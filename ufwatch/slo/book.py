"""One target's objectives: its events counted look by look, its budgets, and what is to be saved of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ufwatch.config import Objective
from ufwatch.core import counting
from ufwatch.core.budget import Account, Ring, remaining
from ufwatch.core.counting import Asked, EngineCount, Exact, Tally
from ufwatch.core.objectives import AVAILABILITY, JITTER
from ufwatch.core.recovery import Raw, raw, recovered
from ufwatch.core.target import EngineReport, TargetReport
from ufwatch.decode.textfile import SeriesKey, TextfileSnapshot
from ufwatch.model import EngineState, Labels, Samples
from ufwatch.slo.store import FINE, HOUR, Last, Row
from ufwatch.sources.health import PROBE_SECONDS, Probe

_LOG = logging.getLogger("ufwatch.slo")
_PLUGIN = {
    "ttft": ("ttft_requests_total", "ttft_over_total"),
    JITTER: ("jitter_slices_total", "jitter_slices_over_total"),
}
"""The families in which the plugin counts an objective's events and those over its limit."""
_SQUARES = ("token_intervals_total", "token_interval_seconds_total", "token_interval_squared_total")


class Book:
    """Everything counted for one target. For the event loop's thread only.

    ``totals`` begin at 0 with the process; ``accounts`` outlive it. ``last`` is what was saved of the target before.
    ``now`` gives the Unix time that the books go by.
    """

    def __init__(
        self, name: str, objectives: Sequence[Objective], interval_seconds: float, now: Callable[[], float]
    ) -> None:
        self.name = name
        self._now = now
        self.objectives = tuple(objectives)
        self.totals = [Tally() for _ in self.objectives]
        self.accounts = [Account(o.window_days) for o in self.objectives]
        self.last: Last | None = None
        self.unrecovered = 0
        """Engines whose requests of the time without an agent could not be recovered."""
        self.begun = False
        """Whether an engine has been seen for the first time since the last save."""
        self.dirty: set[tuple[int, int, int]] = set()
        """Objective, tier and start of each bucket that is not on disk as it is here."""
        self._interval_seconds = interval_seconds
        self._engines: dict[str, EngineCount] = {}
        self._tracked: dict[str, EngineReport] = {}
        self._report: TargetReport | None = None
        self._read: TargetReport | None = None
        """The last that came of a page."""
        self._places = {o.metric: n for n, o in enumerate(self.objectives)}
        self._jitter = [n for n, o in enumerate(self.objectives) if o.metric == JITTER]
        self._sliced = interval_seconds <= counting.SLICES_NEED_SECONDS

    @property
    def probes(self) -> bool:
        """Whether any objective needs the target's health to be asked for."""
        return AVAILABILITY in self._places

    def new_process(self) -> None:
        """The target's pages begin anew (its configuration changed): the next one is a first one."""
        self.last = self.kept(self._now()) if self.last is not None or self._tracked else None
        self._engines, self._tracked, self._report, self._read = {}, {}, None, None

    def scraped(self, report: TargetReport, texts: TextfileSnapshot | None, at_seconds: float) -> None:
        """Counts what one look at the target showed, at ``at_seconds`` of monotonic time."""
        self._report = report
        if report.up:
            self._read = report
        wall = self._now()
        for engine in report.engines:
            track = engine.track
            if track is None or not engine.fresh:
                continue
            state = self._engines.get(engine.engine)
            if state is None:
                self._recover(engine, wall)
                self.begun = True
                state = EngineCount()
            self._tracked[engine.engine] = engine
            state, grown = counting.requests(state, track, self.objectives)
            if texts is not None and texts.absolute:
                state = self._with_plugin(state, engine.engine, grown, texts)
            elif state.mixed:
                state = self._without_plugin(state, grown)
            if self._jitter and self._sliced:
                state = self._slices(state, engine, grown, at_seconds)
            self._engines[engine.engine] = state
            for place, tally in grown.items():
                self._count(place, tally, wall)

    def probed(self, probe: Probe) -> None:
        """Counts one health probe. Before the first look at the target nothing is known of its state."""
        wall = self._now()
        state = self._report.state if self._report is not None else EngineState.STARTING
        verdict = counting.probed(probe.status, probe.ours, state)
        for place, objective in enumerate(self.objectives):
            if objective.metric == AVAILABILITY:
                self._count(place, verdict, wall)

    def asked(self, request: Asked) -> None:
        """Counts a request of ours for the objectives that the target's page cannot answer, as with
        --disable-log-stats. For the others its histograms have counted the request already."""
        if self._read is None or self._report is None:
            return
        fresh = [self._engines[e.engine] for e in self._read.engines if e.fresh and e.engine in self._engines]
        answered = {edges.objective for count in fresh if count.plan is not None for edges in count.plan.edges}
        answered |= {place for count in fresh for place in count.mixed}
        wall = self._now()
        for place, objective in enumerate(self.objectives):
            if objective.metric in counting.ASKED and place not in answered:
                tally = counting.asked(request, objective, self._report.state)
                if tally != Tally():
                    self._count(place, tally, wall)

    def _count(self, place: int, tally: Tally, wall: float, *, recent: bool = True) -> None:
        account = self.accounts[place]
        if recent:
            self.totals[place] = self.totals[place].plus(tally)
            fine = account.fine.add(wall, tally)
            if fine is not None:
                self.dirty.add((place, FINE, fine))
        hour = account.hours.add(wall, tally)
        if hour is not None:
            self.dirty.add((place, HOUR, hour))

    def _recover(self, engine: EngineReport, wall: float) -> None:
        """Adds an engine's requests since the last save to the budget alone, when its first page is there."""
        assert engine.track is not None
        saved = self.last.engines.get(engine.engine) if self.last is not None else None
        if saved is None:
            return
        found = recovered(saved, engine.track, self.objectives)
        fields: dict[str, Any] = {"target": self.name, "engine": engine.engine}
        if isinstance(found, str):
            self.unrecovered += 1
            _LOG.warning(
                "requests of the time without an agent are not known", extra={"fields": {**fields, "why": found}}
            )
            return
        for place, tally in found.items():
            self._count(place, tally, wall, recent=False)
        if found:
            fields["requests"] = max(tally.events for tally in found.values())
            _LOG.info("requests of the time without an agent are in the budget", extra={"fields": fields})

    def missed(self, since_wall: float, wall: float) -> None:
        """Slices and probes between two times at which an agent looked are unknown, never good."""
        for place, objective in enumerate(self.objectives):
            each = {JITTER: counting.SLICE_SECONDS, AVAILABILITY: PROBE_SECONDS}.get(objective.metric)
            longest = 86400.0 * objective.window_days
            lost = min(wall - since_wall, longest) // each if each is not None else 0.0
            if lost > 0:
                self._count(place, Tally(unknown=lost), wall, recent=False)

    def _with_plugin(
        self, state: EngineCount, engine: str, grown: dict[int, Tally], texts: TextfileSnapshot
    ) -> EngineCount:
        mixed = dict(state.mixed)
        for place, all_of, over in _plugin_keys(engine, self.objectives):
            alive = all_of in texts.absolute and over in texts.absolute
            exact = Exact(texts.totals.get(all_of, 0.0), texts.totals.get(over, 0.0)) if alive else None
            self._mix(place, mixed, grown, exact)
        return state._replace(mixed=mixed)

    def _without_plugin(self, state: EngineCount, grown: dict[int, Tally]) -> EngineCount:
        mixed = dict(state.mixed)
        for place in list(mixed):
            self._mix(place, mixed, grown, None)
        return state._replace(mixed=mixed)

    @staticmethod
    def _mix(place: int, mixed: dict[int, counting.Mixed], grown: dict[int, Tally], exact: Exact | None) -> None:
        held, tally = counting.mixed(mixed.pop(place, None), grown.pop(place, Tally()), exact)
        if held is not None:
            mixed[place] = held
        if tally.events > 0:
            grown[place] = tally

    def _slices(
        self, state: EngineCount, engine: EngineReport, grown: dict[int, Tally], at_seconds: float
    ) -> EngineCount:
        """Judges slices of the page, or of the plugin's sums, where the plugin does not judge its own."""
        open_places = [place for place in self._jitter if place not in state.mixed]
        if not open_places:
            return state._replace(slice=None) if state.slice is not None else state
        extra = engine.given.extra.get("plugin")
        sums = [] if extra is None else [s for name in _SQUARES if (s := extra.last(name)) is not None]
        exact = (sums[0], sums[1], sums[2]) if len(sums) == 3 else None
        kept = state.slice
        for place in open_places:
            limit = self.objectives[place].threshold_seconds or 0.0
            kept, tally = counting.sliced(
                state.slice,
                engine.track,
                exact,
                limit,
                at_seconds,
                self._interval_seconds,
            )
            if tally != Tally():
                grown[place] = tally
        return state if kept is state.slice else state._replace(slice=kept)

    def samples(self, model_name: str) -> Samples:
        """Every series of the target's objectives: counters from 0 on, the budget once there is an event."""
        samples, wall = Samples(), self._now()
        numbers: list[float] = []
        for total in self.totals:
            numbers += total[:3]
        samples.extend(_counter_series(self.name, model_name, self.objectives), numbers)
        for place, objective in enumerate(self.objectives):
            hours = self.accounts[place].hours
            hours.advance(wall)
            left = remaining(hours.total, objective.ratio)
            if left is not None:
                samples.extend(_budget_series(self.name, model_name, objective.id), left)
        return samples

    def kept(self, wall: float) -> Last:
        """The target as it is now, for the disk: engines not seen yet stay as they were saved."""
        engines: dict[str, Raw] = dict(self.last.engines) if self.last is not None else {}
        for name, engine in self._tracked.items():
            if engine.track is not None:
                engines[name] = raw(engine.track, self.objectives)
        return Last(wall, engines)

    def rows(self, keys: set[tuple[int, int, int]]) -> list[Row]:
        """These buckets as they are now."""
        return [
            Row(self.name, self.objectives[place].id, tier, start, self._ring(place, tier).at(start))
            for place, tier, start in keys
        ]

    def put(self, place: int, row: Row) -> None:
        """Takes a bucket that was kept on disk."""
        self._ring(place, row.tier).add(row.start, row.tally)

    def merge(self, kept: Book) -> None:
        """Adds what another book of the same target holds, which was on disk and could not be read yet."""
        for place, account in enumerate(kept.accounts):
            for tier, ring in ((FINE, account.fine), (HOUR, account.hours)):
                for start, tally in ring.cells():
                    if self._ring(place, tier).add(start, tally) is not None:
                        self.dirty.add((place, tier, start))

    def fold(self, wall: float) -> None:
        """After the clock was set back: what lies ahead of it is moved to now, and everything is to be saved again."""
        for account in self.accounts:
            for ring in (account.fine, account.hours):
                ring.fold(wall)
        self.all_dirty()

    def all_dirty(self) -> None:
        """Every bucket is to be saved again."""
        for place, account in enumerate(self.accounts):
            for tier, ring in ((FINE, account.fine), (HOUR, account.hours)):
                self.dirty |= {(place, tier, start) for start, _ in ring.cells()}

    def _ring(self, place: int, tier: int) -> Ring:
        account = self.accounts[place]
        return account.fine if tier == FINE else account.hours


@lru_cache(maxsize=4096)
def _counter_series(target: str, model: str, objectives: tuple[Objective, ...]) -> tuple[tuple[str, Labels], ...]:
    base: Labels = (("target", target), ("model_name", model))
    series: list[tuple[str, Labels]] = []
    for each in objectives:
        labels: Labels = (*base, ("slo", each.id))
        series.append(("slo_events_total", labels))
        series += [("slo_bad_events_total", (*labels, ("bound", bound))) for bound in ("low", "high")]
    return tuple(series)


@lru_cache(maxsize=16384)
def _budget_series(target: str, model: str, slo: str) -> tuple[tuple[str, Labels], ...]:
    base: Labels = (("target", target), ("model_name", model), ("slo", slo))
    return tuple(("slo_error_budget_remaining_ratio", (*base, ("bound", bound))) for bound in ("low", "high"))


@lru_cache(maxsize=1024)
def _plugin_keys(engine: str, objectives: tuple[Objective, ...]) -> tuple[tuple[int, SeriesKey, SeriesKey], ...]:
    labels: Labels = (("engine", engine),)
    found = []
    for place, objective in enumerate(objectives):
        families, limit = _PLUGIN.get(objective.metric), objective.threshold_seconds
        if families is not None and limit is not None:
            over = (*labels, ("threshold_seconds", f"{limit:g}"))
            found.append((place, SeriesKey(families[0], labels), SeriesKey(families[1], over)))
    return tuple(found)
