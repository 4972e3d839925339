"""Which number a sample of an engine shows, in each version's way of counting. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ufwatch.sim.stats import EngineStats, Lookups

ENGINE_V1_SINCE = (0, 9)
_COUNTED_ONCE_SINCE = (0, 27, 1)
_PREEMPTED_LEFT_OUT_SINCE = (0, 11)

Read = Callable[[], float]


def reader(name: str, value: str, stats: EngineStats, version: tuple[int, ...]) -> Read:
    """What a sample shows; 0 for what this server never does (images, external caches, FLOP estimates)."""
    lookups = _lookups(stats, version)
    awake = {"awake": lambda: float(not stats.asleep), "weights_offloaded": lambda: float(stats.asleep)}
    by_source = {
        "local_compute": lambda: stats.prompt_tokens - stats.cached_tokens,
        "local_cache_hit": lambda: stats.cached_tokens,
    }
    plain: dict[str, Read] = {
        "vllm:num_requests_running": lambda: stats.running,
        "vllm:num_requests_waiting": lambda: stats.waiting,
        "vllm:gpu_cache_usage_perc": lambda: stats.usage,
        "vllm:kv_cache_usage_perc": lambda: stats.usage,
        "vllm:gpu_prefix_cache_queries_total": lambda: lookups.queries,
        "vllm:prefix_cache_queries_total": lambda: lookups.queries,
        "vllm:gpu_prefix_cache_hits_total": lambda: lookups.hits,
        "vllm:prefix_cache_hits_total": lambda: lookups.hits,
        "vllm:num_preemptions_total": lambda: stats.preemptions,
        "vllm:prompt_tokens_total": lambda: stats.prompt_tokens,
        "vllm:prompt_tokens_cached_total": lambda: stats.cached_tokens,
        "vllm:generation_tokens_total": lambda: stats.generation_tokens,
        "vllm:spec_decode_num_drafts_total": lambda: stats.drafts,
        "vllm:spec_decode_num_draft_tokens_total": lambda: stats.draft_tokens,
        "vllm:spec_decode_num_accepted_tokens_total": lambda: sum(stats.accepted_at),
    }
    if version < ENGINE_V1_SINCE:
        plain["vllm:prompt_tokens_total"] = lambda: stats.prompt_tokens_with_recompute
    labelled: dict[tuple[str, str], Read] = {
        ("vllm:num_requests_waiting_by_reason", "capacity"): lambda: stats.waiting,
        ("vllm:engine_sleep_state", value): awake.get(value, lambda: 0.0),
        ("vllm:prompt_tokens_by_source_total", value): by_source.get(value, lambda: 0),
        ("vllm:prompt_tokens_cached_by_source_total", "device"): lambda: stats.cached_at_admission,
        ("vllm:request_success_total", value): lambda: stats.finished.get(value, 0),
    }
    if name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
        return lambda: stats.accepted_at[int(value)]
    return labelled.get((name, value)) or plain.get(name) or (lambda: 0.0)


def _lookups(stats: EngineStats, version: tuple[int, ...]) -> Lookups:
    if version >= _COUNTED_ONCE_SINCE:
        return stats.admitted
    return stats.fresh_attempts if version >= _PREEMPTED_LEFT_OUT_SINCE else stats.all_attempts
