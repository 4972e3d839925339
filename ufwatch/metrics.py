"""The raw metrics a vLLM page promises, by every name they have had since 0.8.5.

Floor 1: pure data. The first name that is present wins; an old and a new name of the same thing are never added.
Sources of the renames: vLLM's own deprecations (``gpu_cache_usage_perc`` → ``kv_cache_usage_perc`` and
``time_per_output_token_seconds`` → ``inter_token_latency_seconds`` around 0.10, ``gpu_prefix_cache_*`` →
``prefix_cache_*`` in 0.9), each seen on the recorded pages in ``tests/captures``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Raw:
    """One number per engine: the sample names it has had, newest first, and the label it is narrowed to.

    Without ``where`` every series of the name that belongs to the engine is summed (finish reasons, served aliases).
    """

    id: str
    names: tuple[str, ...]
    where: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class RawHistogram:
    """A histogram per engine; its ``_sum`` and ``_count`` are counters of their own, its buckets a cumulative list."""

    id: str
    families: tuple[str, ...]


COUNTERS: tuple[Raw, ...] = (
    Raw("prompt_tokens", ("vllm:prompt_tokens_total",)),
    Raw("prompt_by_source", ("vllm:prompt_tokens_by_source_total",)),
    Raw("prompt_computed", ("vllm:prompt_tokens_by_source_total",), ("source", "local_compute")),
    Raw("generation_tokens", ("vllm:generation_tokens_total",)),
    Raw("prefix_queries", ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")),
    Raw("prefix_hits", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")),
    Raw("preemptions", ("vllm:num_preemptions_total",)),
    Raw("recycles", ("vllm:kv_block_lifetime_seconds_count",)),
    Raw("prefill_seconds", ("vllm:request_prefill_time_seconds_sum",)),
    Raw("decode_seconds", ("vllm:request_decode_time_seconds_sum",)),
    Raw("request_prompt_tokens", ("vllm:request_prompt_tokens_sum",)),
    Raw("requests_finished", ("vllm:request_prompt_tokens_count",)),
    Raw("draft_tokens", ("vllm:spec_decode_num_draft_tokens_total",)),
    Raw("admission_rejections", ("vllm:admission_rejections_total",)),
    Raw("engine_steps", ("vllm:iteration_tokens_total_count",)),  # a histogram whose name ends in _total
)

GAUGES: tuple[Raw, ...] = (
    Raw("running", ("vllm:num_requests_running",)),
    Raw("waiting", ("vllm:num_requests_waiting",)),
    Raw("kv_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
    Raw("awake", ("vllm:engine_sleep_state",), ("sleep_state", "awake")),
    Raw("created", ("vllm:generation_tokens_created",)),
)

HISTOGRAMS: tuple[RawHistogram, ...] = (
    RawHistogram("ttft", ("vllm:time_to_first_token_seconds",)),
    RawHistogram("itl", ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")),
    RawHistogram("tpot", ("vllm:request_time_per_output_token_seconds",)),
    RawHistogram("e2e", ("vllm:e2e_request_latency_seconds",)),
    RawHistogram("queue", ("vllm:request_queue_time_seconds",)),
)

PROCESS_START = "process_start_time_seconds"
CACHE_CONFIG = "vllm:cache_config_info"

COUNTER_INDEX = {raw.id: position for position, raw in enumerate(COUNTERS)}
GAUGE_INDEX = {raw.id: position for position, raw in enumerate(GAUGES)}
HISTOGRAM_INDEX = {raw.id: position for position, raw in enumerate(HISTOGRAMS)}


def _wanted() -> frozenset[bytes]:
    names = {name for raw in (*COUNTERS, *GAUGES) for name in raw.names} | {PROCESS_START, CACHE_CONFIG}
    for histogram in HISTOGRAMS:
        for family in histogram.families:
            names |= {f"{family}_bucket", f"{family}_sum", f"{family}_count"}
    return frozenset(name.encode() for name in names)


WANTED_SAMPLES: frozenset[bytes] = _wanted()
"""The sample names that are read off a page; everything else is only checked for having stayed in place."""
