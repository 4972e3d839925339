"""vLLM's span and what is made of it: children by the formula, the split, the phases of a model load."""

from __future__ import annotations

import asyncio
import itertools
import math
import tracemalloc
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.loopback import looped
from tests.trace.otlp import LATENCIES, START, TRACE, llm_request, request, wire
from ufwatch.trace.conventions import Name
from ufwatch.trace.joins import JoinTable
from ufwatch.trace.model import SplitSource
from ufwatch.trace.record import SpanRecord, Value
from ufwatch.trace.server_spans import ServerSpan, children_of, load_of, request_key, split_of
from ufwatch.trace.wire import known_spans

MS = 1_000_000


def span(
    seconds: float = 0.3,
    name: str = "llm_request",
    changed: Mapping[str, Value | None] | None = None,
    **changes: Value | None,
) -> ServerSpan:
    attributes: dict[str, Value] = dict(LATENCIES)
    for key, value in {**(changed or {}), **changes}.items():
        full = next(known for known in LATENCIES if known.endswith(key))
        if value is None:
            del attributes[full]
        else:
            attributes[full] = value
    return ServerSpan(
        name=name,
        trace_id=TRACE,
        span_id="00f067aa0ba902b7",
        parent_id="b7ad6b7169203331",
        start_unix_ns=START,
        end_unix_ns=START + round(seconds * 1e9),
        attributes=attributes,
    )


def children(of: ServerSpan, *, native: bool = False) -> tuple[SpanRecord, ...]:
    numbers = itertools.count(1)
    return children_of(of, lambda: f"{next(numbers):016x}", native=native)


def drawn(of: ServerSpan) -> list[tuple[str, float, float]]:
    """Names with milliseconds after the start."""
    return [(c.name, (c.start_unix_ns - START) / MS, (c.end_unix_ns - START) / MS) for c in children(of)]


def test_children_follow_the_formula() -> None:
    assert drawn(span()) == [
        ("preprocess+engine_wait", 0, 40),
        ("queue", 40, 50),
        ("prefill", 50, 100),
        ("decode", 100, 290),
        ("postprocess", 290, 300),
    ]
    made = children(span())
    assert sum(c.end_unix_ns - c.start_unix_ns for c in made) == 300 * MS
    assert {(c.trace_id, c.parent_id) for c in made} == {(TRACE, "00f067aa0ba902b7")}
    assert all(c.attributes == {Name.SYNTHESIZED: True} and c.synthesized for c in made)


def test_the_burst_that_was_measured_shows_its_wait() -> None:
    # Burst of 12 long prompts: queue 0.03 ms, prefill 2245 ms, TTFT 3489 ms.
    burst = span(
        4.0, time_in_queue=0.00003, time_in_model_prefill=2.245, time_to_first_token=3.489, time_in_model_decode=0.5
    )
    name, start, end = drawn(burst)[0]
    assert (name, start) == ("preprocess+engine_wait", 0)
    assert end == pytest.approx(1243.97)


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ("time_to_first_token", []),
        ("time_in_model_prefill", ["decode", "postprocess"]),
        ("time_in_queue", ["prefill", "decode", "postprocess"]),
        ("time_in_model_decode", ["preprocess+engine_wait", "queue", "prefill"]),
    ],
)
def test_what_is_missing_is_not_invented(missing: str, names: list[str]) -> None:
    assert [name for name, *_ in drawn(span(changed={missing: None}))] == names
    for nonsense in (math.nan, math.inf, -0.1, "0.1", True, 1e300):
        assert [name for name, *_ in drawn(span(changed={missing: nonsense}))] == names


def test_other_spans_and_native_children_get_none() -> None:
    assert children(span(name="GET /health")) == ()
    assert children(span(), native=True) == ()
    assert children(span(-1.0)) == ()


def test_a_single_token_has_a_decode_of_no_length() -> None:
    assert ("decode", 100, 100) in drawn(span(time_in_model_decode=0.0))


