"""The server's durations from each rung of the ladder, and why there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pages import CASES, capture
from ufwatch.trace.model import Exchange, ServerSplit, SplitSource
from ufwatch.trace.split import best, from_body, from_histograms, from_span, is_span_of, read_sums, unavailable

SPAN = {
    "gen_ai.latency.time_in_queue": 0.75,
    "gen_ai.latency.time_to_first_token": 1.5,
    "gen_ai.latency.e2e": 2.5,
    "gen_ai.latency.time_in_model_prefill": 0.5,
    "gen_ai.latency.time_in_model_decode": 0.9,
    "gen_ai.request.id": "chatcmpl-r1",
}


def test_of_a_span() -> None:
    split = from_span(SPAN, 10, 20)
    assert split == ServerSplit(SplitSource.SPAN, True, 0.75, 0.5, 0.9, 1.5, 2.5, start_unix_ns=10, end_unix_ns=20)
    assert split.pre_engine_wait == 0.25


def test_of_a_span_without_sense() -> None:
    bad = {
        "gen_ai.latency.time_in_queue": -1,
        "gen_ai.latency.e2e": float("nan"),
        "gen_ai.latency.time_in_model_decode": "1",
    }
    split = from_span(bad, 1, 2)
    assert split.source is SplitSource.NONE
    assert "--otlp-traces-endpoint" in split.why
    assert from_span({**SPAN, **bad}, 1, 2).queue is None


REQUEST = Exchange(
    url="", operation="chat", model="m", trace_id="t" * 32, span_id="", request_id="r1", started_unix_ns=0, total=1.0
)


@pytest.mark.parametrize(
    ("trace_id", "request_id", "joined"),
    [
        ("t" * 32, "other", True),
        ("", "chatcmpl-r1", True),
        ("u" * 32, "cmpl-r1-0", True),
        ("", "cmpl-r1", True),
        ("", "1_chatcmpl-r1", True),
        ("", "chatcmpl-r12", False),
        ("", "r1", False),
        ("", "chatcmpl-r1-x", False),
        ("u" * 32, "", False),
    ],
)
def test_joining(trace_id: str, request_id: str, joined: bool) -> None:
    assert is_span_of(REQUEST, trace_id, {"gen_ai.request.id": request_id}) is joined


def test_joining_needs_something_to_join_by() -> None:
    assert not is_span_of(replace(REQUEST, trace_id="", request_id=""), "", {})


def test_of_the_body() -> None:
    split = from_body({"queue_time_ms": 2.0, "time_to_first_token_ms": 30.0, "generation_time_ms": 40.0})
    assert (split.source, split.queue, split.prefill, split.decode, split.ttft) == (
        SplitSource.BODY,
        0.002,
        0.03,
        0.04,
        None,
    )
    assert from_body({"tokens_per_second": 3.0}).source is SplitSource.NONE
    assert from_body({}).why


HISTOGRAMS = (
    ("vllm:request_queue_time_seconds", 0.5),
    ("vllm:request_prefill_time_seconds", 0.25),
    ("vllm:request_decode_time_seconds", 2.0),
    ("vllm:time_to_first_token_seconds", 1.0),
    ("vllm:e2e_request_latency_seconds", 3.5),
)


def page(count: int, *, engine: str = "0", model: str = "m", start: float = 5.0, **counts: int) -> bytes:
    """Every request took as long as ``HISTOGRAMS`` says; ``counts`` overrides single counts."""
    lines = [f"process_start_time_seconds {start}"]
    for family, seconds in HISTOGRAMS:
        labels = f'{{engine="{engine}",model_name="{model}"}}'
        of = counts.get(family.removeprefix("vllm:"), count)
        lines += [f"# TYPE {family} histogram", f"{family}_sum{labels} {seconds * of}", f"{family}_count{labels} {of}"]
    return "\n".join(lines).encode() + b"\n"


def grown(before: bytes, after: bytes, model: str = "m") -> ServerSplit:
    return from_histograms(read_sums(before), read_sums(after), model)


def test_of_histograms_one_request_is_exact() -> None:
    split = grown(page(7), page(8))
    assert (split.source, split.exact) == (SplitSource.HISTOGRAM, True)
    assert (split.queue, split.prefill, split.decode, split.ttft, split.e2e) == (0.5, 0.25, 2.0, 1.0, 3.5)
    assert split.pre_engine_wait == 0.25


def test_of_histograms_several_requests_are_a_mean() -> None:
    split = grown(page(7), page(10))
    assert not split.exact
    assert split.ttft == pytest.approx(1.0)
    others = grown(page(7), page(8, time_to_first_token_seconds=9))
    assert not others.exact, "another request's first token fell into the window"


def test_of_histograms_the_first_request_ever() -> None:
    assert grown(b"process_start_time_seconds 5.0\n", page(1)).exact


def test_of_histograms_several_engines() -> None:
    def both(first: int, second: int) -> bytes:
        return page(first) + b"\n".join(page(second, engine="1").split(b"\n")[1:])

    assert grown(both(3, 4), both(3, 5)).exact
    assert not grown(both(3, 4), both(4, 5)).exact


def test_of_histograms_the_name_of_the_model() -> None:
    assert grown(page(1), page(2), "an alias").exact, "there is only one it can be"
    two_before, two_after = page(1) + page(1, model="n")[30:], page(2) + page(1, model="n")[30:]
    assert grown(two_before, two_after, "m").exact
    assert grown(two_before, two_after, "n").source is SplitSource.NONE, "that one did nothing"
    assert "several models" in grown(two_before, two_after, "o").why


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (page(7), page(7), "counted no request"),
        (page(7), page(1), "went back"),
        (page(7), page(8, start=6.0), "started anew"),
        (page(7), page(8, model="n"), "changed"),
        (page(7), b"process_start_time_seconds 5.0\n", "no request histograms"),
        (page(7), page(8).replace(b"_sum{engine", b'_sum{x="1",engine').replace(b" 28.0", b" NaN"), "back"),
    ],
)
def test_of_histograms_why_there_is_none(before: bytes, after: bytes, why: str) -> None:
    split = grown(before, after)
    assert split.source is SplitSource.NONE
    assert why in split.why
    assert "--enable-per-request-metrics" in split.why


def test_of_histograms_pages_that_are_missing() -> None:
    assert from_histograms(None, read_sums(page(1))).source is SplitSource.NONE
    assert from_histograms(read_sums(page(1)), None).source is SplitSource.NONE


def test_aborted_requests_are_in_no_histogram() -> None:
    """Case b17: four streams closed early raise the totals only, so that there is no mean, not NaN and not 0."""
    before, after = ((CASES / "b17_aborts" / f"t{n}.prom").read_bytes() for n in (0, 1))
    split = grown(before, after)
    assert (split.source, split.queue, split.ttft) == (SplitSource.NONE, None, None)


def test_of_a_recorded_server() -> None:
    """vLLM 0.32 under load, against the sums on the page."""
    split = from_histograms(
        read_sums(capture("metrics-0.32.0-idle")), read_sums(capture("metrics-0.32.0-load")), "tiny"
    )
    if split.source is SplitSource.NONE:
        assert "started anew" in split.why, "two recordings of two processes"
    sums = read_sums(capture("metrics-0.32.0-load"))
    assert sums is not None
    assert sums.series["queue", "tiny", "0"] == (27.001876316999642, 54.0)
    assert sums.series["prefill", "tiny", "0"] == (15.58080403199915, 54.0)


def test_the_best_rung_that_holds() -> None:
    none, body, span = from_body({}), from_body({"queue_time_ms": 1.0}), from_span(SPAN, 1, 2)
    mean = grown(page(1), page(4))
    assert best(none, mean, body, span) is span
    assert best(none, mean, body) is body
    assert best(none, mean) is mean
    assert best(none, unavailable("second")) is none
