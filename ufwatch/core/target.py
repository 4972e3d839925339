"""One target: its engines, its other sources, its breaker, stepped once per scrape.

``step(state, seen) -> (state, report)`` is the whole agent for one target; the pipeline only brings it what the sources
returned and hands the report to the sinks. What is made anew at every scrape is a named tuple here and in its
neighbours: a frozen dataclass of fifteen fields takes four times as long to make.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ufwatch import catalogue
from ufwatch.config import TargetConfig
from ufwatch.core import track as tracks
from ufwatch.core.signals import EngineInput, engine_readings
from ufwatch.core.state import MISSED_BEFORE_DOWN, Breaker, kv_over, serving_state, silent_state
from ufwatch.core.track import EngineTrack
from ufwatch.core.window import History, Totals
from ufwatch.decode.vllm import EnginePage, PageKind, VllmPage
from ufwatch.model import EngineState, Health, Reading, Reason

_BY_KIND = {PageKind.STATS_DISABLED: Reason.STATS_DISABLED, PageKind.NOT_AN_ENGINE: Reason.NOT_AN_ENGINE}
_SEVERITY = {state: position for position, state in enumerate(EngineState)}
_UNDECIDED = (EngineState.STARTING, EngineState.STALLED, EngineState.ASLEEP, EngineState.DOWN)

_FORGOTTEN_AFTER = 60
"""Scrapes without an engine that others of its server were on."""

EngineTotals = Mapping[str, Mapping[str, float]]
"""Counters by engine, then by family name."""


class Seen(NamedTuple):
    """What the sources of one target returned this time.

    ``page`` is set exactly when ``health`` is up. ``extra`` maps each live source beside the page (``plugin``,
    ``kv_events``) to its counters; a source that is not alive is not in it. ``device_over`` is the card's memory rule,
    None where it does not apply or cannot be read. ``wall_seconds`` is the Unix time of the read.
    """

    at_seconds: float
    health: Health
    wall_seconds: float | None = None
    page: VllmPage | None = None
    extra: Mapping[str, EngineTotals] = MappingProxyType({})
    device_over: bool | None = None


class Slot(NamedTuple):
    """One engine of a target: its track, and for how many scrapes it has been missing."""

    track: EngineTrack | None = None
    state: EngineState | None = None
    missed: int = 0


class ExtraSource(NamedTuple):
    """A source beside the page: its window, what it had last, and for how many looks it has not been alive."""

    history: History[EngineTotals]
    totals: EngineTotals
    missed: int = 0


class TargetState(NamedTuple):
    """Everything remembered of one target. ``began_seconds`` is when the agent began to look at it."""

    config: TargetConfig
    began_seconds: float
    window_seconds: float | None
    slack_seconds: float
    slots: Mapping[str, Slot] = MappingProxyType({})
    model_name: str = ""
    served: bool = False
    kind: PageKind | None = None
    extra: Mapping[str, ExtraSource] = MappingProxyType({})
    kv_breaker: Breaker = Breaker()
    device_breaker: Breaker = Breaker()


class EngineReport(NamedTuple):
    """One engine after a step. ``shown`` is False once its counters have vanished from the page."""

    engine: str
    model_name: str
    state: EngineState | None
    track: EngineTrack | None
    fresh: bool
    """The engine was on this scrape's page: its gauges are measured now."""
    shown: bool
    given: EngineInput
    readings: tuple[Reading, ...]


class TargetReport(NamedTuple):
    """A target after a step: what ``once`` prints and the page shows."""

    name: str
    up: bool
    state: EngineState | None
    """The worst of its engines; None when it cannot be told (statistics disabled, not an engine)."""
    reason: Reason | None
    detail: str
    model_name: str
    engines: tuple[EngineReport, ...]
    kv_breaker: Breaker
    device_breaker: Breaker


def begin(
    config: TargetConfig,
    at_seconds: float,
    *,
    interval_seconds: float,
    window_seconds: float | None = catalogue.WINDOW_SECONDS,
) -> TargetState:
    """A target nothing is known of yet. A ``window_seconds`` of None is everything from the first sample on."""
    window = None if window_seconds is None else max(window_seconds, interval_seconds)
    return TargetState(
        config=config,
        began_seconds=at_seconds,
        window_seconds=window,
        slack_seconds=interval_seconds / 2,
        model_name=config.model_name or "",
    )


def step(state: TargetState, seen: Seen) -> tuple[TargetState, TargetReport]:
    """The target after one scrape, good or failed."""
    pages = {page.shape.engine: page for page in seen.page.engines} if seen.page is not None else {}
    start = seen.page.process_start if seen.page is not None else None
    kind = seen.page.kind if seen.page is not None else state.kind
    extra = _extra_sources(state, seen)
    served = state.served or seen.health.up
    # A target that has shown no engine yet still has a state, and it is told of engine 0.
    known = [
        name for name, slot in state.slots.items() if slot.track is not None and not _replaced(slot, name, pages, start)
    ]
    names = dict.fromkeys([*known, *pages, *(e for source in seen.extra.values() for e in source)]) or {"0": None}
    slots = {name: _slot(state, seen, state.slots.get(name, Slot()), pages.get(name), start, served) for name in names}
    model_name = next((p.shape.model_name for p in pages.values() if p.shape.model_name), state.model_name)
    absent = _absent(seen, kind, state, served)
    reports = tuple(
        _engine_report(name, slot, extra, model_name, absent) for name, slot in sorted(slots.items(), key=_order)
    )
    states = [r.state for r in reports if r.state is not None]
    worst = max(states, key=_SEVERITY.__getitem__, default=None)
    decided = [s.track for s in slots.values() if s.track is not None and s.missed == 0 and s.state not in _UNDECIDED]
    over = [kv_over(track) for track in decided]
    kv = None if not over or all(o is None for o in over) else any(over)
    new = state._replace(
        slots=slots,
        model_name=model_name,
        served=served,
        kind=kind,
        extra=extra,
        kv_breaker=state.kv_breaker.step(kv, seen.at_seconds),
        device_breaker=state.device_breaker.step(seen.device_over if decided else None, seen.at_seconds),
    )
    report = TargetReport(
        name=state.config.name,
        up=seen.health.up,
        state=worst,
        reason=seen.health.reason or (absent if not pages else None),
        detail=seen.health.detail,
        model_name=model_name,
        engines=reports,
        kv_breaker=new.kv_breaker,
        device_breaker=new.device_breaker,
    )
    return new, report


