"""A traced request as a tree: what was measured and nothing else, within its parent, in order."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ufwatch.trace.conventions import EventName, Name
from ufwatch.trace.model import (
    Attempt,
    Chunk,
    Exchange,
    Failure,
    Phase,
    ServerSplit,
    Span,
    SplitSource,
    Usage,
)
from ufwatch.trace.record import Kind, SpanRecord, cleaned, ids_from
from ufwatch.trace.spans import tree_of

ORIGIN = 1_700_000_000_000_000_000
MS = 1_000_000
MOMENTS = (0.0, 0.023, 0.053, 0.094, 0.095, 0.113, 0.181, 0.400)
PHASES = (Phase.DNS, Phase.TCP, Phase.TLS, Phase.SEND, Phase.HEADERS, Phase.FIRST_TOKEN, Phase.STREAM)
WHOLE = Exchange(
    url="https://chat.test:8443/v1/chat/completions",
    operation="chat",
    model="tiny",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    request_id="r1",
    started_unix_ns=ORIGIN,
    total=0.4,
    spans=tuple(Span(phase, *edges) for phase, edges in zip(PHASES, itertools.pairwise(MOMENTS), strict=True)),
    peer_address="192.0.2.7",
    tls_version="TLSv1.3",
    status=200,
    response_id="chatcmpl-r1",
    response_model="tiny",
    finish_reasons=("stop",),
    role_at=0.12,
    chunks=(Chunk(0.181, 0, 5), Chunk(0.39, 0, 5)),
    usage=Usage(7, 2, 4),
    min_rtt=0.015,
    request_attributes={"gen_ai.request.temperature": 0.5, "gen_ai.operation.name": "forged"},
)


def tree(exchange: Exchange) -> tuple[SpanRecord, ...]:
    numbers = itertools.count(1)
    return tree_of(exchange, lambda: f"{next(numbers):016x}")


def checked(records: tuple[SpanRecord, ...]) -> None:
    """Children within their parents, siblings of one kind neither overlapping nor of negative length, ids once."""
    by_id = {record.span_id: record for record in records}
    assert len(by_id) == len(records)
    groups: dict[tuple[str | None, bool], list[SpanRecord]] = {}
    for record in records:
        assert 0 <= record.start_unix_ns <= record.end_unix_ns < 2**63
        if record.parent_id in by_id:
            parent = by_id[record.parent_id]
            assert parent.start_unix_ns <= record.start_unix_ns
            assert record.end_unix_ns <= parent.end_unix_ns
        groups.setdefault((record.parent_id, record.synthesized), []).append(record)
    for group in groups.values():
        for one, other in itertools.pairwise(group):
            assert one.end_unix_ns <= other.start_unix_ns


def test_phases_are_children_that_add_up_to_the_whole() -> None:
    records = tree(WHOLE)
    checked(records)
    root, *children = records
    assert (root.name, root.kind, root.span_id, root.parent_id) == ("chat tiny", Kind.CLIENT, WHOLE.span_id, None)
    assert [child.name for child in children] == [phase.value for phase in PHASES]
    assert {child.parent_id for child in children} == {WHOLE.span_id}
    lengths = [child.end_unix_ns - child.start_unix_ns for child in children]
    assert lengths == [23 * MS, 30 * MS, 41 * MS, 1 * MS, 18 * MS, 68 * MS, 219 * MS]
    assert sum(lengths) == root.end_unix_ns - root.start_unix_ns == 400 * MS


def test_the_root_says_what_the_conventions_ask_for() -> None:
    root, *children = tree(WHOLE)
    known = root.attributes
    assert known[Name.OPERATION] == "chat"
    assert known[Name.REQUEST_MODEL] == known[Name.RESPONSE_MODEL] == "tiny"
    assert (known[Name.INPUT_TOKENS], known[Name.OUTPUT_TOKENS], known[Name.CACHED_TOKENS]) == (7, 2, 4)
    assert (known[Name.SERVER_ADDRESS], known[Name.SERVER_PORT]) == ("chat.test", 8443)
    assert (known[Name.HTTP_METHOD], known[Name.HTTP_STATUS], known[Name.URL_FULL]) == ("POST", 200, WHOLE.url)
    assert known[Name.FINISH_REASONS] == ("stop",)
    assert known["gen_ai.request.temperature"] == 0.5
    # The convention counts any chunk, ours the first content.
    assert known[Name.TIME_TO_FIRST_CHUNK] == 0.12
    assert known[Name.TTFT] == pytest.approx(0.181 - 0.095)
    assert known[Name.REUSED] is False
    assert Name.ERROR_TYPE not in known
    assert not root.status.failed
    tls = next(child for child in children if child.name == "tls_handshake")
    assert tls.attributes == {Name.TLS_PROTOCOL: "tls", Name.TLS_VERSION: "1.3"}
    events = [(event.name, event.at_unix_ns - ORIGIN) for event in root.events]
    assert events == [(EventName.ROLE_CHUNK, 120 * MS), (EventName.FIRST_TOKEN, 181 * MS)]


def test_a_reused_connection_has_no_connecting_phases() -> None:
    warm = replace(WHOLE, reused=True, spans=tuple(Span(s.phase, s.start, s.end) for s in WHOLE.spans[3:]))
    records = tree(warm)
    assert [record.name for record in records[1:]] == [phase.value for phase in PHASES[3:]]
    assert records[0].attributes[Name.REUSED] is True


def test_lost_attempts_are_events_and_the_delay_is_told() -> None:
    attempts = (Attempt("2001:db8::1", 0.025, False, "unreachable"), Attempt("192.0.2.7", 0.275, True))
    records = tree(replace(WHOLE, attempts=attempts))
    tcp = next(record for record in records if record.name == "tcp_connect")
    assert [event.attributes[Name.PEER_ADDRESS] for event in tcp.events] == ["2001:db8::1"]
    assert tcp.attributes[Name.HAPPY_EYEBALLS_DELAY] == pytest.approx(0.25)
    assert tcp.attributes[Name.PEER_ADDRESS] == "192.0.2.7"


def test_a_failure_is_told_at_the_root_and_in_its_phase() -> None:
    failed = replace(
        WHOLE,
        total=0.06,
        spans=(*WHOLE.spans[:2], Span(Phase.TLS, 0.053, 0.06)),
        status=None,
        role_at=None,
        chunks=(),
        failure=Failure(Phase.TLS, "certificate", "self-signed certificate"),
    )
    root, *children = tree(failed)
    checked((root, *children))
    assert root.status.failed
    assert root.status.description == "certificate: self-signed certificate"
    assert root.attributes[Name.ERROR_TYPE] == "certificate"
    assert [child.name for child in children if child.status.failed] == ["tls_handshake"]
    assert children[-1].attributes[Name.ERROR_TYPE] == "certificate"
    assert Name.TTFT not in root.attributes
    assert root.events == ()


def test_what_a_server_said_of_a_refused_request_does_not_leave() -> None:
    secret = "your prompt 'the merger is on' is too long"
    failed = replace(WHOLE, status=400, chunks=(), failure=Failure(Phase.HEADERS, "status_400", secret))
    assert "merger" not in repr(tree(failed))


def test_a_wait_that_was_cut_has_no_first_token() -> None:
    cut = replace(WHOLE, spans=WHOLE.spans[:6], chunks=(), role_at=None, failure=Failure(Phase.FIRST_TOKEN, "cut", ""))
    root = tree(cut)[0]
    assert root.events == ()
    assert Name.TTFT not in root.attributes
    assert Name.TIME_TO_FIRST_CHUNK not in root.attributes


def test_the_servers_own_durations_stand_in_one_block_that_ends_prefill_at_the_first_content() -> None:
    split = ServerSplit(SplitSource.BODY, queue=0.010, prefill=0.050, decode=0.2)
    records = tree(replace(WHOLE, server=split))
    checked(records)
    block = next(record for record in records if record.name == "server")
    pieces = [record for record in records if record.parent_id == block.span_id]
    assert [(p.name, (p.start_unix_ns - ORIGIN) // MS, (p.end_unix_ns - ORIGIN) // MS) for p in pieces] == [
        ("queue", 121, 131),
        ("prefill", 131, 181),
        ("decode", 181, 381),
    ]
    assert all(record.synthesized and record.attributes[Name.SYNTHESIZED] is True for record in (block, *pieces))
    assert records[0].attributes[Name.SPLIT_SOURCE] == "body_metrics"


def test_the_wait_for_the_engine_is_shown_where_it_is_known() -> None:
    split = ServerSplit(SplitSource.HISTOGRAM, exact=False, queue=0.01, prefill=0.02, decode=0.1, ttft=0.07)
    records = tree(replace(WHOLE, server=split))
    wait = next(record for record in records if record.name == "pre_engine_wait")
    assert wait.end_unix_ns - wait.start_unix_ns == pytest.approx(40 * MS, abs=1)
    assert wait.attributes[Name.SPLIT_EXACT] is False


def test_a_server_that_claims_more_than_there_was_is_shifted_and_says_so() -> None:
    split = ServerSplit(SplitSource.BODY, queue=0.0, prefill=0.1, decode=0.9)
    records = tree(replace(WHOLE, server=split))
    checked(records)
    prefill = next(record for record in records if record.name == "prefill")
    decode = next(record for record in records if record.name == "decode")
    assert prefill.start_unix_ns == ORIGIN + 95 * MS
    assert decode.attributes[Name.INCONSISTENT] is True
    assert decode.attributes[Name.DURATION] == 0.9


@pytest.mark.parametrize("source", [SplitSource.SPAN, SplitSource.NONE])
def test_nothing_is_synthesised_where_the_server_sent_its_span_or_told_nothing(source: SplitSource) -> None:
    split = ServerSplit(source, queue=0.01, prefill=0.05, decode=0.2)
    assert not any(record.synthesized for record in tree(replace(WHOLE, server=split)))


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0, 1),
    st.sampled_from([-1.0, 0.0, 1e300, math.nan, math.inf, -math.inf]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Phase)), NUMBERS, NUMBERS), max_size=9), NUMBERS, NUMBERS, st.integers())
def test_whatever_the_clocks_did_the_tree_is_one(
    phases: list[tuple[Phase, float, float]], total: float, told: float, started: int
) -> None:
    hostile = replace(
        WHOLE,
        started_unix_ns=started,
        total=total,
        spans=tuple(Span(*phase) for phase in phases),
        role_at=told,
        chunks=(Chunk(told, 0, 1),),
        attempts=(Attempt("a", told, False), Attempt("b", total, True)),
        min_rtt=told,
        server=ServerSplit(SplitSource.BODY, queue=told, prefill=total, decode=told, ttft=told),
    )
    records = tree(hostile)
    checked(records)
    for record in records:
        for value in record.attributes.values():
            assert not isinstance(value, float) or math.isfinite(value)


def test_attributes_are_bounded() -> None:
    many = cleaned({f"key{number}": "x" * 5000 for number in range(1000)})
    assert len(many) == 128
    assert {len(str(value)) for value in many.values()} == {1024}
    assert cleaned({"a": math.nan, "b": 2**70, "c": True, "d": -3}) == {"c": True, "d": -3}


def test_a_url_that_is_none_costs_only_its_own_attributes() -> None:
    known = tree(replace(WHOLE, url="http://[broken"))[0].attributes
    assert Name.SERVER_ADDRESS not in known
    assert known[Name.OPERATION] == "chat"


def test_ids_are_never_zero() -> None:
    given_bytes = iter([bytes(8), b"\x00" * 7 + b"\x01"])
    assert ids_from(lambda _: next(given_bytes))() == "0000000000000001"
