"""Every family of our page that speaks of a serving target, and of the agent itself. GPU families: ``gpu_metrics``.

Floor 1: pure data. Names and labels are an interface; a metric of one of the seven signals carries ``source``.
"""

from __future__ import annotations

from ufwatch.spec import Kind, MetricSpec

ENGINE_LABELS = ("target", "model_name", "engine")
TARGET_LABELS = ("target", "model_name")
_WINDOW = "60 s (in the demo: 15 s)"


def _gauge(name: str, labels: tuple[str, ...], text: str) -> MetricSpec:
    return MetricSpec(name=name, kind=Kind.GAUGE, labels=labels, help=text)


def _counter(name: str, labels: tuple[str, ...], text: str) -> MetricSpec:
    return MetricSpec(name=name, kind=Kind.COUNTER, labels=labels, help=text)


def _engine_gauge(name: str, text: str, *extra: str) -> MetricSpec:
    return _gauge(name, (*ENGINE_LABELS, *extra), text)


def _engine_counter(name: str, text: str, *extra: str) -> MetricSpec:
    return _counter(name, (*ENGINE_LABELS, *extra), text)


PAGE_TABLE = (
    _engine_gauge(
        "page_table_miss_ratio",
        f"Share of KV block-table look-ups that missed, over {_WINDOW}. unit=token: prompt tokens not found in the "
        "prefix cache; unit=probe: block look-ups of new prompts.",
        "unit",
        "source",
    ),
    _engine_counter(
        "page_table_lookups_total",
        "Prompt tokens (unit=token) or blocks (unit=probe) looked up in the KV block table since the agent started.",
        "unit",
        "source",
    ),
    _gauge(
        "page_table_miss_baseline_ratio",
        TARGET_LABELS,
        "Miss ratio by tokens that is usual for the target at this UTC hour: the median of the same hour over 7 days, "
        "or expected_miss of its configuration. Absent while fewer than 3 of those hours had 1,000 look-ups.",
    ),
    _engine_counter(
        "page_table_misses_total", "Look-ups that missed since the agent started, in the same unit.", "unit", "source"
    ),
)

GRAPH_COMPILE = (
    _gauge(
        "graph_compile_last_start_seconds",
        (*TARGET_LABELS, "phase", "cache", "source"),
        "Time the newest engine start spent compiling or capturing graphs.",
    ),
    _counter(
        "graph_compile_seconds_total",
        (*TARGET_LABELS, "phase", "cache", "source"),
        "Time spent compiling or capturing graphs since the agent started.",
    ),
    _counter(
        "graph_compiles_total",
        (*TARGET_LABELS, "phase", "cache", "source"),
        "Graphs compiled or captured since the agent started.",
    ),
)

PINNED = (
    _gauge(
        "pinned_alloc_success_ratio",
        (*TARGET_LABELS, "source"),
        "Share of page-locked allocations that succeeded, over the life of the processes now running; absent when they "
        "attempted none.",
    ),
    _counter(
        "pinned_alloc_attempts_total",
        (*TARGET_LABELS, "source"),
        "Page-locked allocations attempted since the agent started.",
    ),
    _counter(
        "pinned_alloc_failures_total",
        (*TARGET_LABELS, "code", "source"),
        "Page-locked allocations refused since agent start, by error code.",
    ),
    _counter("pinned_alloc_bytes_total", (*TARGET_LABELS, "source"), "Bytes asked for in page-locked allocations."),
    _counter("pinned_alloc_seconds_total", (*TARGET_LABELS, "source"), "Time spent in page-locked allocations."),
)

