"""From a target's report to the samples of our page.

Gauges are what was measured at this scrape and vanish with it; counters stay for three missed scrapes; the agent's own
series (state, breaker, availability) never vanish while the target is configured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from ufwatch import catalogue
from ufwatch.catalogue import Signal
from ufwatch.core.extras import STEP_INTERVALS
from ufwatch.core.signals import provider_of
from ufwatch.core.target import EngineReport, TargetReport
from ufwatch.core.track import COLUMN
from ufwatch.formula import counters_of
from ufwatch.model import EngineState, Labels, Reading, Reason, Sample

_GAUGES: dict[str, str] = {
    "running": "requests_running",
    "waiting": "requests_waiting",
    "kv_usage": "kv_cache_usage_ratio",
}
_SOURCED = {"kv_usage"}
_SIGNAL = {(s.id, s.extra): s for s in (*catalogue.ENGINE_SIGNALS, catalogue.PAGE_TABLE_PROBES)}
_PROCESS_COUNTERS = (("preemptions_total", "preemptions"), ("admission_rejections_total", "admission_rejections"))
_INTERVALS = "token_intervals_total"


def target_samples(report: TargetReport) -> list[Sample]:
    """Every sample of one target that its scrape decides, in a stable order while its shape stays the same."""
    samples: list[Sample] = []
    for engine in report.engines:
        labels = base_labels(report.name, engine.model_name, engine.engine)
        samples += [
            Sample("engine_state", _with(labels, ("state", state.value)), float(state is engine.state))
            for state in EngineState
        ]
        if engine.fresh or any(r.value is not None for r in engine.readings):
            samples.extend(_gauges(engine, labels))
        if engine.shown:
            samples.extend(_counters(engine, labels))
    target: Labels = (("target", report.name), ("model_name", report.model_name))
    for kind, breaker in (("kv", report.kv_breaker), ("device", report.device_breaker)):
        labels = _with(target, ("kind", kind))
        samples.append(Sample("memory_breaker_open", labels, float(breaker.open)))
        samples.append(Sample("memory_breaker_trips_total", labels, float(breaker.trips)))
    return samples


@lru_cache(maxsize=4096)
def base_labels(target: str, model_name: str, engine: str) -> Labels:
    """The labels of an engine's series; cached, so that equal label sets are the same object from scrape to scrape."""
    return (("target", target), ("model_name", model_name), ("engine", engine))


@lru_cache(maxsize=65536)
def _with(labels: Labels, *more: tuple[str, str]) -> Labels:
    return (*labels, *more)


def _gauges(engine: EngineReport, labels: Labels) -> Iterable[Sample]:
    for reading in engine.readings:
        signal = _SIGNAL.get((reading.signal, reading.labels[1:]))
        if signal is not None:
            yield from _signal_gauges(signal, reading, labels)
        elif reading.signal in _GAUGES:
            if reading.value is not None:
                more = (("source", "vllm"),) if reading.signal in _SOURCED else ()
                yield Sample(_GAUGES[reading.signal], _with(labels, *more), reading.value)
        elif reading.signal.endswith("_mean"):
            if reading.value is not None:
                yield Sample(f"{reading.signal}_seconds", labels, reading.value)
        elif reading.signal.endswith("_p99"):
            if reading.low is not None:
                yield Sample(f"{reading.signal}_low_seconds", labels, reading.low)
            if reading.high is not None:
                yield Sample(f"{reading.signal}_high_seconds", labels, reading.high)
    if engine.track is None or not engine.fresh:
        return
    if engine.track.start_time is not None:
        yield Sample("engine_start_time_seconds", labels, engine.track.start_time)
    blocks = engine.track.shape.cache_number("num_gpu_blocks")
    if blocks is not None and blocks > 0:
        yield Sample("kv_blocks", _with(labels, ("source", "vllm")), blocks)
        evictions = next(r for r in engine.readings if r.signal == "kv_evictions")
        if evictions.value is not None and evictions.source is not None:
            turnover = 60.0 * evictions.value / blocks
            yield Sample("kv_turnover_per_minute", _with(labels, ("source", evictions.source)), turnover)


def _signal_gauges(signal: Signal, reading: Reading, labels: Labels) -> Iterable[Sample]:
    if reading.source is None:
        return
    named = ((signal.gauge, reading.value), (signal.gauge_low, reading.low), (signal.gauge_high, reading.high))
    for family, value in named:
        if family is not None and value is not None:
            extra = signal.extra if family == signal.gauge else ()
            yield Sample(family, _with(labels, *extra, ("source", reading.source)), value)


