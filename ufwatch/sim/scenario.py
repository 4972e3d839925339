"""What a simulated server is asked to do and what goes wrong with it; and the ready-made ones, by name.

Pure values. Times are virtual seconds since the server first became ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ufwatch.sim.schedule import Jittery, Steady, StepSchedule, WithStalls

_DEFAULT_SCHEDULE = Steady(0.03)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A load, a schedule and a fate.

    The load comes either at ``arrivals_per_second`` (Poisson) or from ``concurrency`` clients that each send the next
    request when the last one is answered. Both are totals, divided among ``engines``. A prompt is one of
    ``prefix_groups`` shared prefixes of ``prefix_tokens`` tokens followed by a tail of its own.
    """

    name: str
    seed: int = 1
    model_name: str = "sim/llama-3-8b"

    arrivals_per_second: float = 0.0
    concurrency: int = 0
    prefix_groups: int = 4
    prefix_tokens: int = 256
    prompt_tokens: tuple[int, int] = (32, 256)
    """Least and greatest length of a prompt's own tail."""
    output_tokens: tuple[int, int] = (32, 160)

    schedule: StepSchedule = _DEFAULT_SCHEDULE
    prefill_seconds_per_token: float = 5e-5
    """Added to a step for each prompt token computed in it, so that prefill lengthens its neighbours' intervals."""

    engines: int = 1
    api_servers: int = 1
    """More than one puts the page into prometheus_client's multiprocess form."""
    log_stats: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    block_size: int = 16
    num_gpu_blocks: int = 2048
    gpu_memory_utilization: float = 0.92
    kv_cache_metrics: bool = False
    """``--kv-cache-metrics --kv-cache-metrics-sample 1.0``: the families of recycled blocks are on the page."""
    itl_edges: tuple[float, ...] | None = None
    """``--custom-histogram-buckets`` for the inter-token latency."""
    spec_tokens: int = 0
    """Draft tokens a step (0: no speculation), each accepted with ``spec_acceptance`` if those before it were."""
    spec_acceptance: float = 0.7

    restart_every_seconds: float | None = None
    """The process dies at each multiple of this and is back ``restart_down_seconds`` later, with counters at 0."""
    restart_down_seconds: float = 3.0
    stall_at_seconds: float | None = None
    """From here on no step ever ends: gauges stay where they were."""
    sleep_at_seconds: float | None = None
    """From here on nothing arrives, and once drained the engine sleeps (level 1)."""

    retention_seconds: float = 900.0
    """How far back ``truth`` can look."""

    def __post_init__(self) -> None:
        if self.engines < 1 or self.api_servers < 1:
            raise ValueError(f"{self.name}: a server has at least one engine and one API server")
        if self.arrivals_per_second < 0 or self.concurrency < 0:
            raise ValueError(f"{self.name}: load is not negative")
        if self.arrivals_per_second and self.concurrency:
            raise ValueError(f"{self.name}: arrivals_per_second and concurrency exclude each other")
        if not 0 <= self.prompt_tokens[0] <= self.prompt_tokens[1] or self.prefix_tokens + self.prompt_tokens[0] < 1:
            raise ValueError(f"{self.name}: prompt_tokens is a range, and a prompt is not empty")
        if not 1 <= self.output_tokens[0] <= self.output_tokens[1]:
            raise ValueError(f"{self.name}: output_tokens is a range from at least 1")
        longest = self.prefix_tokens + self.prompt_tokens[1] + self.output_tokens[1] + self.spec_tokens
        if longest > self.max_model_len:
            raise ValueError(f"{self.name}: the longest request ({longest} tokens) is over max_model_len")
        # A request that does not fit an empty pool would preempt itself for ever.
        if self.max_model_len > (self.num_gpu_blocks - 1) * self.block_size:
            raise ValueError(f"{self.name}: num_gpu_blocks cannot hold one request of max_model_len")
        if self.restart_every_seconds is not None and self.restart_every_seconds <= self.restart_down_seconds:
            raise ValueError(f"{self.name}: the server would never be up between restarts")


_READY_MADE = (
    # Just under an edge of the latency histogram: a step with a prefill in it falls into the next bucket.
    Scenario(name="steady", arrivals_per_second=1.0, schedule=Steady(0.024)),
    Scenario(
        name="jittery",
        seed=2,
        arrivals_per_second=1.0,
        schedule=WithStalls(Jittery(0.045, 0.035), every=40, stall_seconds=0.4),
    ),
    # Fifteen prefixes of 64 blocks in turn over 640 blocks: the least recently used is always the next one wanted.
    Scenario(
        name="prefix_thrashing",
        seed=3,
        concurrency=4,
        prefix_groups=15,
        prefix_tokens=1024,
        prompt_tokens=(16, 64),
        output_tokens=(16, 48),
        num_gpu_blocks=641,
        kv_cache_metrics=True,
        schedule=Steady(0.025),
    ),
    # Twelve sequences that grow to 60 blocks each over a pool of 400.
    Scenario(
        name="preempting",
        seed=4,
        concurrency=16,
        prefix_groups=1,
        prefix_tokens=32,
        prompt_tokens=(200, 400),
        output_tokens=(200, 600),
        max_model_len=2048,
        num_gpu_blocks=401,
        kv_cache_metrics=True,
        schedule=Jittery(0.03, 0.004),
    ),
    Scenario(name="restarting", seed=5, arrivals_per_second=1.0, restart_every_seconds=90.0),
    Scenario(name="stalled", seed=6, concurrency=4, stall_at_seconds=20.0),
    Scenario(name="two_engines", seed=7, engines=2, arrivals_per_second=2.0, schedule=Jittery(0.03, 0.006)),
    Scenario(name="idle", seed=8),
    Scenario(name="no_stats", seed=9, arrivals_per_second=1.0, log_stats=False),
    Scenario(name="two_api_servers", seed=10, arrivals_per_second=1.0, api_servers=2),
    Scenario(name="spec_decode", seed=11, arrivals_per_second=1.0, spec_tokens=3, schedule=Steady(0.042)),
    Scenario(name="asleep", seed=12, arrivals_per_second=1.0, sleep_at_seconds=20.0),
)

SCENARIOS: Mapping[str, Scenario] = MappingProxyType({scenario.name: scenario for scenario in _READY_MADE})
"""The ready-made scenarios by name."""