JITTER = (
    _engine_gauge(
        "token_jitter_seconds",
        f"Standard deviation of the intervals between tokens over {_WINDOW}, pooled over requests (it includes the "
        "spread between requests). source=histogram: the geometric mean of the two bounds.",
        "source",
    ),
    _engine_gauge("token_jitter_low_seconds", "Lower bound of the standard deviation of token intervals.", "source"),
    _engine_gauge("token_jitter_high_seconds", "Upper bound of the standard deviation of token intervals.", "source"),
    _engine_counter(
        "token_intervals_total",
        "Intervals between tokens since the agent started; unit=step where one observation is an engine step.",
        "unit",
        "source",
    ),
    _engine_counter("token_interval_seconds_total", "Sum of the intervals between tokens.", "source"),
    _engine_counter(
        "token_interval_squared_low_total", "Lower bound of the sum of squared token intervals, in s².", "source"
    ),
    _engine_counter(
        "token_interval_squared_high_total", "Upper bound of the sum of squared token intervals, in s².", "source"
    ),
    _engine_counter("token_interval_squared_total", "Sum of squared token intervals where counted exactly.", "source"),
)

PREFILL_DECODE = (
    _engine_gauge(
        "prefill_decode_ratio",
        f"Prefill over decode, over {_WINDOW}: by=tokens processed, or by=time of finished requests.",
        "by",
        "source",
    ),
    _engine_counter("prefill_tokens_total", "Prompt tokens processed since the agent started.", "source"),
    _engine_counter("decode_tokens_total", "Tokens generated since the agent started.", "source"),
    _engine_counter("prefill_seconds_total", "Request-time spent in prefill, of finished requests.", "source"),
    _engine_counter("decode_seconds_total", "Request-time spent in decode, of finished requests.", "source"),
)

EVICTIONS = (
    _engine_gauge(
        "kv_evictions_per_second",
        f"Cached KV blocks taken for new data, per second over {_WINDOW}. source=recycles: vLLM's sampled count of all "
        "re-used blocks.",
        "source",
    ),
    _engine_counter("kv_evictions_total", "Cached KV blocks taken for new data since the agent started.", "source"),
    _engine_gauge("kv_blocks", "KV cache blocks the engine has.", "source"),
    _engine_gauge(
        "kv_cache_usage_ratio", "Share of KV cache blocks in use at the last scrape (blocks, not tokens).", "source"
    ),
    _engine_gauge("kv_turnover_per_minute", "Evictions per minute over the number of KV blocks.", "source"),
)

LATENCIES = ("ttft", "itl", "tpot", "e2e", "queue")
_LATENCY_TEXT = {
    "ttft": "Time to first token",
    "itl": "Time between tokens",
    "tpot": "Time per output token of a finished request",
    "e2e": "Time from arrival to the last token",
    "queue": "Time waiting in the engine's queue",
}
LATENCY = tuple(
    spec
    for name in LATENCIES
    for spec in (
        _engine_gauge(f"{name}_mean_seconds", f"{_LATENCY_TEXT[name]}: mean over {_WINDOW}."),
        _engine_gauge(f"{name}_p99_low_seconds", f"{_LATENCY_TEXT[name]}: bucket edge under the 99th percentile."),
        _engine_gauge(f"{name}_p99_high_seconds", f"{_LATENCY_TEXT[name]}: bucket edge over the 99th percentile."),
    )
)

REQUESTS = (
    _engine_gauge("requests_running", "Requests being processed at the last scrape."),
    _engine_gauge("requests_waiting", "Requests waiting at the last scrape."),
    _engine_counter("preemptions_total", "Requests preempted since the agent started."),
    _engine_counter("admission_rejections_total", "Requests refused at admission since the agent started."),
)

STATE = (
    _engine_gauge("engine_state", "1 for the state the engine is in; all 0 when it cannot be told.", "state"),
    _engine_gauge("engine_start_time_seconds", "When the engine's process started, in Unix time."),
)

BREAKER = (
    _gauge(
        "memory_breaker_open",
        (*TARGET_LABELS, "kind"),
        "1 while memory has been over 92 % for 5 s: kind=kv is the KV cache with requests waiting, kind=device the "
        "card of a server that does not preallocate it. Reported, nothing is refused.",
    ),
    _counter("memory_breaker_trips_total", (*TARGET_LABELS, "kind"), "Times the memory breaker opened."),
)

