"""How much cheaper our page is than ``prometheus_client.generate_latest`` over a custom Collector, as one JSON line.

Both write the same series with the same values in the same process, in turn, and every value moves between two
renders. Ours is the whole way from samples to bytes (put and text); theirs starts from bare values. CPU time; the
median of the rounds' ratios.

Two data sets. ``x50``, ``x500`` and ``x5000`` take what a target shows, in about its proportions: states and
availabilities, token counts, bucket edges, ratios and seconds. ``floats_…`` makes every value a random 17-digit
float, the dearest to print: two thirds of our time then go into ``repr``, which both sides pay.

Run as ``python tests/performance/render.py``.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
STATE = ("engine", "model_name", "state", "target")
AVAILABLE = ("quality", "reason", "signal", "source", "target")
EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
SERIES: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    *(("engine_state", STATE, "flag", state) for state in ("starting", "serving", "idle", "stalled", "asleep", "down")),
    *(
        ("signal_available", AVAILABLE, "flag", signal)
        for signal in ("sm_utilization", "page_table_miss", "token_jitter", "prefill_decode", "kv_evictions")
    ),
    ("page_table_miss_ratio", SIGNAL, "float", ""),
    ("page_table_lookups_total", SIGNAL, "count", ""),
    ("page_table_misses_total", SIGNAL, "count", ""),
    ("token_jitter_seconds", SIGNAL, "float", ""),
    ("token_jitter_low_seconds", SIGNAL, "float", ""),
    ("token_jitter_high_seconds", SIGNAL, "float", ""),
    ("token_intervals_total", SIGNAL, "count", ""),
    ("token_interval_seconds_total", SIGNAL, "float", ""),
    ("token_interval_squared_low_total", SIGNAL, "float", ""),
    ("token_interval_squared_high_total", SIGNAL, "float", ""),
    ("prefill_decode_ratio", SIGNAL, "float", ""),
    ("prefill_tokens_total", SIGNAL, "count", ""),
    ("decode_tokens_total", SIGNAL, "count", ""),
    ("prefill_seconds_total", SIGNAL, "float", ""),
    ("decode_seconds_total", SIGNAL, "float", ""),
    ("kv_evictions_per_second", SIGNAL, "float", ""),
    ("kv_evictions_total", SIGNAL, "count", ""),
    ("kv_cache_usage_ratio", SERVING, "float", ""),
    ("kv_turnover_per_minute", SERVING, "float", ""),
    ("pinned_alloc_success_ratio", SIGNAL, "float", ""),
    ("pinned_alloc_attempts_total", SIGNAL, "count", ""),
    ("pinned_alloc_bytes_total", SIGNAL, "count", ""),
    ("pinned_alloc_seconds_total", SIGNAL, "float", ""),
    *(
        (f"{latency}_{what}_seconds", SERVING, "float" if what == "mean" else "edge", "")
        for latency in ("ttft", "itl", "tpot", "e2e")
        for what in ("mean", "p99_low", "p99_high")
    ),
    ("requests_running", SERVING, "count", ""),
    ("requests_waiting", SERVING, "count", ""),
    ("preemptions_total", SERVING, "count", ""),
    ("source_age_seconds", ("source", "target"), "float", ""),
)
"""The fifty series of an engine: name, labels (sorted, as prometheus_client writes them), kind of value, last label."""
ENGINES = 2
"""Engines per target, and thus a hundred series put at a time where there are that many."""
ROUNDS = 25


def families() -> tuple[MetricSpec, ...]:
    """The families of ``SERIES`` in their order."""
    shapes = {name: labels for name, labels, _, _ in SERIES}
    return tuple(
        MetricSpec(
            name=name,
            kind=Kind.COUNTER if name.endswith("_total") else Kind.GAUGE,
            labels=labels,
            help=f"Derived signal {name} of the inference server, over the window.",
        )
        for name, labels in shapes.items()
    )


def labels_of(names: Sequence[str], variant: str, row: int) -> Labels:
    """Labels of one series of the ``row``-th engine."""
    target, engine = divmod(row, ENGINES)
    values = {
        "engine": f"{engine}",
        "model_name": "meta-llama/Llama-3.3-70B-Instruct",
        "quality": "exact",
        "reason": "",
        "signal": variant,
        "source": f"histogram-{engine}" if "engine" not in names else "histogram",
        "state": variant,
        "target": f"10.0.{target // 250}.{target % 250}:8000",
    }
    return tuple((name, values[name]) for name in names)


def next_value(kind: str, before: float, random_floats: bool, rng: random.Random) -> float:
    """A value that differs from the one before."""
    if random_floats:
        return rng.random() * 1000
    if kind == "flag":
        return 1.0 - before
    if kind == "count":
        # Token and byte counts pass a million within minutes, request counts hardly do.
        return (before or 10.0 ** rng.randint(0, 8) // 1) + rng.randint(1, 4000)
    if kind == "edge":
        return rng.choice([edge for edge in EDGES if edge != before])
    return rng.random()


@dataclass(slots=True, eq=False)
class Theirs(Collector):
    """The same series as a custom Collector, the usual way to write an exporter. ``values`` is as ``labels``."""

    specs: dict[str, MetricSpec]
    labels: list[list[list[str]]]
    values: list[list[float]]

    def collect(self) -> Iterator[Metric]:
        found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for (name, names, _, _), rows, values in zip(SERIES, self.labels, self.values, strict=True):
            family = found.get(name)
            if family is None:
                spec = self.specs[name]
                made = CounterMetricFamily if spec.kind is Kind.COUNTER else GaugeMetricFamily
                family = found[name] = made(PREFIX + name, spec.help, labels=names)
            for row, value in zip(rows, values, strict=True):
                family.add_metric(row, value)
        return iter(found.values())


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
    engines = series // len(SERIES)
    rng = random.Random(series)
    labels = [[labels_of(names, variant, row) for row in range(engines)] for _, names, _, variant in SERIES]
    theirs = Theirs({s.name: s for s in specs}, [[[value for _, value in row] for row in rows] for rows in labels], [])
    registry = CollectorRegistry(auto_describe=False)
    registry.register(theirs)
    page = Page(specs)
    clock = clock_cost()
    repeats = max(2, 1000 // series)
    values = [[0.0] * engines for _ in SERIES]
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        sets = []
        for _ in range(repeats):
            values = [
                [next_value(kind, value, random_floats, rng) for value in row]
                for row, (_, _, kind, _) in zip(values, SERIES, strict=True)
            ]
            sets.append(values)
        spent_theirs = spent_ours = 0.0
        for values in sets:
            theirs.values = values
            spent, expected = timed(lambda: generate_latest(registry))
            spent_theirs += spent
        for values in sets:
            for first in range(0, engines, ENGINES):
                # As in the agent: a target is derived, then put at once. Deriving is not what is measured.
                samples = [
                    Sample(name, own_labels[row], own_values[row])
                    for row in range(first, min(first + ENGINES, engines))
                    for (name, _, _, _), own_labels, own_values in zip(SERIES, labels, values, strict=True)
                ]
                start = process_time()
                page.put(f"target:{first}", samples)
                spent_ours += process_time() - start - clock
            spent, text = timed(page.text)
            spent_ours += spent
        if sorted(text.splitlines()) != sorted(expected.splitlines()):
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