def _counters(engine: EngineReport, labels: Labels) -> Iterable[Sample]:
    track, extra = engine.track, engine.given.extra
    sources = tuple(_source(signal, reading, engine) for signal, reading in _pairs(engine))
    step = track is not None and track.step_unit
    if "plugin" in sources:
        step = (extra["plugin"].last(STEP_INTERVALS) or 0.0) > 0
    for name, with_source, source, column in _counter_plan(labels, sources, step):
        if source in extra:
            value = extra[source].last(name)
        elif track is not None:
            value = track.totals[column]
        else:
            continue
        if value is not None:
            yield Sample(name, with_source, value)
    probes = extra.get("plugin")
    if probes is not None:
        for name in ("page_table_lookups_total", "page_table_misses_total"):
            value = probes.last(name)
            if value is not None:
                yield Sample(name, _with(labels, ("unit", "probe"), ("source", "plugin")), value)
    if track is not None:
        for family, raw in _PROCESS_COUNTERS:
            if track.shape.has(raw):
                yield Sample(family, labels, track.totals[COLUMN[family]])


def _pairs(engine: EngineReport) -> Iterable[tuple[Signal, Reading]]:
    """The engine's signals with their readings, which come first and in this order."""
    return zip(catalogue.ENGINE_SIGNALS, engine.readings, strict=False)


def _source(signal: Signal, reading: Reading, engine: EngineReport) -> str | None:
    """The source whose counters are shown: while an engine is missing, the one it had on its last page."""
    if reading.source is not None or engine.track is None or engine.fresh:
        return reading.source
    provider = provider_of(signal, replace(engine.given, track=engine.track))
    return provider.source if provider is not None else None


@lru_cache(maxsize=4096)
def _counter_plan(
    labels: Labels, sources: tuple[str | None, ...], step: bool
) -> tuple[tuple[str, Labels, str, int], ...]:
    """Name, labels, source and column of every counter of the seven, each once: its first signal's source counts."""
    plan: dict[str, tuple[str, Labels, str, int]] = {}
    for signal, source in zip(catalogue.ENGINE_SIGNALS, sources, strict=True):
        provider = next((p for p in signal.providers if p.source == source), None)
        if provider is None:
            continue
        formulas = [f for f in (provider.formula, provider.low, provider.high) if f is not None]
        for name in sorted(frozenset().union(*map(counters_of, formulas)) - plan.keys()):
            unit: tuple[tuple[str, str], ...] = signal.extra if signal is catalogue.PAGE_TABLE_MISS else ()
            if name == _INTERVALS:
                unit = (("unit", "step" if step else "token"),)
            plan[name] = (name, (*labels, *unit, ("source", provider.source)), provider.source, COLUMN.get(name, -1))
    return tuple(plan.values())


def availability(report: TargetReport, others: Mapping[str, Reading]) -> list[Sample]:
    """``signal_available`` of the seven signals and the breaker, one series each.

    ``others`` holds the readings that do not come from an engine (SM utilization, pinned, graphs), best one per id.
    """
    best: dict[str, Reading] = dict(others)
    for engine in report.engines:
        for reading in engine.readings:
            held = best.get(reading.signal)
            if held is None or (held.value is None and reading.value is not None):
                best[reading.signal] = reading
    samples = []
    for signal in catalogue.SEVEN:
        reading = best.get(signal, Reading(signal, (), None, reason=report.reason or Reason.NO_SOURCE))
        known = reading.value is not None
        quality = reading.quality.value if reading.quality is not None and known else ""
        reason = "" if known else (reading.reason or Reason.NO_SOURCE).value
        labels = _availability_labels(signal, report.name, reading.source or "", quality, reason)
        samples.append(Sample("signal_available", labels, float(known)))
    for kind, breaker in (("kv", report.kv_breaker), ("device", report.device_breaker)):
        reason = "" if breaker.decided else Reason.NO_SOURCE.value
        labels = _availability_labels(
            f"memory_breaker_{kind}", report.name, "vllm" if breaker.decided else "", "", reason
        )
        samples.append(Sample("signal_available", labels, float(breaker.decided)))
    return samples


@lru_cache(maxsize=16384)
def _availability_labels(signal: str, target: str, source: str, quality: str, reason: str) -> Labels:
    return (("signal", signal), ("target", target), ("source", source), ("quality", quality), ("reason", reason))
