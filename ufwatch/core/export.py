"""From a target's report to the samples of our page.

Gauges are what was measured at this scrape and vanish with it; counters stay for three missed scrapes; the agent's own
series (state, breaker, availability) never vanish while the target is configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain, repeat
from operator import is_not, itemgetter

from ufwatch import catalogue, families
from ufwatch.catalogue import Signal
from ufwatch.core.extras import STEP_INTERVALS
from ufwatch.core.signals import provider_of
from ufwatch.core.target import EngineReport, TargetReport
from ufwatch.core.track import COLUMN
from ufwatch.formula import counters_of
from ufwatch.model import EngineState, Labels, Reading, Reason, Samples

Series = tuple[str, Labels]

_SIGNAL = {
    (signal.id, provider.source): signal
    for signal in (*catalogue.ENGINE_SIGNALS, catalogue.PAGE_TABLE_PROBES)
    for provider in signal.providers
}
_GAUGES: dict[str, tuple[str | None, str | None, str | None]] = {
    "running": ("requests_running", None, None),
    "waiting": ("requests_waiting", None, None),
    "kv_usage": ("kv_cache_usage_ratio", None, None),
    **{f"{name}_mean": (f"{name}_mean_seconds", None, None) for name in families.LATENCIES},
    **{f"{name}_p99": (None, f"{name}_p99_low_seconds", f"{name}_p99_high_seconds") for name in families.LATENCIES},
}
"""Families of value, low and high of the readings that are none of the seven signals."""
_SOURCED = {"kv_usage"}
_SIGNAL_AND_SOURCE = itemgetter(Reading._fields.index("signal"), Reading._fields.index("source"))
_NUMBERS = itemgetter(*(Reading._fields.index(name) for name in ("value", "low", "high")))
_PROCESS_COUNTERS = (("preemptions_total", "preemptions"), ("admission_rejections_total", "admission_rejections"))
_INTERVALS = "token_intervals_total"
_EVICTIONS = catalogue.ENGINE_SIGNALS.index(catalogue.KV_EVICTIONS)
_OF_THE_SEVEN = len(catalogue.ENGINE_SIGNALS) + 1
"""An engine's readings begin with its signals in their order, and then the probes of the page table where counted."""


def target_samples(report: TargetReport) -> Samples:
    """Every sample of one target that its scrape decides, in a stable order while its shape stays the same."""
    samples = Samples()
    for engine in report.engines:
        labels = base_labels(report.name, engine.model_name, engine.engine)
        samples.extend(_state_series(labels), [float(state is engine.state) for state in EngineState])
        if engine.fresh or any(r.value is not None for r in engine.readings):
            _add_gauges(samples, engine, labels)
        if engine.shown:
            _add_counters(samples, engine, labels)
    for kind, breaker in (("kv", report.kv_breaker), ("device", report.device_breaker)):
        if breaker.known:
            series = _breaker_series(report.name, report.model_name, kind)
            samples.extend(series, (float(breaker.open), float(breaker.trips)))
    return samples


@lru_cache(maxsize=4096)
def base_labels(target: str, model_name: str, engine: str) -> Labels:
    """The labels of an engine's series; cached, so that equal label sets are the same object from scrape to scrape."""
    return (("target", target), ("model_name", model_name), ("engine", engine))


@lru_cache(maxsize=65536)
def _with(labels: Labels, *more: tuple[str, str]) -> Labels:
    return (*labels, *more)


@lru_cache(maxsize=4096)
def _state_series(labels: Labels) -> tuple[Series, ...]:
    return tuple(("engine_state", (*labels, ("state", state.value))) for state in EngineState)


@lru_cache(maxsize=4096)
def _breaker_series(target: str, model_name: str, kind: str) -> tuple[Series, Series]:
    labels: Labels = (("target", target), ("model_name", model_name), ("kind", kind))
    return ("memory_breaker_open", labels), ("memory_breaker_trips_total", labels)


def _add_gauges(samples: Samples, engine: EngineReport, labels: Labels) -> None:
    numbers = list(chain.from_iterable(map(_NUMBERS, engine.readings)))
    known = tuple(map(is_not, numbers, repeat(None)))
    series, places = _gauge_series(labels, tuple(map(_SIGNAL_AND_SOURCE, engine.readings)), known)
    samples.extend(series, [numbers[place] for place in places])
    if engine.track is None or not engine.fresh:
        return
    if engine.track.start_time is not None:
        samples.add("engine_start_time_seconds", labels, engine.track.start_time)
    blocks = engine.track.shape.cache_number("num_gpu_blocks")
    if blocks is not None and blocks > 0:
        samples.add("kv_blocks", _with(labels, ("source", "vllm")), blocks)
        evictions = engine.readings[_EVICTIONS]
        if evictions.value is not None and evictions.source is not None:
            turnover = 60.0 * evictions.value / blocks
            samples.add("kv_turnover_per_minute", _with(labels, ("source", evictions.source)), turnover)


