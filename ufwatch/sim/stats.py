"""The numbers one engine process keeps for its page, from 0 when the process starts. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from ufwatch.sim.layout import families
from ufwatch.sim.scenario import Scenario

ITL = "vllm:inter_token_latency_seconds"
TPOT_AS_ITL = "vllm:time_per_output_token_seconds"
"""What the inter-token latency was called before 0.10; both names show the same observations."""
CUSTOM_EDGES = (ITL, "vllm:request_time_per_output_token_seconds")
"""The families whose edges ``--custom-histogram-buckets`` for the inter-token latency replaces."""


class Histogram:
    """Counts per bucket (not cumulative; the last is +Inf's) and the sum of the observations."""

    __slots__ = ("count", "counts", "edges", "sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts equal observations; an edge belongs to the bucket under it."""
        self.counts[bisect_left(self.edges, value)] += times
        self.count += times
        self.sum += value * times


@dataclass(slots=True)
class Lookups:
    """Prefix-cache look-ups in tokens."""

    queries: int = 0
    hits: int = 0

    def add(self, queries: int, hits: int) -> None:
        self.queries += queries
        self.hits += hits


@dataclass(slots=True)
class EngineStats:
    """Counters, gauges and histograms of one engine.

    Prefix look-ups are kept in the three ways vLLM has counted them: once when admitted (from 0.27.1), at every
    scheduling attempt of requests not preempted (0.11 to 0.26), and at every attempt whatsoever (up to 0.10).
    """

    histograms: dict[str, Histogram]
    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    asleep: bool = False
    preemptions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens_with_recompute: int = 0
    """What engine V0 counted: every prefill, also of a preempted request."""
    cached_at_admission: int = 0
    generation_tokens: int = 0
    admitted: Lookups = field(default_factory=Lookups)
    fresh_attempts: Lookups = field(default_factory=Lookups)
    all_attempts: Lookups = field(default_factory=Lookups)
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0})
    drafts: int = 0
    draft_tokens: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """Accepted draft tokens by position."""

    def observe(self, family: str, value: float, times: int = 1) -> None:
        self.histograms[family].observe(value, times)


def new_stats(scenario: Scenario) -> EngineStats:
    """Everything at 0, with the histograms of every version."""
    histograms = {
        family.name: Histogram(family.edges_for(scenario.max_model_len))
        for family in families()
        if family.type == "histogram"
    }
    if scenario.itl_edges is not None:
        histograms.update({family: Histogram(scenario.itl_edges) for family in CUSTOM_EDGES})
    histograms[TPOT_AS_ITL] = histograms[ITL]
    return EngineStats(histograms=histograms, accepted_at=[0] * max(scenario.spec_tokens, 3))
