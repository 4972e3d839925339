"""Spans that nobody should send: whatever comes, it is answered, counted, passed on as it was, and hurts nothing."""

from __future__ import annotations

import asyncio
import gzip
import math
import os
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from tests.sources.loopback import looped
from tests.trace.otlp import LATENCIES, START, Backend, body, llm_request, receiving, request, spans_in, until, wire
from tests.trace.test_receiver import call, post
from ufwatch.trace.intake import Intake
from ufwatch.trace.joins import JoinTable
from ufwatch.trace.wire import (
    MalformedError,
    Request,
    TooLargeError,
    count_spans,
    dressed,
    inflated,
    known_spans,
    parsed,
)

TTFT = "gen_ai.latency.time_to_first_token"
NESTED = AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="x")]))


def dress(content: bytes) -> bytes:
    joins = JoinTable(lambda: 0.0)
    joins.add(known_spans(parsed(content)))
    return asyncio.run(
        dressed(
            content, known=joins.get, has_native=joins.has_native, random_bytes=os.urandom, grouping={"group": "ours"}
        )
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300, "0.1", True, None])
def test_a_time_that_is_none_makes_no_children(value: object) -> None:
    span = llm_request()
    pair = next(pair for pair in span.attributes if pair.key == TTFT)
    if value is None:
        pair.value.CopyFrom(NESTED)
    else:
        pair.value.Clear()
        pair.value.CopyFrom(wire(attributes={"a": value}).attributes[0].value)
    names = [found.name for found in spans_in(dress(body(span)))]
    assert names == ["llm_request"]


@pytest.mark.parametrize(("start", "seconds"), [(0, 1.0), (START, -0.5), (2**64 - 1 - 10**9, 1.0)])
def test_moments_that_are_none_make_no_children(start: int, seconds: float) -> None:
    assert [span.name for span in spans_in(dress(body(llm_request(start=start, seconds=seconds))))] == ["llm_request"]


def test_two_spans_of_one_id_get_children_within_each() -> None:
    first, second = llm_request(), llm_request(start=START + 10**9)
    found = spans_in(dress(body(first, second)))
    assert len(found) == 12
    for parent, children in ((found[0], found[2:7]), (found[1], found[7:])):
        assert children[0].start_time_unix_nano == parent.start_time_unix_nano
        assert children[-1].end_time_unix_nano == parent.end_time_unix_nano


@looped
async def test_a_crowd_of_strange_spans_is_answered_and_passed_on_as_it_was() -> None:
    crowded = wire("crowd", span="3" * 16, attributes={f"key{number}": number for number in range(20_000)})
    backwards = llm_request(span="4" * 16, seconds=-1.0)
    nameless = wire("", span="5" * 16)
    broken = llm_request(span="6" * 16)
    broken.trace_id, broken.span_id = b"", b"x" * 99
    content = body(crowded, backwards, nameless, broken, backwards)
    backend = Backend()
    async with receiving(backend) as receiver:
        assert await call(receiver, content) == b""
        assert (await post(receiver, content))[0] == 200
        await until(lambda: receiver.forwarded is not None and receiver.forwarded.delivered == 10)
        assert len(receiver.joins) == 1
    # Children are made for the one whose only fault is its ids, for none of the others.
    assert b"".join(backend.payloads).count(content) == 2


@looped
async def test_a_child_that_comes_before_its_parent_is_joined_with_it() -> None:
    backend = Backend()
    async with receiving(backend) as receiver:
        await call(receiver, body(wire("vllm_prefill", span="7" * 16, parent="00f067aa0ba902b7")))
        await call(receiver, body(llm_request()))
        await until(lambda: receiver.forwarded is not None and receiver.forwarded.delivered == 2)
    names = [span.name for payload in backend.payloads for span in spans_in(payload)]
    assert names == ["vllm_prefill", "llm_request"]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_that_are_anything_are_taken_or_refused(content: bytes) -> None:
    try:
        request_read = parsed(content)
    except MalformedError:
        return
    assert count_spans(request_read) >= 0
    assert Request.FromString(dress(content)) is not None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_request_is_taken_or_refused(data: st.DataObject) -> None:
    content = bytearray(body(llm_request(), wire("other", span="2" * 16)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed(bytes(content))
    except MalformedError:
        return
    dress(bytes(content))


@looped
async def test_what_is_added_stands_behind_what_came() -> None:
    async def made(content: bytes, *, native: bool) -> bytes:
        return await dressed(
            content, known=lambda _: None, has_native=lambda _: native, random_bytes=os.urandom, grouping={}
        )

    content = body(llm_request())
    added = await made(content, native=False)
    assert added.startswith(content)
    assert len(spans_in(added)) == 6
    assert await made(content, native=True) == content
    # Native children that come in the same request need no table, wherever in it they stand.
    with_native = body(llm_request(), wire("vllm_queue", span="8" * 16, parent="00f067aa0ba902b7"))
    assert await made(with_native, native=False) == with_native


@looped
async def test_a_long_request_is_joined_and_dressed_in_turns() -> None:
    content = body(*(llm_request(f"chatcmpl-r{number}", span=f"{number:016x}") for number in range(1, 1001)))
    backend = Backend()
    async with receiving(backend) as receiver:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while not backend.payloads:
                turns += 1
                await asyncio.sleep(0)

        waiting = asyncio.create_task(others())
        await call(receiver, content)
        await waiting
        assert await receiver.wait_for("", "r1000", 5) is not None
        assert len(receiver.joins) == 1000
    assert turns > 15
    assert len(spans_in(b"".join(backend.payloads))) == 6000


@looped
async def test_a_crowd_of_spans_that_are_passed_over_leaves_others_their_turn() -> None:
    crowd = request(*(wire("other") for _ in range(20_000)), llm_request("chatcmpl-last"))
    joins = JoinTable(lambda: 0.0)
    Intake(joins, None, cap_bytes=1).take(crowd.SerializeToString())
    turns = 0
    while not len(joins) and turns < 1000:
        turns += 1
        await asyncio.sleep(0)
    assert 5 < turns < 1000


def test_a_packed_body_is_never_unpacked_beyond_the_cap() -> None:
    assert inflated(gzip.compress(bytes(100)), 100) == inflated(zlib.compress(bytes(100)), 100) == bytes(100)
    with pytest.raises(TooLargeError):
        inflated(gzip.compress(bytes(101)), 100)
    for bad in (b"", b"\x1f\x8b", gzip.compress(b"abc")[:-1], gzip.compress(b"abc") + b"more", b"x\x9c\xff\xff"):
        with pytest.raises(MalformedError):
            inflated(bad, 100)


def test_attributes_of_every_kind_are_read_or_passed_over() -> None:
    span = wire(attributes={**LATENCIES, "gen_ai.usage.prompt_tokens": 7})
    span.attributes.append(KeyValue(key="gen_ai.request.id", value=NESTED))
    span.attributes.append(KeyValue(key="gen_ai.usage.completion_tokens"))
    (found,) = known_spans(request(span))
    assert found.request_id == ""
    assert found.attributes["gen_ai.usage.prompt_tokens"] == 7
    assert "gen_ai.usage.completion_tokens" not in found.attributes
