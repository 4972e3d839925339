"""The declaration of every signal: formula, metrics, sources in order of preference, and what is meant by it.

Floor 1: pure data. ``derive``, the page, the rules, the dashboards and the README's tables all read these entries;
to add a signal is to add one here and, if its counters are new, their family in :mod:`ufwatch.families`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ufwatch import families, gpu_metrics
from ufwatch.formula import Formula, GeometricMean, Last, Minus, Rate, Ratio, StdDev, counters_of
from ufwatch.model import Labels, Quality
from ufwatch.spec import Kind, MetricSpec

WINDOW_SECONDS = 60.0
"""What every rate, ratio and deviation speaks of: the last minute, or one interval if that is longer."""

MIN_INTERVALS = 100
"""Fewer token intervals than this in a window give no jitter: at n = 20 the estimate is off by up to 20 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One way to a signal. ``quality`` is the best it can be; ``derive`` lowers it where the window shows cause."""

    source: str
    quality: Quality
    formula: Formula
    low: Formula | None = None
    high: Formula | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A signal at one label set.

    ``gauge``, ``gauge_low`` and ``gauge_high`` name the families its value and bounds are exported under (None: shown
    by ``once`` only). ``providers`` are tried in order, the first that has data is exported and no other.
    """

    id: str
    title: str
    unit: str
    meaning: str
    providers: tuple[Provider, ...]
    extra: Labels = ()
    gauge: str | None = None
    gauge_low: str | None = None
    gauge_high: str | None = None
    one_of_seven: bool = False


_JITTER_HISTOGRAM = (
    StdDev("token_intervals_total", "token_interval_seconds_total", "token_interval_squared_low_total"),
    StdDev("token_intervals_total", "token_interval_seconds_total", "token_interval_squared_high_total"),
)

TOKEN_JITTER = Signal(
    id="token_jitter",
    title="Token output jitter",
    unit="seconds",
    meaning="Standard deviation of the time between tokens, pooled over the requests of an engine.",
    providers=(
        Provider(
            source="plugin",
            quality=Quality.EXACT,
            formula=StdDev("token_intervals_total", "token_interval_seconds_total", "token_interval_squared_total"),
        ),
        Provider(
            source="histogram",
            quality=Quality.BOUNDED,
            formula=GeometricMean(*_JITTER_HISTOGRAM),
            low=_JITTER_HISTOGRAM[0],
            high=_JITTER_HISTOGRAM[1],
        ),
    ),
    gauge="token_jitter_seconds",
    gauge_low="token_jitter_low_seconds",
    gauge_high="token_jitter_high_seconds",
    one_of_seven=True,
)

_MISS = Ratio(Rate("page_table_misses_total"), Rate("page_table_lookups_total"))

PAGE_TABLE_MISS = Signal(
    id="page_table_miss",
    title="Page-table miss rate",
    unit="ratio",
    meaning="Share of prompt tokens whose KV block was not in the block table (prefix cache) and had to be computed.",
    providers=(
        Provider(source="prompt_tokens_by_source", quality=Quality.EXACT, formula=_MISS),
        Provider(source="prefix_cache", quality=Quality.ESTIMATE, formula=_MISS),
    ),
    extra=(("unit", "token"),),
    gauge="page_table_miss_ratio",
    one_of_seven=True,
)

PAGE_TABLE_PROBES = Signal(
    id="page_table_miss",
    title="Page-table probe misses",
    unit="ratio",
    meaning="Share of the block pool's look-ups for new prompts that missed; shown, never alerted on.",
    providers=(Provider(source="plugin", quality=Quality.EXACT, formula=_MISS),),
    extra=(("unit", "probe"),),
    gauge="page_table_miss_ratio",
)

PREFILL_DECODE_TOKENS = Signal(
    id="prefill_decode",
    title="Prefill/decode ratio by tokens",
    unit="ratio",
    meaning="Prompt tokens computed for each token generated.",
    providers=(
        Provider(
            source="prompt_tokens_by_source",
            quality=Quality.EXACT,
            formula=Ratio(Rate("prefill_tokens_total"), Rate("decode_tokens_total")),
        ),
        Provider(
            source="prompt_tokens",
            quality=Quality.ESTIMATE,
            formula=Ratio(Rate("prefill_tokens_total"), Rate("decode_tokens_total")),
        ),
    ),
    extra=(("by", "tokens"),),
    gauge="prefill_decode_ratio",
    one_of_seven=True,
)