@lru_cache(maxsize=4096)
def _gauge_series(
    labels: Labels, readings: tuple[tuple[str, str | None], ...], known: tuple[bool, ...]
) -> tuple[tuple[Series, ...], tuple[int, ...]]:
    """Family and labels of what is exported of each reading's value, low and high where known, and their places."""
    series: list[Series] = []
    places: list[int] = []
    for at, (name, source) in enumerate(readings):
        signal = _SIGNAL.get((name, source or ""))
        if signal is not None:
            named, extra = (signal.gauge, signal.gauge_low, signal.gauge_high), signal.extra
        else:
            named, extra = _GAUGES.get(name, (None, None, None)), ()
        sourced = (("source", source),) if source and (signal is not None or name in _SOURCED) else ()
        bounds = (*labels, *sourced)
        for place, family in enumerate(named, 3 * at):
            if family is not None and known[place]:
                series.append((family, (*labels, *extra, *sourced) if family == named[0] else bounds))
                places.append(place)
    return tuple(series), tuple(places)


def _add_counters(samples: Samples, engine: EngineReport, labels: Labels) -> None:
    track, extra = engine.track, engine.given.extra
    sources = tuple(_source(signal, reading, engine) for signal, reading in _pairs(engine))
    step = track is not None and track.step_unit
    if "plugin" in sources:
        step = (extra["plugin"].last(STEP_INTERVALS) or 0.0) > 0
    series, plan = _counter_plan(labels, sources, step)
    if track is not None and not extra:
        samples.extend(series, [track.totals[column] for _, column in plan])
    else:
        for (name, with_source), (source, column) in zip(series, plan, strict=True):
            value = track.totals[column] if track is not None else None
            if source in extra:
                value = extra[source].last(name)
            if value is not None:
                samples.add(name, with_source, value)
    probes = extra.get("plugin")
    if probes is not None:
        for name in ("page_table_lookups_total", "page_table_misses_total"):
            value = probes.last(name)
            if value is not None:
                samples.add(name, _with(labels, ("unit", "probe"), ("source", "plugin")), value)
    if track is not None:
        for family, raw in _PROCESS_COUNTERS:
            if track.shape.has(raw):
                samples.add(family, labels, track.totals[COLUMN[family]])


def _pairs(engine: EngineReport) -> Iterable[tuple[Signal, Reading]]:
    """The engine's signals with their readings, which come first and in this order."""
    return zip(catalogue.ENGINE_SIGNALS, engine.readings, strict=False)


def _source(signal: Signal, reading: Reading, engine: EngineReport) -> str | None:
    """The source whose counters are shown: while an engine is missing, the one it had on its last page."""
    if reading.source is not None or engine.track is None or engine.fresh:
        return reading.source
    provider = provider_of(signal, engine.given._replace(track=engine.track))
    return provider.source if provider is not None else None


@lru_cache(maxsize=4096)
def _counter_plan(
    labels: Labels, sources: tuple[str | None, ...], step: bool
) -> tuple[tuple[Series, ...], tuple[tuple[str, int], ...]]:
    """Series, and source and column, of every counter of the seven, each once: its first signal's source counts."""
    series: dict[str, Series] = {}
    plan: list[tuple[str, int]] = []
    for signal, source in zip(catalogue.ENGINE_SIGNALS, sources, strict=True):
        provider = next((p for p in signal.providers if p.source == source), None)
        if provider is None:
            continue
        formulas = [f for f in (provider.formula, provider.low, provider.high) if f is not None]
        for name in sorted(frozenset().union(*map(counters_of, formulas)) - series.keys()):
            unit: tuple[tuple[str, str], ...] = signal.extra if signal is catalogue.PAGE_TABLE_MISS else ()
            if name == _INTERVALS:
                unit = (("unit", "step" if step else "token"),)
            series[name] = name, (*labels, *unit, ("source", provider.source))
            plan.append((provider.source, COLUMN.get(name, -1)))
    return tuple(series.values()), tuple(plan)


def availability(report: TargetReport, others: Mapping[str, Reading]) -> Samples:
    """``signal_available`` of the seven signals and the breaker, one series each.

    ``others`` holds the readings that do not come from an engine (SM utilization, pinned, graphs), best one per id.
    """
    best: dict[str, Reading] = dict(others)
    for engine in report.engines:
        for reading in engine.readings[:_OF_THE_SEVEN]:
            if reading.labels[1:] == catalogue.PAGE_TABLE_PROBES.extra:
                continue  # shown beside the signal, never in its place
            held = best.get(reading.signal)
            if held is None or (held.value is None and reading.value is not None):
                best[reading.signal] = reading
    absent = Reading("", (), None, reason=report.reason or Reason.NO_SOURCE)
    samples = Samples()
    for signal in catalogue.SEVEN:
        _, _, value, _, _, source, quality, reason = best.get(signal, absent)
        known = value is not None
        how, why = (quality or "", "") if known else ("", reason or Reason.NO_SOURCE)
        labels = _availability_labels(signal, report.name, source or "", how, why)
        samples.add("signal_available", labels, float(known))
    for kind, breaker in (("kv", report.kv_breaker), ("device", report.device_breaker)):
        source = ("vllm" if kind == "kv" else "nvml") if breaker.decided else ""
        why = "" if breaker.decided else Reason.NO_SOURCE
        labels = _availability_labels(f"memory_breaker_{kind}", report.name, source, "", why)
        samples.add("signal_available", labels, float(breaker.decided))
    return samples


@lru_cache(maxsize=16384)
def _availability_labels(signal: str, target: str, source: str, quality: str, reason: str) -> Labels:
    """Quality and reason may be their enumerations' members, which equal their texts."""
    pairs = (("signal", signal), ("target", target), ("source", source), ("quality", quality), ("reason", reason))
    return tuple((name, str(value)) for name, value in pairs)