def test_durations_that_do_not_fit_are_cut_and_say_what_they_were() -> None:
    cut = {c.name: c for c in children(span(time_in_model_prefill=5.0, time_in_model_decode=9))}
    assert "preprocess+engine_wait" not in cut
    assert cut["prefill"].attributes == {Name.SYNTHESIZED: True, Name.INCONSISTENT: True, Name.DURATION: 5.0}
    assert cut["decode"].attributes[Name.DURATION] == 9.0
    assert (cut["prefill"].start_unix_ns, cut["decode"].end_unix_ns) == (START, START + 300 * MS)


SECONDS = st.one_of(st.none(), st.floats(), st.floats(0, 1), st.text(max_size=3), st.integers(), st.booleans())


@settings(max_examples=200, deadline=None)
@given(SECONDS, SECONDS, SECONDS, SECONDS, st.floats(-1, 2))
def test_children_never_overlap_or_leave_their_parent(
    queue: Value | None, ttft: Value | None, prefill: Value | None, decode: Value | None, length: float
) -> None:
    of = span(
        length,
        time_in_queue=queue,
        time_to_first_token=ttft,
        time_in_model_prefill=prefill,
        time_in_model_decode=decode,
    )
    cursor = of.start_unix_ns
    for child in children(of):
        assert cursor <= child.start_unix_ns <= child.end_unix_ns <= of.end_unix_ns
        cursor = child.end_unix_ns


def test_the_split_is_the_spans_durations() -> None:
    split = split_of(span())
    assert (split.source, split.queue, split.prefill, split.decode, split.ttft, split.e2e) == (
        *(SplitSource.SPAN, 0.010, 0.050, 0.190, 0.100, 0.300),
    )
    assert split.pre_engine_wait == pytest.approx(0.040)
    assert split_of(span(name="llm_request", changed=dict.fromkeys(LATENCIES))).source is SplitSource.NONE
    assert (split.start_unix_ns, split.end_unix_ns) == (START, START + 300 * MS)


@pytest.mark.parametrize(
    "told", ["r1", "chatcmpl-r1", "cmpl-r1-0", "cmpl-r1-12", "cmpl-r1", "1_chatcmpl-r1", "0_cmpl-r1-0"]
)
def test_a_request_is_known_under_each_of_its_names(told: str) -> None:
    assert request_key(told) == "r1"


def test_ids_with_hyphens_keep_them() -> None:
    assert request_key("cmpl-0c6f-42-aa-3") == "0c6f-42-aa"
    assert request_key("chatcmpl-0c6f-42") == "0c6f-42"


def load(*spans: tuple[str, str, str, float, float]) -> list[ServerSpan]:
    return list(
        known_spans(
            request(
                *(
                    wire(name, span=own * 16, parent=parent * 16, start=START + round(at * 1e9), seconds=seconds)
                    for name, own, parent, at, seconds in spans
                )
            )
        )
    )


LOAD = (
    ("Load weights", "5", "4", 3.0, 4.0),
    ("Initialize model", "6", "4", 2.5, 0.5),
    ("Load model", "4", "3", 2.5, 4.5),
    ("Warmup (CPU)", "7", "2", 8.0, 9.0),
    ("EngineCoreProc init", "3", "2", 2.0, 6.0),
    ("AsyncMPClient init", "2", "1", 1.0, 16.0),
    ("Overall Loading", "1", "", 0.0, 18.0),
)


def test_a_model_load_is_told_in_phases_once_its_whole_has_come() -> None:
    spans = load(*LOAD)
    assert load_of(spans[:-1]) is None
    told = load_of(spans)
    assert told is not None
    assert (told.seconds, told.instance, told.started_unix_ns) == (18.0, "i1", START)
    assert [(phase.depth, phase.name, phase.start, phase.seconds) for phase in told.phases] == [
        (0, "Overall Loading", 0.0, 18.0),
        (1, "AsyncMPClient init", 1.0, 16.0),
        (2, "EngineCoreProc init", 2.0, 6.0),
        (3, "Load model", 2.5, 4.5),
        (4, "Initialize model", 2.5, 0.5),
        (4, "Load weights", 3.0, 4.0),
        (2, "Warmup (CPU)", 8.0, 9.0),
    ]


def test_spans_that_are_each_others_parents_end() -> None:
    looping = load(
        ("Overall Loading", "1", "2", 0, 1), ("Load model", "2", "1", 0, 1), ("Load weights", "1", "2", 0, 1)
    )
    told = load_of(looping)
    assert told is not None
    assert len(told.phases) <= 3