def _replaced(slot: Slot, name: str, pages: Mapping[str, EnginePage], start: float | None) -> bool:
    """Whether an engine is gone for good: a later process serves without it (fewer data-parallel engines, say).

    Where processes cannot be told apart (several API servers), it takes five minutes at the default interval.
    """
    if name in pages or not pages or slot.track is None:
        return False
    before = slot.track.memory.identity.process_start
    if start is None or before is None:
        return slot.missed >= _FORGOTTEN_AFTER
    return start != before and slot.missed >= MISSED_BEFORE_DOWN


def _order(item: tuple[str, Slot]) -> tuple[int, str]:
    return (int(item[0]), "") if item[0].isdecimal() else (1 << 30, item[0])


def _slot(
    state: TargetState, seen: Seen, slot: Slot, page: EnginePage | None, start: float | None, served: bool
) -> Slot:
    if page is None:
        missed = slot.missed + 1
        if seen.health.up and slot.track is None:
            return Slot(None, None, missed)  # a page without this engine says nothing of its state
        before = silent_state(
            before=slot.state,
            served=served,
            health=seen.health,
            missed=missed,
            waited_seconds=seen.at_seconds - state.began_seconds,
            grace_seconds=state.config.startup_grace_seconds,
        )
        return slot._replace(state=before, missed=missed)
    if slot.track is None:
        history: History[array[float]] = History(state.window_seconds, state.slack_seconds)
        track = tracks.start(page, start, seen.at_seconds, history, seen.wall_seconds)
    else:
        vanished = slot.missed >= MISSED_BEFORE_DOWN
        before_gap = tracks.after_gap(slot.track) if vanished else slot.track
        track = tracks.step(before_gap, page, start, seen.at_seconds, hold=vanished, seen_wall=seen.wall_seconds)
    return Slot(track, serving_state(track, seen.at_seconds))


def _absent(seen: Seen, kind: PageKind | None, state: TargetState, served: bool) -> Reason | None:
    """Why nothing can be read from the page at all; None when it was read and holds engines."""
    if not seen.health.up:
        waited = seen.at_seconds - state.began_seconds
        starting = not served and waited < state.config.startup_grace_seconds
        return Reason.STARTING if starting and seen.health.reason is Reason.CONNECT else seen.health.reason
    return _BY_KIND.get(kind) if kind is not None else None


def _extra_sources(state: TargetState, seen: Seen) -> Mapping[str, ExtraSource]:
    """The sources beside the page after this look.

    One that misses a look or two keeps its window. After more, no rate may span its absence, and it comes back with
    what it had, so that its growth is seen one look later.
    """
    sources: dict[str, ExtraSource] = {}
    for name in dict.fromkeys((*state.extra, *seen.extra)):
        before, totals = state.extra.get(name), seen.extra.get(name)
        if totals is None:
            if before is not None:
                sources[name] = before._replace(missed=before.missed + 1)
            continue
        history: History[EngineTotals] = History(state.window_seconds, state.slack_seconds)
        if before is not None and before.missed < MISSED_BEFORE_DOWN:
            history = before.history
        elif before is not None:
            totals = before.totals
        sources[name] = ExtraSource(history.push(seen.at_seconds, totals), totals)
    return sources


def _totals(history: History[EngineTotals], engine: str) -> Totals:
    """The window of one engine's counters; ``seconds`` is 0 while it is not full, which reads as warming up."""
    final = history.entries[-1][1].get(engine, {})
    ends = history.ends()
    if ends is None:
        return Totals(0.0, final, final)
    (begun, first), (ended, _) = ends
    return Totals(ended - begun, first.get(engine, {}), final)


def _engine_report(
    name: str,
    slot: Slot,
    extra: Mapping[str, ExtraSource],
    model_name: str,
    absent: Reason | None,
) -> EngineReport:
    fresh = slot.track is not None and slot.missed == 0
    windows = {
        source: _totals(kept.history, name)
        for source, kept in extra.items()
        if kept.missed == 0 and name in kept.totals
    }
    missing = absent or (Reason.NO_SOURCE if slot.track is None else Reason.STALE)
    given = EngineInput(
        engine=name,
        state=slot.state,
        track=slot.track if fresh else None,
        extra=windows,
        absent=None if fresh else missing,
    )
    shown = slot.track is not None and slot.missed < MISSED_BEFORE_DOWN
    shown = shown or bool(windows)
    name_of_model = slot.track.shape.model_name if slot.track is not None else ""
    return EngineReport(
        name, name_of_model or model_name, slot.state, slot.track, fresh, shown, given, engine_readings(given)
    )
