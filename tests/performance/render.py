"""How much cheaper our page is than ``prometheus_client.generate_latest`` over a custom Collector, as one JSON line.

Both write the same series with the same values in the same process, in turn, and every value moves between two
renders. Ours is the whole way from samples to bytes (put and text); theirs starts from bare values. CPU time, medians.

Two data sets: ``x50``, ``x500`` and ``x5000`` take the families, labels and kinds of numbers that a target shows (token
counts, sums of seconds, ratios); ``floats_…`` makes every value a random 17-digit float, the dearest to print, and
most of what is left is then ``repr``, which both sides pay.

Run as ``python tests/performance/render.py``.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from time import process_time

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from ufwatch.model import Labels, Sample
from ufwatch.render.exposition import Page
from ufwatch.spec import PREFIX, Kind, MetricSpec

SERVING = ("engine", "model_name", "target")
SIGNAL = ("engine", "model_name", "source", "target")
SHAPE: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("page_table_miss_ratio", SIGNAL, "float"),
    ("page_table_lookups_total", SIGNAL, "count"),
    ("page_table_misses_total", SIGNAL, "count"),
    ("token_jitter_seconds", SIGNAL, "float"),
    ("token_jitter_low_seconds", SIGNAL, "float"),
    ("token_jitter_high_seconds", SIGNAL, "float"),
    ("token_intervals_total", SIGNAL, "count"),
    ("token_interval_seconds_total", SIGNAL, "float"),
    ("token_interval_squared_low_total", SIGNAL, "float"),
    ("token_interval_squared_high_total", SIGNAL, "float"),
    ("token_interval_squared_total", SIGNAL, "float"),
    ("prefill_decode_ratio", SIGNAL, "float"),
    ("prefill_tokens_total", SIGNAL, "count"),
    ("decode_tokens_total", SIGNAL, "count"),
    ("prefill_seconds_total", SIGNAL, "float"),
    ("decode_seconds_total", SIGNAL, "float"),
    ("kv_evictions_per_second", SIGNAL, "float"),
    ("kv_evictions_total", SIGNAL, "count"),
    ("kv_blocks", SERVING, "count"),
    ("kv_cache_usage_ratio", SERVING, "float"),
    ("kv_turnover_per_minute", SERVING, "float"),
    ("pinned_alloc_success_ratio", SIGNAL, "float"),
    ("pinned_alloc_attempts_total", SIGNAL, "count"),
    ("pinned_alloc_bytes_total", SIGNAL, "count"),
    ("pinned_alloc_seconds_total", SIGNAL, "float"),
    ("graph_compile_last_start_seconds", SIGNAL, "float"),
    ("graph_compiles_total", SIGNAL, "count"),
    ("ttft_mean_seconds", SERVING, "float"),
    ("ttft_p99_low_seconds", SERVING, "edge"),
    ("ttft_p99_high_seconds", SERVING, "edge"),
    ("itl_mean_seconds", SERVING, "float"),
    ("itl_p99_low_seconds", SERVING, "edge"),
    ("itl_p99_high_seconds", SERVING, "edge"),
    ("tpot_mean_seconds", SERVING, "float"),
    ("tpot_p99_low_seconds", SERVING, "edge"),
    ("tpot_p99_high_seconds", SERVING, "edge"),
    ("e2e_mean_seconds", SERVING, "float"),
    ("e2e_p99_low_seconds", SERVING, "edge"),
    ("e2e_p99_high_seconds", SERVING, "edge"),
    ("queue_mean_seconds", SERVING, "float"),
    ("queue_p99_low_seconds", SERVING, "edge"),
    ("queue_p99_high_seconds", SERVING, "edge"),
    ("requests_running", SERVING, "count"),
    ("requests_waiting", SERVING, "count"),
    ("preemptions_total", SERVING, "count"),
    ("admission_rejections_total", SERVING, "count"),
    ("gpu_share_ratio", SERVING, "float"),
    ("source_age_seconds", SIGNAL, "float"),
    ("scrape_seconds", SIGNAL, "float"),
    ("scrape_bytes_total", SIGNAL, "count"),
)
EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
ENGINES = 2
"""Engines per target, and thus a hundred series put at a time where there are that many."""
ROUNDS = 25


def families() -> tuple[MetricSpec, ...]:
    """Fifty families as a target shows them; labels in alphabetical order, since prometheus_client sorts them."""
    return tuple(
        MetricSpec(
            name=name,
            kind=Kind.COUNTER if name.endswith("_total") else Kind.GAUGE,
            labels=labels,
            help=f"Derived signal {name} of the inference server, over the window.",
        )
        for name, labels, _ in SHAPE
    )


def labels_of(names: Sequence[str], row: int) -> Labels:
    target, engine = divmod(row, ENGINES)
    values = {
        "engine": f"{engine}",
        "model_name": "meta-llama/Llama-3.3-70B-Instruct",
        "source": "histogram",
        "target": f"10.0.{target // 250}.{target % 250}:8000",
    }
    return tuple((name, values[name]) for name in names)


def next_value(kind: str, before: float, random_floats: bool, rng: random.Random) -> float:
    """A value that differs from the one before."""
    if random_floats:
        return rng.random() * 1000
    if kind == "count":
        # Token and byte counts pass a million within minutes, request counts hardly do.
        return (before or 10.0 ** rng.randint(0, 8) // 1) + rng.randint(1, 4000)
    if kind == "edge":
        return rng.choice([edge for edge in EDGES if edge != before])
    return rng.random()


class Theirs(Collector):
    """The same series as a custom Collector, the usual way to write an exporter."""

    def __init__(self, specs: Sequence[MetricSpec], rows: int) -> None:
        self.specs = specs
        self.rows = [[[value for _, value in labels_of(s.labels, row)] for row in range(rows)] for s in specs]
        self.values: list[list[float]] = []

    def collect(self) -> Iterator[Metric]:
        for spec, rows, values in zip(self.specs, self.rows, self.values, strict=True):
            made = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
            family = made(PREFIX + spec.name, spec.help, labels=spec.labels)
            for row, value in zip(rows, values, strict=True):
                family.add_metric(row, value)
            yield family


def parsed(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What prometheus_client's own parser reads from a page."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def clock_cost() -> float:
    """CPU seconds that one reading of the clock adds to what it measures: a system call, made for every put."""
    readings = [process_time() for _ in range(10_000)]
    return (readings[-1] - readings[0]) / (len(readings) - 1)


def timed(work: Callable[[], bytes]) -> tuple[float, bytes]:
    start = process_time()
    page = work()
    return process_time() - start, page


def compare(series: int, *, random_floats: bool) -> list[tuple[float, float]]:
    """CPU seconds per render, theirs and ours, in each round at this many series; exits if the pages differ."""
    specs = families()
    rows = series // len(specs)
    rng = random.Random(series)
    theirs = Theirs(specs, rows)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(theirs)
    page = Page(specs)
    all_labels = [[labels_of(spec.labels, row) for row in range(rows)] for spec in specs]
    clock = clock_cost()
    repeats = max(2, 1000 // series)
    values = [[0.0] * rows for _ in specs]
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        sets = []
        for _ in range(repeats):
            values = [
                [next_value(kind, value, random_floats, rng) for value in row]
                for row, (_, _, kind) in zip(values, SHAPE, strict=True)
            ]
            sets.append(values)
        spent_theirs = spent_ours = 0.0
        for values in sets:
            theirs.values = values
            spent, expected = timed(lambda: generate_latest(registry))
            spent_theirs += spent
        for values in sets:
            for first in range(0, rows, ENGINES):
                # As in the agent: a target is derived, then put at once. Deriving is not what is measured.
                samples = [
                    Sample(spec.name, labels[row], row_values[row])
                    for row in range(first, min(first + ENGINES, rows))
                    for spec, labels, row_values in zip(specs, all_labels, values, strict=True)
                ]
                start = process_time()
                page.put(f"target:{first}", samples)
                spent_ours += process_time() - start - clock
            spent, text = timed(page.text)
            spent_ours += spent
        if text != expected:
            raise SystemExit("the pages differ")
        rounds.append((spent_theirs / repeats, spent_ours / repeats))
    if parsed(text) != parsed(expected) or len(parsed(text)) != series or page.dropped_total:
        raise SystemExit("the pages read back differently")
    return rounds


def main() -> None:
    result: dict[str, float] = {}
    for prefix, random_floats in (("x", False), ("floats_x", True)):
        for series in (50, 500, 5000):
            rounds = compare(series, random_floats=random_floats)
            theirs, ours = (statistics.median(column) * 1e6 for column in zip(*rounds, strict=True))
            ratio = statistics.median(theirs / ours for theirs, ours in rounds)
            print(f"{prefix}{series}: generate_latest {theirs:.0f} us, ours {ours:.0f} us, {ratio:.1f}x")
            result[f"{prefix}{series}"] = round(ratio, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
