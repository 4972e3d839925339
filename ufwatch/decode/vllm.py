"""From the wanted samples of a vLLM page to one vector of counters and one of gauges per engine.

The work that depends only on the page's shape (which sample is which engine's which metric) is done once per
:class:`~ufwatch.decode.layout.Layout` and kept in its memo; a scrape then costs two ``itemgetter`` calls an engine.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter

from ufwatch import metrics
from ufwatch.decode.layout import Layout

_ENGINE = re.compile(r"0|[1-9]\d{0,2}", re.ASCII)

SCALARS = len(metrics.COUNTERS)
SUMS = SCALARS
"""From here the vector holds sum and count of each histogram, then the buckets of each in turn."""
BUCKETS = SCALARS + 2 * len(metrics.HISTOGRAMS)


class PageKind(StrEnum):
    ENGINE = "engine"
    STATS_DISABLED = "stats_disabled"
    """An OpenAI-compatible server answered, without any engine family (``--disable-log-stats``)."""
    NOT_AN_ENGINE = "not_an_engine"
    """Some other exporter: a router, a bare Python process."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Where one histogram's cumulative counts lie in the vector, and its upper edges (the last is inf)."""

    start: int
    stop: int
    edges: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EngineShape:
    """What an engine of this page has. Two shapes are interchangeable when ``present`` and ``buckets`` are equal."""

    engine: str
    model_name: str
    present: frozenset[str]
    """Ids of the counters, gauges and histograms on the page."""
    buckets: tuple[Buckets | None, ...]
    cache: Mapping[str, str]
    """Labels of ``cache_config_info``: block size, number of blocks, ``gpu_memory_utilization``."""
    size: int

    def has(self, raw_id: str) -> bool:
        return raw_id in self.present

    def cache_number(self, key: str) -> float | None:
        """A numeric field of the cache configuration; None when absent or written as ``None``."""
        try:
            number = float(self.cache[key])
        except (KeyError, ValueError):
            return None
        return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class EnginePage:
    """One engine at one scrape. Absent counters are 0 in ``counters`` and not in ``shape.present``.

    ``counters`` is laid out as SCALARS | sum, count per histogram | cumulative buckets per histogram.
    """

    shape: EngineShape
    counters: array[float]
    gauges: tuple[float | None, ...]

    def counter(self, raw_id: str) -> float | None:
        return self.counters[metrics.COUNTER_INDEX[raw_id]] if raw_id in self.shape.present else None

    def gauge(self, raw_id: str) -> float | None:
        return self.gauges[metrics.GAUGE_INDEX[raw_id]]


@dataclass(frozen=True, slots=True)
class VllmPage:
    """A whole scrape, decoded. ``engines`` is empty unless ``kind`` is ENGINE."""

    kind: PageKind
    engines: tuple[EnginePage, ...]
    process_start: float | None


@dataclass(frozen=True, slots=True)
class _EnginePlan:
    shape: EngineShape
    pick: Callable[[Sequence[float]], tuple[float, ...]]
    """Takes the page's values with one 0.0 appended; position -1 stands for an absent counter."""
    summed: tuple[tuple[int, tuple[int, ...]], ...]
    gauges: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    kind: PageKind
    engines: tuple[_EnginePlan, ...]
    process_start: int | None


def decode(layout: Layout, values: list[float]) -> VllmPage:
    """Reads the values of one page. A family with a value that is no finite number is taken as absent from this page,
    since its deltas would be invented; an impossible gauge reads None."""
    plan = _planned(layout, frozenset())
    padded = [*values, 0.0]
    engines = tuple(_read(engine, padded) for engine in plan.engines)
    if not all(math.isfinite(sum(engine.counters)) for engine in engines):
        broken = {line.name for line, value in zip(layout.lines, values, strict=True) if not math.isfinite(value)}
        plan = _planned(layout, frozenset(map(_family_of, broken)))
        engines = tuple(_read(engine, padded) for engine in plan.engines)
    start = values[plan.process_start] if plan.process_start is not None else None
    return VllmPage(plan.kind, engines, start if start is not None and math.isfinite(start) else None)


def _planned(layout: Layout, without: frozenset[str]) -> _Plan:
    plan = layout.memo.get(("vllm", without))
    if not isinstance(plan, _Plan):
        plan = _plan(layout, without)
        if not without:  # what is broken may change from page to page, and is not worth keeping
            layout.memo["vllm", without] = plan
    return plan


def _family_of(name: str) -> str:
    """A histogram's samples stand and fall together."""
    for suffix in ("_bucket", "_sum", "_count"):
        name = name.removesuffix(suffix)
    return name


def _read(plan: _EnginePlan, padded: list[float]) -> EnginePage:
    counters = array("d", plan.pick(padded))
    for position, sources in plan.summed:
        counters[position] = sum(padded[source] for source in sources)
    gauges = tuple(
        None if not sources else _possible(sum(padded[source] for source in sources), highest)
        for sources, highest in zip(plan.gauges, _HIGHEST, strict=True)
    )
    return EnginePage(plan.shape, counters, gauges)