SLO = (
    _counter("slo_events_total", (*TARGET_LABELS, "slo"), "Events the objective speaks of, since the agent started."),
    _counter(
        "slo_bad_events_total",
        (*TARGET_LABELS, "slo", "bound"),
        "Events that missed the objective since the agent started: bound=low are proved bad, bound=high may be. Equal "
        "where the source counts the threshold exactly.",
    ),
    _gauge("slo_objective_ratio", ("slo",), "Share of events that must be good."),
    _gauge(
        "slo_error_budget_remaining_ratio",
        (*TARGET_LABELS, "slo", "bound"),
        "Share of the error budget that is left in the objective's own window; below 0 it is overspent. bound=low is "
        "the least that can be left, bound=high the most.",
    ),
)

PROBE = (
    MetricSpec(
        name="probe_ttft_seconds",
        kind=Kind.HISTOGRAM,
        labels=TARGET_LABELS,
        help="Time to first token of requests ufwatch made: from the last byte sent to the first content.",
    ),
    MetricSpec(
        name="probe_itl_seconds",
        kind=Kind.HISTOGRAM,
        labels=TARGET_LABELS,
        help="Time between tokens of requests ufwatch made, where each was one token and arrived alone.",
    ),
    _gauge(
        "probe_phase_seconds",
        (*TARGET_LABELS, "phase"),
        "Where the time of the last request ufwatch made went; all phases add up to it. Those it did not have, such as "
        "connecting over a kept connection, are absent, and all are once it failed or is three intervals old.",
    ),
    _counter("probe_requests_total", TARGET_LABELS, "Requests ufwatch made to probe the target, failed ones included."),
    _counter(
        "probe_failures_total",
        (*TARGET_LABELS, "phase"),
        "Those that failed, by the phase they failed in; phase=prepare: before anything was sent.",
    ),
)

OTLP = (
    _counter("otlp_spans_exported_total", (), "Spans of ufwatch's own that a trace backend has taken."),
    _counter(
        "otlp_spans_dropped_total", ("reason",), "Spans of ufwatch's own that no trace backend has got, by reason."
    ),
    _counter("otlp_received_spans_total", (), "Spans that servers sent to the receiver."),
    _counter("otlp_refused_requests_total", ("reason",), "OTLP requests that the receiver did not take, by reason."),
    _counter(
        "otlp_forwarded_spans_total", (), "Received spans, with those made of them, that a trace backend has taken."
    ),
    _counter(
        "otlp_forward_dropped_spans_total", ("reason",), "Received spans that no trace backend has got, by reason."
    ),
)

AGENT = (
    *OTLP,
    _gauge(
        "signal_available",
        ("signal", "target", "source", "quality", "reason"),
        "1 when the signal has a value, otherwise 0 with the reason; the labels change with it, so join by signal and "
        "target.",
    ),
    _gauge("source_up", ("source", "target"), "1 when the source's last read succeeded."),
    _gauge(
        "source_age_seconds",
        ("source", "target"),
        "Time since the source last proved to be alive, or since it was first looked at.",
    ),
    _gauge("scrape_seconds", ("target",), "Duration of the last scrape."),
    _gauge("scrape_bytes", ("target",), "Bytes received by the last scrape."),
    _counter("scrapes_total", ("target",), "Scrapes made, failed ones included."),
    _counter("scrape_failures_total", ("target", "reason"), "Scrapes that failed, by reason."),
    _counter("parse_errors_total", ("target",), "Lines of the target's page that could not be read."),
    _gauge("targets", (), "Targets configured or discovered."),
    _gauge("config_reload_success", (), "1 when the last reload of the configuration succeeded."),
    _gauge("build_info", ("version", "python"), "Always 1; the labels say what is running."),
    _counter("agent_cpu_seconds_total", (), "Processor time the agent has used."),
    _gauge("agent_resident_memory_bytes", (), "Resident memory of the agent."),
)

SERVING_FAMILIES = (
    *PAGE_TABLE,
    *GRAPH_COMPILE,
    *PINNED,
    *JITTER,
    *PREFILL_DECODE,
    *EVICTIONS,
    *LATENCY,
    *REQUESTS,
    *STATE,
    *BREAKER,
    *SLO,
    *PROBE,
)
