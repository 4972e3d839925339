"""The end of a step, told twice: to the page's counters as vLLM counts, and to the journal as it was. Pure."""

from __future__ import annotations

from ufwatch.sim.blocks import PoolEvents
from ufwatch.sim.journal import Journal
from ufwatch.sim.load import Request
from ufwatch.sim.stats import ITL, EngineStats


class Outcome:
    """Collects what one step yielded; ``close`` must be called once, last."""

    __slots__ = ("_at", "_computed", "_generated", "_intervals", "_journal", "_stats")

    def __init__(self, at: float, stats: EngineStats, journal: Journal) -> None:
        self._at = at
        self._stats = stats
        self._journal = journal
        self._intervals: dict[float, int] = {}
        self._computed = 0
        self._generated = 0

    def yielded(self, request: Request, count: int) -> None:
        """A request got ``count`` tokens: its first ones, or an interval after the last ones."""
        at = self._at
        self._generated += count
        if request.first_at is None:
            request.first_at = at
            self._first(request)
        else:
            interval = at - request.last_at
            self._intervals[interval] = self._intervals.get(interval, 0) + 1
        request.last_at = at

    def _first(self, request: Request) -> None:
        stats, journal, at = self._stats, self._journal, self._at
        computed = request.prompt_tokens - request.cached
        self._computed += computed
        stats.prompt_tokens += request.prompt_tokens
        stats.cached_tokens += request.cached
        journal.count(journal.computed, at, computed)
        journal.count(journal.cached, at, request.cached)
        waited = at - request.arrival
        stats.observe("vllm:time_to_first_token_seconds", waited)
        journal.ttft.add(at, waited)

    def finished(self, request: Request) -> None:
        """A request got its last token; the step's tokens have been told before."""
        stats, journal, at = self._stats, self._journal, self._at
        scheduled, first = request.scheduled_at, request.first_at
        if scheduled is None or first is None:
            raise ValueError("a request cannot finish before its first token")
        stats.finished[request.reason] = stats.finished.get(request.reason, 0) + 1
        e2e, queue, decode = at - request.arrival, scheduled - request.arrival, at - first
        generated = request.generated
        for family, value in (
            ("vllm:e2e_request_latency_seconds", e2e),
            ("vllm:request_queue_time_seconds", queue),
            ("vllm:request_inference_time_seconds", at - scheduled),
            ("vllm:request_prefill_time_seconds", first - scheduled),
            ("vllm:request_decode_time_seconds", decode),
            ("vllm:request_time_per_output_token_seconds", decode / (generated - 1) if generated > 1 else 0.0),
            ("vllm:request_prompt_tokens", request.prompt_tokens),
            ("vllm:request_generation_tokens", generated),
            ("vllm:request_max_num_generation_tokens", generated),
            ("vllm:request_params_n", 1),
            ("vllm:request_params_max_tokens", request.max_tokens),
            ("vllm:request_num_preemptions", request.preemptions),
            ("vllm:request_prefill_kv_computed_tokens", request.prompt_tokens - request.cached),
            ("http_request_duration_highr_seconds", e2e),
            ("http_request_duration_seconds", e2e),
        ):
            stats.observe(family, value)
        journal.e2e.add(at, e2e)
        journal.queue.add(at, queue)
        journal.prefill_seconds.add(at, first - scheduled)
        journal.decode_seconds.add(at, decode)

    def looked_up(self, tokens: int, hits: int, *, preempted: bool, admitted: bool) -> None:
        """A request asked for its prefix, once for every time the scheduler tried to run it."""
        stats, journal, at = self._stats, self._journal, self._at
        stats.all_attempts.add(tokens, hits)
        if not preempted:
            stats.fresh_attempts.add(tokens, hits)
        if not admitted:
            return
        stats.prompt_tokens_with_recompute += tokens
        if preempted:
            journal.count(journal.recomputed, at, tokens - hits)
        else:
            stats.admitted.add(tokens, hits)
            stats.cached_at_admission += hits
            journal.count(journal.looked_up, at, tokens)
            journal.count(journal.missed, at, tokens - hits)

    def close(self, preempted: int, events: PoolEvents, *, kv_metrics: bool) -> None:
        """Writes what was collected and what happened to requests and blocks."""
        stats, journal, at = self._stats, self._journal, self._at
        for interval, count in self._intervals.items():
            stats.observe(ITL, interval, count)
            journal.intervals.add(at, interval, count)
        if self._generated:
            stats.generation_tokens += self._generated
            journal.decoded.add(at, self._generated)
            stats.observe("vllm:iteration_tokens_total", self._computed + self._generated)
        stats.preemptions += preempted
        journal.count(journal.preempted, at, preempted)
        journal.count(journal.evicted, at, len(events.evicted))
        journal.count(journal.recycled, at, len(events.lifetimes))
        if kv_metrics:
            for family, values in (
                ("vllm:kv_block_lifetime_seconds", events.lifetimes),
                ("vllm:kv_block_idle_before_evict_seconds", events.idle),
                ("vllm:kv_block_reuse_gap_seconds", events.reuse_gaps),
            ):
                for value in values:
                    stats.observe(family, value)
