"""The usual way to write such an agent, to compare with: aiohttp, prometheus_client's parser, Gauges, generate_latest.

It keeps one minute of parsed pages per target and derives from its two ends what ufwatch derives: rates, ratios, the
deviation's bounds, means and edges of the 99th percentile. It does not look for restarts, absences or sources.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import aiohttp
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.performance.pages import MODEL
from ufwatch.core.spread import quantile_edges, second_moment_bounds, std_dev

WINDOW = 61
"""Pages of one a second between which a minute lies."""
HISTOGRAMS = (
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
)
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
RATES = (
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:kv_block_lifetime_seconds_count",
)
RATIOS = (
    ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    ("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    ("vllm:request_prefill_time_seconds_sum", "vllm:request_decode_time_seconds_sum"),
)
SERIES = len(GAUGES) + len(RATES) + len(RATIOS) + 3 * len(HISTOGRAMS) + 3


class NaiveTarget:
    """One target: what was read of it in the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, dict[str, float], dict[str, list[tuple[float, float]]]]] = deque(maxlen=WINDOW)

    def step(self, body: bytes, now: float) -> list[float]:
        """The derived values after one more page."""
        numbers: dict[str, float] = {}
        buckets: dict[str, list[tuple[float, float]]] = {}
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                if "le" in sample.labels:
                    buckets.setdefault(family.name, []).append((float(sample.labels["le"]), sample.value))
                else:
                    numbers[sample.name] = sample.value
        self._seen.append((now, numbers, buckets))
        began, before, buckets_before = self._seen[0]
        seconds = now - began or 1.0

        def grown(name: str) -> float:
            return numbers[name] - before[name]

        derived = [numbers[name] for name in GAUGES]
        derived += [grown(name) / seconds for name in RATES]
        derived += [_over(grown(over), grown(under)) for over, under in RATIOS]
        for name in HISTOGRAMS:
            edges = [edge for edge, _ in buckets[name]]
            cumulative = [a - b for (_, a), (_, b) in zip(buckets[name], buckets_before[name], strict=True)]
            n, total = grown(f"{name}_count"), grown(f"{name}_sum")
            low, high = quantile_edges(edges, cumulative, 0.99)
            derived += [_over(total, n), math.nan if low is None else low, math.nan if high is None else high]
            if name == HISTOGRAMS[1]:
                counts = [cumulative[0], *(b - a for a, b in pairwise(cumulative))]
                least, most = (std_dev(n, total, s) or 0.0 for s in second_moment_bounds(edges, counts, total))
                derived += [least, most, math.sqrt(least * most)]
        return derived


def _over(over: float, under: float) -> float:
    return over / under if under else math.nan


class NaiveAgent:
    """Every target once a second, evenly spread."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = urls
        self.scrapes = 0
        self._registry = CollectorRegistry()
        labels = ["target", "model_name", "engine"]
        self._gauges = [
            Gauge(f"naive_{number}", f"Derived value {number}.", labels, registry=self._registry)
            for number in range(SERIES)
        ]

    def render(self) -> bytes:
        return generate_latest(self._registry)

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            await asyncio.gather(*[self._follow(session, at, url) for at, url in enumerate(self.urls)])

    async def _follow(self, session: aiohttp.ClientSession, at: int, url: str) -> None:
        target, due = NaiveTarget(), time.monotonic() + at / len(self.urls)
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            async with session.get(f"{url}/metrics") as answer:
                body = await answer.read()
            for gauge, value in zip(self._gauges, target.step(body, time.monotonic()), strict=True):
                gauge.labels(f"10.0.0.{at}:8000", MODEL, "0").set(value)
            self.scrapes += 1
            due = max(due + 1.0, time.monotonic())