_HIGHEST = tuple(1.0 if raw.id == "kv_usage" else math.inf for raw in metrics.GAUGES)


def _possible(value: float, highest: float) -> float | None:
    return value if 0.0 <= value <= highest and value != math.inf else None


def _plan(layout: Layout, without: frozenset[str]) -> _Plan:
    by_engine: dict[str, dict[str, list[tuple[int, dict[str, str]]]]] = defaultdict(lambda: defaultdict(list))
    unlabelled: dict[str, list[tuple[int, dict[str, str]]]] = defaultdict(list)
    process_start = None
    for position, (name, pairs) in enumerate(layout.lines):
        labels = dict(pairs)
        if without and _family_of(name) in without:
            continue
        if name == metrics.PROCESS_START:
            process_start = position
        elif "engine" in labels:
            if not _ENGINE.fullmatch(labels["engine"]):
                continue  # a label that anybody may fill would become a label of ours
            by_engine[labels["engine"]][name].append((position, labels))
        elif "server" not in labels:  # a router repeats its servers' families under that label
            unlabelled[name].append((position, labels))
    if unlabelled:
        # V0 has one engine and no such label; later versions leave it off a few server-wide families,
        # which are credited to the first engine so that they are counted once.
        first = min(by_engine, key=int, default="0")
        for name, series in unlabelled.items():
            by_engine[first][name].extend(series)
    engines = tuple(_engine_plan(engine, by_engine[engine]) for engine in sorted(by_engine, key=int))
    if engines:
        kind = PageKind.ENGINE
    elif not layout.has_prefix(b"vllm:") and layout.has_prefix(b"http_request"):
        kind = PageKind.STATS_DISABLED
    else:
        kind = PageKind.NOT_AN_ENGINE
    return _Plan(kind, engines, process_start)


def _engine_plan(engine: str, series: Mapping[str, list[tuple[int, dict[str, str]]]]) -> _EnginePlan:
    positions: list[tuple[int, ...]] = []
    present: set[str] = set()
    for raw in metrics.COUNTERS:
        found = _find(raw, series)
        if found:
            present.add(raw.id)
        positions.append(found)
    chosen = [_family(histogram, series) for histogram in metrics.HISTOGRAMS]
    for histogram, family in zip(metrics.HISTOGRAMS, chosen, strict=True):
        positions += [
            tuple(p for p, _ in series.get(f"{family}{suffix}", ())) if family else () for suffix in ("_sum", "_count")
        ]
        if family:
            present.add(histogram.id)
    buckets: list[Buckets | None] = []
    for family in chosen:
        edges = _edges(series.get(f"{family}_bucket", ())) if family else {}
        if not edges:
            buckets.append(None)
            continue
        start = len(positions)
        positions.extend(tuple(edges[edge]) for edge in sorted(edges))
        buckets.append(Buckets(start, len(positions), tuple(sorted(edges))))
    gauges = tuple(_find(raw, series) for raw in metrics.GAUGES)
    present |= {raw.id for raw, found in zip(metrics.GAUGES, gauges, strict=True) if found}
    cache = next((labels for _, labels in series.get(metrics.CACHE_CONFIG, ())), {})
    shape = EngineShape(engine, _model_name(series), frozenset(present), tuple(buckets), dict(cache), len(positions))
    pick = itemgetter(*(found[0] if len(found) == 1 else -1 for found in positions))
    summed = tuple((index, found) for index, found in enumerate(positions) if len(found) > 1)
    return _EnginePlan(shape, pick, summed, gauges)


def _find(raw: metrics.Raw, series: Mapping[str, list[tuple[int, dict[str, str]]]]) -> tuple[int, ...]:
    for name in raw.names:
        found = tuple(
            position
            for position, labels in series.get(name, ())
            if raw.where is None or labels.get(raw.where[0]) == raw.where[1]
        )
        if found:
            return found
    return ()


def _family(histogram: metrics.RawHistogram, series: Mapping[str, list[tuple[int, dict[str, str]]]]) -> str | None:
    return next((family for family in histogram.families if f"{family}_count" in series), None)


def _edges(bucket_series: Sequence[tuple[int, dict[str, str]]]) -> dict[float, list[int]]:
    """Positions per numeric edge: ``le`` is compared as a number, so ``+inf``, ``1`` and ``1.0`` need no care."""
    edges: dict[float, list[int]] = defaultdict(list)
    for position, labels in bucket_series:
        try:
            edge = float(labels["le"])
        except (KeyError, ValueError):
            return {}
        if math.isnan(edge):
            return {}
        edges[edge].append(position)
    return dict(edges) if math.inf in edges else {}


def _model_name(series: Mapping[str, list[tuple[int, dict[str, str]]]]) -> str:
    names = [labels["model_name"] for found in series.values() for _, labels in found if "model_name" in labels]
    return names[0] if names else ""
