"""What the in-process exporters add: counters per engine, and the two signals that belong to processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping

from ufwatch.core.target import EngineTotals
from ufwatch.decode.textfile import PINNED_CODES, SeriesKey, TextfileSnapshot
from ufwatch.model import Labels, Quality, Reading, Reason, Sample

STEP_INTERVALS = "token_intervals_step"
"""Intervals counted per engine step, told apart from those per token only to name the unit."""

_PER_ENGINE = frozenset(
    {
        "token_intervals_total",
        "token_interval_seconds_total",
        "token_interval_squared_total",
        "kv_evictions_total",
        "page_table_lookups_total",
        "page_table_misses_total",
    }
)
_PHASES = tuple(
    (("phase", phase), ("cache", cache)) for phase in ("capture", "compile") for cache in ("cold", "warm", "unknown")
)
_PINNED = ("pinned_alloc_attempts_total", "pinned_alloc_bytes_total", "pinned_alloc_seconds_total")
_SOURCE = ("source", "textfile")


def plugin_totals(totals: Mapping[SeriesKey, float], live: Container[SeriesKey]) -> EngineTotals:
    """Counters by engine and family, of writers that are alive: a dead one's would read as nothing happening.

    Of the page table only probes: real faults only the engine itself can count.
    """
    engines: dict[str, dict[str, float]] = defaultdict(dict)
    for key, value in totals.items():
        labels = dict(key.labels)
        if key.metric not in _PER_ENGINE or key not in live or labels.get("unit") == "block":
            continue
        counters = engines[labels.get("engine", "0")]
        counters[key.metric] = counters.get(key.metric, 0.0) + value
        if key.metric == "token_intervals_total" and labels.get("unit") == "step":
            counters[STEP_INTERVALS] = counters.get(STEP_INTERVALS, 0.0) + value
    return engines


def process_readings(snapshot: TextfileSnapshot | None) -> tuple[Reading, ...]:
    """Pinned-allocation success and graph compile time, from the live files' own numbers."""
    if snapshot is None or not snapshot.health.up:
        reason = (snapshot.health.reason if snapshot is not None else None) or Reason.NO_SOURCE
        return tuple(Reading(signal, (), None, reason=reason) for signal in ("pinned_alloc_success", "graph_compile"))
    return (_pinned(snapshot.absolute), *_graphs(snapshot.absolute))


def _pinned(absolute: Mapping[SeriesKey, float]) -> Reading:
    attempts = absolute.get(SeriesKey("pinned_alloc_attempts_total", ()))
    if attempts is None:
        return Reading("pinned_alloc_success", (), None, reason=Reason.NO_SOURCE)
    if attempts <= 0:
        return Reading("pinned_alloc_success", (), None, source="textfile", reason=Reason.NOTHING_ATTEMPTED)
    failures = sum(value for key, value in absolute.items() if key.metric == "pinned_alloc_failures_total")
    if failures > attempts:
        return Reading("pinned_alloc_success", (), None, source="textfile", reason=Reason.INCONSISTENT)
    success = (attempts - failures) / attempts
    return Reading("pinned_alloc_success", (), success, source="textfile", quality=Quality.EXACT)


def _graphs(absolute: Mapping[SeriesKey, float]) -> list[Reading]:
    found = [(k.labels, v) for k, v in sorted(absolute.items()) if k.metric == "graph_compile_last_start_seconds"]
    if not found:
        return [Reading("graph_compile", (), None, reason=Reason.NO_SOURCE)]
    return [Reading("graph_compile", labels, v, source="textfile", quality=Quality.EXACT) for labels, v in found]


def process_samples(
    target: str, model_name: str, snapshot: TextfileSnapshot, readings: Iterable[Reading]
) -> list[Sample]:
    """Samples of the two signals; counters come with every known label set, so that none is born above 0."""
    base: Labels = (("target", target), ("model_name", model_name))
    samples = []
    for reading in readings:
        if reading.value is None:
            continue
        if reading.signal == "pinned_alloc_success":
            samples.append(Sample("pinned_alloc_success_ratio", (*base, _SOURCE), reading.value))
        elif reading.signal == "graph_compile":
            labels = (*base, *reading.labels, _SOURCE)
            samples.append(Sample("graph_compile_last_start_seconds", labels, reading.value))
    totals = snapshot.totals
    names = {key.metric for key in totals}
    if names & {*_PINNED, "pinned_alloc_failures_total"}:
        samples += [Sample(name, (*base, _SOURCE), totals.get(SeriesKey(name, ()), 0.0)) for name in _PINNED]
        for code in PINNED_CODES:
            key = SeriesKey("pinned_alloc_failures_total", (("code", code),))
            samples.append(Sample(key.metric, (*base, *key.labels, _SOURCE), totals.get(key, 0.0)))
    for family in ("graph_compile_seconds_total", "graph_compiles_total"):
        if family in names:
            for labels in _PHASES:
                value = totals.get(SeriesKey(family, labels), 0.0)
                samples.append(Sample(family, (*base, *labels, _SOURCE), value))
    return samples
