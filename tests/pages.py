"""Feeding recorded or hand-written pages through decode and core, at times the test chooses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ufwatch.config import TargetConfig
from ufwatch.core.target import EngineTotals, Seen, TargetReport, TargetState, begin, step
from ufwatch.decode.layout import Layouts, PageReader
from ufwatch.decode.vllm import VllmPage, decode
from ufwatch.metrics import WANTED_SAMPLES
from ufwatch.model import UP, Health, Reading, Reason

HERE = Path(__file__).parent
VLLM = HERE / "captures" / "vllm"
GPU = HERE / "captures" / "gpu"
CASES = HERE / "cases"


def capture(name: str) -> bytes:
    """A recorded page, such as ``metrics-0.32.0-load`` or ``vllm-0.24.0-h200-idle``."""
    folder = GPU if "h200" in name else VLLM
    return (folder / f"{name}.prom").read_bytes()


def openmetrics_families(page: str) -> list[Metric]:
    """A page as prometheus_client reads it; ValueError where it is not OpenMetrics."""
    return list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]


class Feed:
    """One target fed page by page."""

    def __init__(
        self, *, interval: float = 5.0, whole_run: bool = True, began: float = 0.0, wall: float | None = None
    ) -> None:
        self.wall = wall
        config = TargetConfig(name="t", url="http://t")
        self.state: TargetState = begin(
            config, began, interval_seconds=interval, window_seconds=None if whole_run else 60.0
        )
        self._reader = PageReader(Layouts(WANTED_SAMPLES))

    def decode(self, body: bytes) -> VllmPage:
        return decode(*self._reader.read(body))

    def page(self, at: float, body: bytes, extra: Mapping[str, EngineTotals] | None = None) -> TargetReport:
        wall = None if self.wall is None else self.wall + at
        seen = Seen(at_seconds=at, health=UP, wall_seconds=wall, page=self.decode(body), extra=extra or {})
        self.state, report = step(self.state, seen)
        return report

    def fail(self, at: float, reason: Reason = Reason.CONNECT) -> TargetReport:
        self.state, report = step(self.state, Seen(at_seconds=at, health=Health(up=False, reason=reason)))
        return report


def feed(pages: Iterable[tuple[float, bytes]]) -> TargetReport:
    """The report after these pages, over all of them."""
    target = Feed()
    report: TargetReport | None = None
    for at, body in pages:
        report = target.page(at, body)
    assert report is not None
    return report


def reading(report: TargetReport, signal: str, engine: str = "0", **labels: str) -> Reading:
    """The one reading of this signal, engine and further labels."""
    wanted = (("engine", engine), *labels.items())
    found = [r for e in report.engines for r in e.readings if r.signal == signal and r.labels == wanted]
    assert len(found) == 1, f"{signal}{wanted}: {found}"
    return found[0]


def engine_page(
    *,
    generation: float = 0.0,
    prompt: float = 0.0,
    running: float = 0.0,
    waiting: float = 0.0,
    usage: float = 0.0,
    start: float | None = None,
    preemptions: float | None = None,
    engine: str = "0",
    buckets: Mapping[str, float] | None = None,
    interval_sum: float = 0.0,
    more: str = "",
) -> bytes:
    """A small page of one engine. ``buckets`` are cumulative counts of the inter-token histogram by edge."""
    labels = f'engine="{engine}",model_name="m"'
    lines = [
        f"vllm:generation_tokens_total{{{labels}}} {generation}",
        f"vllm:prompt_tokens_total{{{labels}}} {prompt}",
        f"vllm:num_requests_running{{{labels}}} {running}",
        f"vllm:num_requests_waiting{{{labels}}} {waiting}",
        f"vllm:kv_cache_usage_perc{{{labels}}} {usage}",
    ]
    if start is not None:
        lines.append(f"process_start_time_seconds {start}")
    if preemptions is not None:
        lines.append(f"vllm:num_preemptions_total{{{labels}}} {preemptions}")
    if buckets is not None:
        name = "vllm:inter_token_latency_seconds"
        lines += [f'{name}_bucket{{{labels},le="{edge}"}} {count}' for edge, count in buckets.items()]
        lines.append(f"{name}_count{{{labels}}} {max(buckets.values())}")
        lines.append(f"{name}_sum{{{labels}}} {interval_sum}")
    return ("\n".join([*lines, *([more] if more else [])]) + "\n").encode()
