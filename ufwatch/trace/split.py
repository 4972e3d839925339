"""The server's own durations of one request, from the best source there is. Pure.

Best first: vLLM's ``llm_request`` span; the ``metrics`` object of its last chunk; what its histograms grew by between
two scrapes; nothing, with the reason and what would help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ufwatch.decode.layout import Layouts, PageReader, PageTooLarge
from ufwatch.metrics import PROCESS_START
from ufwatch.trace.chunkjson import finite
from ufwatch.trace.conventions import Name
from ufwatch.trace.model import Exchange, ServerSplit, SplitSource
from ufwatch.trace.record import seconds_of

_FAMILIES = {
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "inference": "vllm:request_inference_time_seconds",
    "ttft": "vllm:time_to_first_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}
_SAMPLES = {f"{family}{suffix}": (what, suffix) for what, family in _FAMILIES.items() for suffix in ("_sum", "_count")}
WANTED = frozenset(name.encode() for name in (*_SAMPLES, PROCESS_START))
"""What :func:`read_sums` reads off a page."""
_BEST_FIRST = (SplitSource.SPAN, SplitSource.BODY, SplitSource.HISTOGRAM, SplitSource.NONE)
_HELP = "start vLLM with --otlp-traces-endpoint, or with --enable-per-request-metrics"

_Series = tuple[str, str, str]
"""Quantity, model, engine."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Sum (seconds) and count of every request histogram on one page."""

    series: Mapping[_Series, tuple[float, float]]
    process_start: float | None = None

    @property
    def models(self) -> frozenset[str]:
        return frozenset(model for _, model, _ in self.series)


def unavailable(why: str) -> ServerSplit:
    """No split; ``why`` says what stood in the way."""
    return ServerSplit(SplitSource.NONE, why=f"{why}; {_HELP}")


def from_span(attributes: Mapping[str, object], start_unix_ns: int, end_unix_ns: int) -> ServerSplit:
    """The split of an ``llm_request`` span. Attributes that are no durations are taken as absent."""
    found = {
        what: seconds_of(attributes.get(name))
        for what, name in (
            ("queue", Name.VLLM_QUEUE),
            ("prefill", Name.VLLM_PREFILL),
            ("decode", Name.VLLM_DECODE),
            ("ttft", Name.VLLM_TTFT),
            ("e2e", Name.VLLM_E2E),
        )
    }
    if all(value is None for value in found.values()):
        return unavailable("the server's span holds no durations")
    return ServerSplit(
        SplitSource.SPAN,
        queue=found["queue"],
        prefill=found["prefill"],
        decode=found["decode"],
        ttft=found["ttft"],
        e2e=found["e2e"],
        start_unix_ns=start_unix_ns,
        end_unix_ns=end_unix_ns,
    )


def is_span_of(exchange: Exchange, trace_id: str, attributes: Mapping[str, object]) -> bool:
    """Whether an ``llm_request`` span is this request's: by the trace, or, where a hop lost that, by the request."""
    if trace_id and trace_id == exchange.trace_id:
        return True
    told = attributes.get(Name.VLLM_REQUEST_ID)
    if not isinstance(told, str) or not exchange.request_id:
        return False
    # vLLM's own names: of completions with the number of the prompt behind, of several choices with theirs before.
    ours = re.escape(exchange.request_id)
    return re.fullmatch(rf"(\d+_)?(chatcmpl-{ours}|cmpl-{ours}(-\d+)?)", told, re.ASCII) is not None


def from_body(metrics: Mapping[str, float]) -> ServerSplit:
    """The split in vLLM's last chunk, in milliseconds there. It has no TTFT: what is called so is the prefill."""
    queue, prefill, decode = (
        None if (value := finite(metrics.get(name))) is None else seconds_of(value / 1e3)
        for name in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
    )
    if queue is None and prefill is None and decode is None:
        return unavailable("the answer holds no per-request metrics and no span came")
    return ServerSplit(SplitSource.BODY, queue=queue, prefill=prefill, decode=decode)


def read_sums(page: bytes) -> Sums | None:
    """The request histograms of a ``/metrics`` page; None where the page is too large to be one."""
    try:
        layout, values = PageReader(Layouts(WANTED)).read(page)
    except PageTooLarge:
        return None
    halves: dict[_Series, dict[str, float]] = {}
    start = None
    for line, value in zip(layout.lines, values, strict=True):
        if line.name == PROCESS_START:
            start = value
            continue
        what, suffix = _SAMPLES[line.name]
        labels = dict(line.labels)
        series = (what, labels.get("model_name", ""), labels.get("engine", ""))
        both = halves.setdefault(series, {"_sum": 0.0, "_count": 0.0})
        both[suffix] += value
    return Sums({series: (both["_sum"], both["_count"]) for series, both in halves.items()}, start)


def from_histograms(before: Sums | None, after: Sums | None, model: str = "") -> ServerSplit:
    """What the histograms grew by. Exact where one request was counted, otherwise a mean over all that were.

    ``model`` is what the request asked for; where the pages know it by another name, their only model is taken.
    """
    if before is None or after is None:
        return unavailable("there are no two pages of metrics")
    if not after.series:
        return unavailable("the server's metrics hold no request histograms (--disable-log-stats?)")
    if before.process_start != after.process_start or before.models - after.models:
        return unavailable("the server was started anew, or its model changed, between the two pages")
    named = model if model in after.models else next(iter(after.models)) if len(after.models) == 1 else None
    if named is None:
        return unavailable("the metrics know several models, and none by the name that was asked for")
    grown: dict[str, list[float]] = {}
    for series, (total, count) in after.series.items():
        what, of_model, _ = series
        old_total, old_count = before.series.get(series, (0.0, 0.0))
        more_seconds, more = total - old_total, count - old_count
        if not (more >= 0 and more_seconds >= 0 and more_seconds < float("inf")):
            return unavailable("the server's counters went back between the two pages")
        if of_model == named:
            sums = grown.setdefault(what, [0.0, 0.0])
            sums[0] += more_seconds
            sums[1] += more
    if not any(count for _, count in grown.values()):
        return unavailable("the server had counted no request when its metrics were read again")
    means = {what: seconds_of(seconds / count) for what, (seconds, count) in grown.items() if count}
    return ServerSplit(
        SplitSource.HISTOGRAM,
        exact=all(count == 1 for _, count in grown.values()),
        queue=means.get("queue"),
        prefill=means.get("prefill"),
        decode=means.get("decode"),
        ttft=means.get("ttft"),
        e2e=means.get("e2e"),
    )


def best(*splits: ServerSplit) -> ServerSplit:
    """The best rung of the ladder that holds; of several that do not, the first one's reason."""
    return min(splits, key=lambda split: _BEST_FIRST.index(split.source))
