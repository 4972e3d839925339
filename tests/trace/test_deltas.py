"""What counts as a token and as an end, in the streams of every server that we know of."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.streams import DONE, ROLE, case, chunk, event, expected, usage, words
from ufwatch.trace.deltas import Answer, FirstContentWatch, read_answer
from ufwatch.trace.model import Exchange, Phase, Span, TokenSource, Usage


def answer(*parts: bytes, wanted: int = 1) -> Answer:
    """One read a second."""
    return read_answer([(float(at), part) for at, part in enumerate(parts)], wanted=wanted)


def exchange(found: Answer) -> Exchange:
    """Sent at 0, as the cases count."""
    return Exchange(
        url="http://a",
        operation="chat",
        model="m",
        trace_id="",
        span_id="",
        request_id="",
        started_unix_ns=0,
        total=100.0,
        spans=(Span(Phase.SEND, 0.0, 0.0),),
        chunks=found.chunks,
        usage=found.usage,
    )


@pytest.mark.parametrize("name", ["early_role", "role_after_first_prefill_part", "null_content"])
def test_a_role_chunk_is_no_token(name: str) -> None:
    reads, _ = case("h02_role_chunk", name)
    right = expected("h02_role_chunk")[name]
    found = read_answer(reads)
    seen = exchange(found)
    assert found.trouble is None
    assert found.role_at == reads[0][0]
    assert seen.ttft == pytest.approx(right["ttft_s"], abs=0.001)
    assert seen.tpot == pytest.approx(right["tpot_s"], abs=0.001)
    assert seen.output_tokens == right["tokens"]
    assert seen.token_source is (TokenSource.CHUNKS if "tokens_source" in right else TokenSource.USAGE)
    assert max(gap.seconds for gap in seen.chunk_gaps) == pytest.approx(right.get("max_gap_s", 0.01), abs=0.001)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_the_first_token_and_the_visible_one_comes_later(name: str) -> None:
    right = expected("h04_reasoning")["reasoning"]
    seen = exchange(read_answer(case("h04_reasoning", name)[0]))
    assert seen.ttft == pytest.approx(right["ttft_s"], abs=0.001)
    assert seen.time_to_first_visible == pytest.approx(right["time_to_first_visible_s"], abs=0.001)
    assert seen.output_tokens == right["tokens"]


def test_an_answer_that_ends_within_its_reasoning_is_one() -> None:
    right = expected("h04_reasoning")["capped"]
    found = read_answer(case("h04_reasoning", "capped")[0])
    seen = exchange(found)
    assert found.trouble is None
    assert seen.ttft == pytest.approx(right["ttft_s"], abs=0.001)
    assert seen.time_to_first_visible is None
    assert (seen.output_tokens, found.choices[0].finish_reason) == (right["tokens"], right["finish"])


@pytest.mark.parametrize("name", ["with_running_usage", "usage_only_at_end"])
def test_many_tokens_in_a_chunk_are_counted_by_usage(name: str) -> None:
    right = expected("h07_many_tokens_per_chunk")["both_long_files"]
    found = read_answer(case("h07_many_tokens_per_chunk", name)[0])
    seen = exchange(found)
    assert seen.ttft == pytest.approx(right["ttft_s"], abs=0.001)
    assert (seen.output_tokens, len(seen.chunks)) == (right["tokens"], right["chunks"])
    assert seen.tpot == pytest.approx(right["tpot_s"], abs=0.001)
    gaps = [gap.seconds for gap in seen.chunk_gaps]
    assert sum(gaps) / len(gaps) == pytest.approx(right["chunk_gap_mean_s"], abs=0.001)
    assert not any(gap.token_interval for gap in seen.chunk_gaps)
    assert {c.tokens for c in seen.chunks} == ({4} if name == "with_running_usage" else {None})


def test_one_token_has_no_time_per_token() -> None:
    seen = exchange(read_answer(case("h07_many_tokens_per_chunk", "one_token")[0]))
    assert (seen.ttft, seen.output_tokens, seen.tpot, seen.chunk_gaps) == (0.2, 1, None, ())


@pytest.mark.parametrize(
    ("name", "ttft"),
    [
        ("after_three_tokens", 0.1),
        ("before_first_event", None),
        ("clean_eof_without_done", 0.1),
        ("cut_inside_event", 0.1),
    ],
)
def test_an_upstream_that_dies_is_a_cut_and_keeps_its_first_token(name: str, ttft: float | None) -> None:
    found = read_answer(case("h18_upstream_dies", name)[0])
    assert found.trouble is not None
    assert found.trouble.error_type == "cut"
    assert not found.done
    assert exchange(found).ttft == ttft
    assert all(choice.finish_reason is None for choice in found.choices)


FIXTURES = {
    "role first, split characters": ROLE + words("Grüße ", "你好", "🙂") + chunk({}, finish="stop") + usage(3) + DONE,
    "comments and keep-alives": b": ping\n\n"
    + ROLE
    + b":\n\nretry: 1\n\n"
    + words("a")
    + b": x\r\n"
    + words("b")
    + DONE,
    "two choices": ROLE + chunk({"content": "a"}) + chunk({"content": "b"}, index=1) + usage(2) + DONE,
    "an error within": ROLE + words("a") + event({"error": {"message": "no more blocks", "code": 500}}) + DONE,
    "a cut": ROLE + words("a", "b"),
    "no last blank line": ROLE + words("a") + b"data: [DONE]",
    "carriage returns": (ROLE + words("a", "b") + DONE).replace(b"\n", b"\r\n"),
    "malformed": ROLE + words("a") + b"data: {oh\n\n" + DONE,
    "metrics": words("a") + usage(1, metrics={"queue_time_ms": 1.5, "mean_itl_ms": None}) + DONE,
}


def _timeless(found: Answer) -> object:
    choices = [(c.index, c.chunks, c.finish_reason, c.refused) for c in found.choices]
    chunks = [(c.choice, c.characters, c.tokens, c.visible) for c in found.chunks]
    return choices, chunks, found.usage, found.metrics, found.done, found.trouble, found.events, found.response_id


@pytest.mark.parametrize("name", FIXTURES)
def test_a_stream_split_at_every_byte_gives_the_same(name: str) -> None:
    body = FIXTURES[name]
    whole = _timeless(read_answer([(0.0, body)]))
    for cut in range(1, len(body)):
        assert _timeless(read_answer([(0.0, body[:cut]), (1.0, body[cut:])])) == whole, cut
    assert _timeless(read_answer([(0.0, body[i : i + 1]) for i in range(len(body))])) == whole


@pytest.mark.parametrize("folder", ["h02_role_chunk", "h04_reasoning", "h07_many_tokens_per_chunk"])
def test_the_cases_cut_between_any_two_bytes_of_a_read_give_the_same(folder: str) -> None:
    for name in (n for n in expected(folder) if n not in ("tolerance", "both_long_files")):
        reads, _ = case(folder, name)
        whole = read_answer(reads)
        for position in (0, 1, len(reads) - 1):
            at, data = reads[position]
            for cut in range(1, len(data)):
                cut_up = [*reads[:position], (at, data[:cut]), (at, data[cut:]), *reads[position + 1 :]]
                assert read_answer(cut_up) == whole


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "a"},
        {"content": [{"type": "text", "text": "a"}]},
        {"reasoning": "a"},
        {"reasoning_content": "a", "reasoning": "a"},
        {"refusal": "a"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"function_call": {"name": "f"}},
    ],
)
def test_what_is_a_token(delta: object) -> None:
    found = answer(ROLE, chunk(delta), chunk({}, finish="stop") + DONE)
    assert [(c.at, c.characters) for c in found.chunks] == [(1.0, 1)]
    assert found.choices[0].refused is (delta == {"refusal": "a"})


@pytest.mark.parametrize(
    "delta",
    [
        {},
        None,
        {"role": "assistant", "content": None},
        {"content": ""},
        {"content": []},
        {"reasoning": "", "reasoning_content": None},
        {"tool_calls": []},
        {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "", "arguments": ""}}, None]},
        {"function_call": None},
    ],
)
def test_what_is_none(delta: object) -> None:
    found = answer(chunk(delta), words("a") + DONE)
    assert [c.at for c in found.chunks] == [1.0]
    assert found.role_at == 0.0


def test_text_of_the_completions_operation() -> None:
    first = event({"id": "cmpl-1", "choices": [{"index": 0, "text": ""}]})
    second = event({"id": "cmpl-1", "choices": [{"index": 0, "text": " a", "finish_reason": "length"}]})
    found = answer(first, second)
    assert ([c.at for c in found.chunks], found.trouble) == ([1.0], None)


def test_each_choice_has_its_own_first_token_and_all_must_finish() -> None:
    parts = [ROLE, chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk({"content": "c"})]
    ends = [chunk({}, finish="stop"), chunk({}, finish="length", index=1)]
    found = answer(*parts, *ends, wanted=2)
    assert [(c.first_at, c.last_at, c.chunks, c.finish_reason) for c in found.choices] == [
        (1.0, 3.0, 2, "stop"),
        (2.0, 2.0, 1, "length"),
    ]
    assert found.trouble is None
    assert answer(*parts, ends[0], wanted=2).trouble is not None
    assert exchange(found).tpot is None, "the choices share the time"
    assert [gap.seconds for gap in exchange(found).chunk_gaps] == [2.0]


def test_chunks_of_one_read_are_marked_for_each_choice() -> None:
    found = answer(ROLE, words("a", "b") + chunk({"content": "c"}, index=1), words("d") + DONE)
    assert [(c.choice, c.coalesced) for c in found.chunks] == [(0, False), (0, True), (1, False), (0, False)]


def _running(index: int, count: int) -> bytes:
    counts = {"prompt_tokens": 7, "completion_tokens": count}
    return chunk({"content": "x"}, index=index, usage=counts)


def test_running_usage_of_several_choices_is_believed_only_where_it_adds_up() -> None:
    own = answer(_running(0, 1), _running(1, 2), _running(0, 3), usage(5) + DONE)
    assert [c.tokens for c in own.chunks] == [1, 2, 2]
    together = answer(_running(0, 1), _running(1, 2), _running(0, 3), usage(3) + DONE)
    assert [c.tokens for c in together.chunks] == [None, None, None]


def test_usage_that_comes_with_the_last_chunk_is_not_that_chunks_tokens() -> None:
    found = answer(words("a"), words("b"), _running(0, 9) + DONE)
    assert [c.tokens for c in found.chunks] == [None, None, None]
    assert found.usage.completion_tokens == 9


def test_tokens_held_back_by_a_parser_belong_to_the_chunk_that_shows_them() -> None:
    held = chunk({}, usage={"completion_tokens": 3})
    found = answer(_running(0, 1), held, _running(0, 4) + DONE)
    assert [c.tokens for c in found.chunks] == [1, 3]


def test_tokens_by_ids_and_by_log_probabilities() -> None:
    ids = {"index": 0, "text": "ab", "token_ids": [1, 2]}
    probabilities = {"index": 0, "delta": {"content": "c"}, "logprobs": {"content": [{}, {}, {}]}}
    old = {"index": 0, "text": "d", "logprobs": {"tokens": ["d"]}}
    found = answer(*(event({"choices": [choice]}) for choice in (ids, probabilities, old)), DONE)
    assert [c.tokens for c in found.chunks] == [2, 3, 1]


def test_the_last_usage_seen_counts_and_empty_ones_do_not() -> None:
    cached = event({"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}})
    found = answer(words("a"), cached, chunk({}, finish="stop", usage=None), chunk({}, usage={}) + DONE)
    assert found.usage == Usage(None, 2, 16)


def test_numbers_that_are_none_are_absent() -> None:
    bad = {"prompt_tokens": -1, "completion_tokens": True, "prompt_tokens_details": {"cached_tokens": "3"}}
    found = answer(words("a") + event({"choices": [], "usage": bad}) + DONE)
    assert found.usage == Usage()
    metrics = {"queue_time_ms": 1, "mean_itl_ms": "x", "tokens_per_second": float("nan"), "big": 10**400}
    assert answer(words("a") + usage(1, metrics=metrics) + DONE).metrics == {"queue_time_ms": 1.0}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (event({"error": {"message": "no\nblocks", "code": 500}}), "no blocks"),
        (event({"object": "error", "message": "gone", "code": 404}), "gone"),
        (b'event: error\ndata: {"detail": "late"}\n\n', "late"),
        (event({"error": "x" * 500}), "x" * 500),
        (event({"error": {"code": 3}}), "an error without a message"),
    ],
)
def test_an_error_within_a_stream_is_a_failure(error: bytes, text: str) -> None:
    found = answer(words("a"), error, words("b") + DONE)
    assert found.trouble == ("error_event", text)
    assert len(found.chunks) == 1


def test_an_error_field_that_is_null_is_none() -> None:
    assert answer(chunk({"content": "a"}, error=None) + DONE).trouble is None


@pytest.mark.parametrize("body", [b"data: {oh\n\n", b"data: [1]\n\n", b"data: " + b"[" * 100_000 + b"\n\n"])
def test_what_is_no_object_is_malformed(body: bytes) -> None:
    found = answer(words("a"), body, DONE)
    assert found.trouble is not None
    assert found.trouble.error_type == "malformed"


def test_an_event_over_the_cap_is_malformed_and_what_came_before_is_kept() -> None:
    found = answer(words("a"), b"data: " + b"x" * (1 << 20))
    assert found.trouble is not None
    assert (found.trouble.error_type, len(found.chunks)) == ("malformed", 1)


def test_a_finish_reason_is_an_end_without_the_mark() -> None:
    assert answer(words("a"), chunk({}, finish="stop")).trouble is None


def test_nothing_after_the_end_mark_counts() -> None:
    assert len(answer(words("a") + DONE + words("b")).chunks) == 1


def test_the_watch_for_the_first_content() -> None:
    watch = FirstContentWatch()
    assert [watch.seen(part) for part in (b": x\n\n", ROLE, words("a")[:9], words("a")[9:])] == [False] * 3 + [True]
    assert FirstContentWatch().seen(event({"error": "x"})), "no content will come"


def test_odd_shapes_are_passed_over() -> None:
    odd = [{"choices": None}, {"choices": [None, 3]}, {"choices": {"a": 1}}, {"usage": 3, "metrics": []}, {}]
    found = answer(*map(event, odd), chunk({"content": "a"}, index=True), DONE)
    assert (found.trouble, [c.choice for c in found.chunks]) == (None, [0])
    assert json.dumps(found.metrics) == "{}"


SCRAPS = st.sampled_from(
    [
        b"data: ",
        b"\n\n",
        b"\n",
        b"[DONE]",
        b'{"choices":[',
        b"]}",
        b'{"index":0,"delta":{"content":"a"}}',
        b'"usage":{}',
        b",",
    ]
)


@given(st.lists(SCRAPS | st.binary(max_size=6), max_size=25))
@settings(max_examples=200, deadline=None)
def test_nothing_that_comes_raises(scraps: list[bytes]) -> None:
    found = answer(*scraps)
    assert found.trouble is None or found.trouble.error_type in ("cut", "malformed", "error_event")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "index", "usage", "metrics", "content", "text", "tool_calls", "function"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
@settings(max_examples=200, deadline=None)
def test_no_json_that_comes_raises(bodies: list[object]) -> None:
    answer(*map(event, bodies), words("a"), DONE)