PREFILL_DECODE_TIME = Signal(
    id="prefill_decode",
    title="Prefill/decode ratio by time",
    unit="ratio",
    meaning="Request-time in prefill over request-time in decode, of the requests that finished.",
    providers=(
        Provider(
            source="request_seconds",
            quality=Quality.PROXY,
            formula=Ratio(Rate("prefill_seconds_total"), Rate("decode_seconds_total")),
        ),
    ),
    extra=(("by", "time"),),
    gauge="prefill_decode_ratio",
    one_of_seven=True,
)

KV_EVICTIONS = Signal(
    id="kv_evictions",
    title="KV-cache evictions",
    unit="per second",
    meaning="Blocks holding cached content that were taken for new data.",
    providers=(
        Provider(source="plugin", quality=Quality.EXACT, formula=Rate("kv_evictions_total")),
        Provider(source="kv_events", quality=Quality.EXACT, formula=Rate("kv_evictions_total")),
        Provider(source="recycles", quality=Quality.PROXY, formula=Rate("kv_evictions_total")),
    ),
    gauge="kv_evictions_per_second",
    one_of_seven=True,
)

PINNED_ALLOC_SUCCESS = Signal(
    id="pinned_alloc_success",
    title="Pinned-allocation success",
    unit="ratio",
    meaning="Share of page-locked allocations that succeeded.",
    providers=(
        Provider(
            source="textfile",
            quality=Quality.EXACT,
            formula=Ratio(
                Minus(Rate("pinned_alloc_attempts_total"), Rate("pinned_alloc_failures_total")),
                Rate("pinned_alloc_attempts_total"),
            ),
        ),
    ),
    gauge="pinned_alloc_success_ratio",
    one_of_seven=True,
)

GRAPH_COMPILE = Signal(
    id="graph_compile",
    title="Graph compile time",
    unit="seconds",
    meaning="Time the newest start spent compiling or capturing graphs, by phase and cache.",
    providers=(Provider(source="textfile", quality=Quality.EXACT, formula=Last("graph_compile_last_start_seconds")),),
    gauge="graph_compile_last_start_seconds",
    one_of_seven=True,
)

SM_UTILIZATION = Signal(
    id="sm_utilization",
    title="SM utilization",
    unit="ratio",
    meaning="Share of the card's streaming multiprocessors that had a warp resident, averaged over the poll.",
    providers=(
        Provider(source="gpm", quality=Quality.EXACT, formula=Last("sm_utilization_ratio")),
        Provider(source="dcgm", quality=Quality.ESTIMATE, formula=Last("sm_utilization_ratio")),
    ),
    gauge="sm_utilization_ratio",
    one_of_seven=True,
)

ENGINE_SIGNALS = (TOKEN_JITTER, PAGE_TABLE_MISS, PREFILL_DECODE_TOKENS, PREFILL_DECODE_TIME, KV_EVICTIONS)
"""Signals each engine has, in the order shown."""

SIGNALS = (
    SM_UTILIZATION,
    PAGE_TABLE_MISS,
    PAGE_TABLE_PROBES,
    GRAPH_COMPILE,
    PINNED_ALLOC_SUCCESS,
    TOKEN_JITTER,
    PREFILL_DECODE_TOKENS,
    PREFILL_DECODE_TIME,
    KV_EVICTIONS,
)

SEVEN = tuple(dict.fromkeys(signal.id for signal in SIGNALS if signal.one_of_seven))
"""The ids of the seven signals."""

FAMILIES: tuple[MetricSpec, ...] = (*families.SERVING_FAMILIES, *gpu_metrics.GPU_FAMILIES, *families.AGENT)
"""Every family the agent may export, in page order."""

FAMILY = {spec.name: spec for spec in FAMILIES}

SERIES = {name: labels for spec in FAMILIES for name, labels in spec.series.items()}
"""The labels of everything that can be asked for, by name: a histogram's parts have names of their own."""

COUNTED = frozenset(name for spec in FAMILIES if spec.kind is not Kind.GAUGE for name in spec.series)
"""What of it only grows, so that a rate is asked of it."""


def unknown_names() -> frozenset[str]:
    """Metrics a signal speaks of that no family declares; empty, and a test keeps it so."""
    named = {name for s in SIGNALS for name in (s.gauge, s.gauge_low, s.gauge_high) if name is not None}
    for signal in SIGNALS:
        for provider in signal.providers:
            for formula in (provider.formula, provider.low, provider.high):
                named |= counters_of(formula) if formula is not None else frozenset()
    return frozenset(named - FAMILY.keys())