def table(**changes: float) -> tuple[JoinTable, list[float]]:
    now = [1000.0]
    return JoinTable(lambda: now[0], **changes), now  # type: ignore[arg-type]


def many(last: int, first: int = 1) -> Iterator[ServerSpan]:
    for number in range(first, last + 1):
        yield ServerSpan(
            name="llm_request",
            trace_id=f"{number:032x}",
            span_id=f"{number:016x}",
            parent_id="",
            start_unix_ns=START,
            end_unix_ns=START,
            attributes=dict(LATENCIES),
            request_id=f"r{number}",
        )


def test_memory_is_bounded_with_a_hundred_thousand_traces() -> None:
    joins, _ = table()
    joins.add(many(90_000))
    # Only now, as tracing is slow; each of what is kept is replaced twice from here on.
    tracemalloc.start()
    joins.add(many(100_000, 90_001))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(joins) == 4096
    assert joins.forgotten == 100_000 - 4096
    assert kept < 8e6
    assert joins.find(f"{100_000:032x}") is not None
    assert joins.find(f"{1:032x}", "r1") is None
    assert len(joins._by_trace) == len(joins._by_request) == 4096


def test_native_parents_and_loads_are_bounded_too() -> None:
    joins, _ = table(most_requests=10)
    for number in range(1, 200):
        joins.add(known_spans(request(wire("vllm_queue", parent=f"{number:016x}"))))
        joins.add(known_spans(request(wire("Load model", trace=f"{number:032x}"))))
    assert not joins.has_native(f"{1:016x}")
    assert joins.has_native(f"{199:016x}")
    assert len(joins._loads) == 8
    joins.add(load(*LOAD, *LOAD))
    assert [len(told.phases) for told in joins.loads] == [7]


def test_what_is_old_is_forgotten() -> None:
    joins, now = table(kept_seconds=60)
    joins.add(many(3))
    now[0] += 61
    assert joins.find(f"{1:032x}") is None
    assert len(joins) == 0
    assert joins.forgotten == 0


def test_a_span_that_comes_twice_counts_once() -> None:
    joins, _ = table()
    joins.add(many(2))
    joins.add(many(2))
    assert len(joins) == 2


def test_within_a_trace_the_request_decides_and_nothing_is_guessed() -> None:
    joins, _ = table()
    joins.add(known_spans(request(llm_request("chatcmpl-a", span="1" * 16), llm_request("chatcmpl-b", span="2" * 16))))
    found = joins.find(TRACE, "chatcmpl-b")
    assert found is not None
    assert found.span_id == "2" * 16
    assert joins.find(TRACE, "chatcmpl-c") is None
    assert joins.find(TRACE) is None
    # A gateway that gave the request an id of its own: there is only one span it can be.
    joins, _ = table()
    joins.add(known_spans(request(llm_request("chatcmpl-a"))))
    assert joins.find(TRACE, "another") is not None


def test_spans_with_impossible_ids_are_not_joined() -> None:
    broken = llm_request()
    broken.trace_id = b"short"
    assert list(known_spans(request(broken))) == []
    broken = llm_request()
    broken.parent_span_id = b"x"
    (found,) = known_spans(request(broken))
    assert found.parent_id == ""


def test_only_what_is_read_is_kept_of_a_span() -> None:
    stuffed = wire(attributes={**LATENCIES, "gen_ai.prompt": "secret", "gen_ai.request.id": "x" * 9000})
    (found,) = known_spans(request(stuffed))
    assert "gen_ai.prompt" not in found.attributes
    assert len(str(found.attributes["gen_ai.request.id"])) == 1024
    crowded = wire(attributes={f"k{number}": number for number in range(50_000)})
    (found,) = known_spans(request(crowded))
    assert found.attributes == {}


@looped
async def test_who_waits_is_not_woken_by_others() -> None:
    joins, _ = table()
    waiting = asyncio.create_task(joins.wait_for("f" * 32, "r5", 20))
    await asyncio.sleep(0)
    joins.add(many(4))
    await asyncio.sleep(0)
    assert not waiting.done()
    joins.add(many(5))
    found = await waiting
    assert found is not None
    assert found.request_id == "r5"
