"""Real backends over both protocols: good ones, and those that are dead, slow, full or answer with garbage."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import grpc
import pytest
import trustme
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.sources.loopback import hang, looped, saying, serving
from tests.trace.otlp import (
    TAKEN,
    Backend,
    body,
    grpc_backend,
    http_backend,
    llm_request,
    receiving,
    request,
    spans_in,
    until,
    wire,
)
from tests.trace.test_receiver import call, post
from ufwatch.errors import ConfigError
from ufwatch.trace.endpoint import GRPC, HTTP, Endpoint
from ufwatch.trace.forward import Drop, Outcome, Verdict
from ufwatch.trace.receiver import transport_to
from ufwatch.trace.wire import PROTOBUF, Request

FIVE = ["preprocess+engine_wait", "queue", "prefill", "decode", "postprocess"]
PARTIAL = ExportTraceServiceResponse()
PARTIAL.partial_success.rejected_spans = 2
PARTIAL.partial_success.error_message = "too old"


def over_http(url: str, **changes: object) -> Endpoint:
    return Endpoint(protocol=HTTP, target=url, tls=url.startswith("https"), **changes)  # type: ignore[arg-type]


def over_grpc(target: str, **changes: object) -> Endpoint:
    return Endpoint(protocol=GRPC, target=target, tls=False, **changes)  # type: ignore[arg-type]


async def outcome(endpoint: Endpoint, payload: bytes = b"") -> Outcome:
    transport = transport_to(endpoint, {})
    try:
        return await transport.send(payload)
    finally:
        await transport.close()


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
def test_spans_reach_a_second_receiver_with_children_and_otherwise_byte_for_byte(protocol: str) -> None:
    @looped
    async def run() -> None:
        collected = Backend()
        async with receiving(collected) as second:
            endpoint = (
                over_http(f"http://127.0.0.1:{second.http_port}/v1/traces")
                if protocol == HTTP
                else over_grpc(f"127.0.0.1:{second.grpc_port}")
            )
            # A field that no version of OTLP has, within a span that nobody here knows.
            stranger = wire("GET /v1/models", span="2" * 16)
            stranger.MergeFromString(b"\xfa\x3e\x04abcd")
            content = body(stranger, llm_request())
            async with receiving(transport_to(endpoint, {})) as first:
                await call(first, content)
                await until(lambda: first.forwarded is not None and first.forwarded.delivered == 2)
            assert await second.wait_for("", "r1", 5) is not None
            await until(lambda: bool(collected.payloads))
            arrived = collected.payloads[0]
            assert arrived.startswith(content)
            # The second receiver adds its own: it cannot know that there are some already, since ours are no vllm_*.
            assert [span.name for span in spans_in(arrived)][:7] == ["GET /v1/models", "llm_request", *FIVE]

    run()


@looped
async def test_a_grouping_attribute_is_added_where_there_is_none_and_nothing_else_changes() -> None:
    backend = Backend()
    sent = request(wire("other", span="2" * 16))
    sent.MergeFrom(request(wire("third", span="3" * 16), **{"openinference.project.name": "theirs"}))
    async with receiving(backend, grouping={"openinference.project.name": "ours"}) as receiver:
        await post(receiver, sent.SerializeToString())
        await until(lambda: bool(backend.payloads))
    found = Request.FromString(backend.payloads[0])
    names = [
        [pair.value.string_value for pair in resource.resource.attributes if pair.key == "openinference.project.name"]
        for resource in found.resource_spans
    ]
    assert names == [["ours"], ["theirs"]]
    del found.resource_spans[0].resource.attributes[-1]
    assert found == sent


@looped
async def test_native_children_stay_alone() -> None:
    backend = Backend()
    async with receiving(backend) as receiver:
        native = wire("vllm_queue", span="4" * 16, parent="00f067aa0ba902b7")
        await post(receiver, body(native, llm_request()))
        await until(lambda: bool(backend.payloads))
        assert [span.name for span in spans_in(backend.payloads[0])] == ["vllm_queue", "llm_request"]


@looped
async def test_children_come_under_their_span_and_its_resource() -> None:
    backend = Backend()
    async with receiving(backend) as receiver:
        await post(receiver, body(llm_request()))
        await until(lambda: bool(backend.payloads))
    original, added = Request.FromString(backend.payloads[0]).resource_spans
    assert added.resource == original.resource
    assert {span.parent_span_id.hex() for span in added.scope_spans[0].spans} == {"00f067aa0ba902b7"}
    assert len({span.span_id for span in added.scope_spans[0].spans}) == 5


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (TAKEN, (Verdict.DELIVERED, 0, None)),
        ((202, {"Content-Type": "text/plain"}, b"ok"), (Verdict.DELIVERED, 0, None)),
        ((200, {"Content-Type": PROTOBUF}, PARTIAL.SerializeToString()), (Verdict.DELIVERED, 2, None)),
        ((200, {"Content-Type": PROTOBUF}, b"\xff\xff\xff"), (Verdict.REJECTED, 0, None)),
        ((200, {"Content-Type": "text/html"}, b"<html>a page</html>"), (Verdict.REJECTED, 0, None)),
        ((429, {"Retry-After": "7"}, b""), (Verdict.RETRY, 0, 7.0)),
        ((503, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, b""), (Verdict.RETRY, 0, None)),
        ((502, {}, b""), (Verdict.RETRY, 0, None)),
        ((504, {}, b""), (Verdict.RETRY, 0, None)),
        ((400, {}, b"bad"), (Verdict.REJECTED, 0, None)),
        ((401, {}, b""), (Verdict.REJECTED, 0, None)),
        ((404, {}, b""), (Verdict.REJECTED, 0, None)),
        ((413, {}, b""), (Verdict.TOO_LARGE, 0, None)),
        ((500, {}, b""), (Verdict.REJECTED, 0, None)),
        ((307, {"Location": "http://127.0.0.1:1/"}, b""), (Verdict.REJECTED, 0, None)),
    ],
)
def test_what_an_answer_over_http_means(
    answer: tuple[int, dict[str, str], bytes], expected: tuple[Verdict, int, float | None]
) -> None:
    @looped
    async def run() -> None:
        async with http_backend(answer) as backend:
            assert (await outcome(over_http(f"{backend.url}/v1/traces")))[:3] == expected
            assert len(backend.bodies) == 1

    run()


def retry_info(seconds: int) -> bytes:
    detail = Any()
    detail.Pack(RetryInfo(retry_delay=Duration(seconds=seconds)))
    written: bytes = Status(code=8, details=[detail]).SerializeToString()
    return written


@pytest.mark.parametrize(
    ("code", "details", "trailing", "expected"),
    [
        ("UNAVAILABLE", "restarting", (), (Verdict.RETRY, 0, None)),
        ("DEADLINE_EXCEEDED", "", (), (Verdict.RETRY, 0, None)),
        ("RESOURCE_EXHAUSTED", "quota", (), (Verdict.REJECTED, 0, None)),
        ("RESOURCE_EXHAUSTED", "", (("grpc-status-details-bin", retry_info(9)),), (Verdict.RETRY, 0, 9.0)),
        ("RESOURCE_EXHAUSTED", "", (("grpc-status-details-bin", b"\xff\xff"),), (Verdict.REJECTED, 0, None)),
        ("RESOURCE_EXHAUSTED", "Received message larger than max (9 vs. 4)", (), (Verdict.TOO_LARGE, 0, None)),
        ("UNAUTHENTICATED", "", (), (Verdict.REJECTED, 0, None)),
        ("UNIMPLEMENTED", "", (), (Verdict.REJECTED, 0, None)),
        ("INTERNAL", "", (), (Verdict.REJECTED, 0, None)),
    ],
)
def test_what_an_answer_over_grpc_means(
    code: str,
    details: str,
    trailing: tuple[tuple[str, bytes], ...],
    expected: tuple[Verdict, int, float | None],
) -> None:
    @looped
    async def run() -> None:
        async with grpc_backend((grpc.StatusCode[code], details, trailing)) as backend:
            assert (await outcome(over_grpc(backend.target)))[:3] == expected

    run()


@looped
async def test_rejections_and_garbage_over_grpc() -> None:
    async with grpc_backend(content=PARTIAL.SerializeToString()) as backend:
        assert await outcome(over_grpc(backend.target)) == Outcome(Verdict.DELIVERED, 2, None, "too old")
    async with grpc_backend(content=b"\xff\xff\xff") as backend:
        assert (await outcome(over_grpc(backend.target))).verdict is Verdict.REJECTED


@looped
async def test_a_dead_backend_is_tried_again() -> None:
    assert (await outcome(over_http(f"http://127.0.0.1:{closed_port()}/v1/traces"))).verdict is Verdict.RETRY
    assert (await outcome(over_grpc(f"127.0.0.1:{closed_port()}"))).verdict is Verdict.RETRY


@looped
async def test_a_silent_backend_is_left_after_the_time_limit() -> None:
    async with serving(lambda _, reader, __: hang(reader)) as silent:
        told = await outcome(over_http(f"http://127.0.0.1:{silent.port}/v1/traces", timeout=0.05))
        assert told.verdict is Verdict.RETRY
        assert "0.05 s" in told.why
    async with serving(lambda _, reader, __: hang(reader)) as silent:
        assert (await outcome(over_grpc(f"127.0.0.1:{silent.port}", timeout=0.2))).verdict is Verdict.RETRY


@looped
async def test_what_is_no_http_at_all_delays_nobody() -> None:
    async with serving(saying(b"\x00\x01 what?\r\n\r\n")) as garbage:
        assert (await outcome(over_http(f"http://127.0.0.1:{garbage.port}/v1/traces"))).verdict is Verdict.RETRY
    async with serving(saying(b"\x00\x01 what?\r\n\r\n")) as garbage:
        verdict = (await outcome(over_grpc(f"127.0.0.1:{garbage.port}", timeout=1.0))).verdict
        assert verdict in (Verdict.RETRY, Verdict.REJECTED)


@looped
async def test_a_long_answer_is_not_read_to_its_end() -> None:
    endless = b"HTTP/1.1 400 Bad\r\nContent-Type: text/plain\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 200_000
    async with serving(saying(endless)) as server:
        told = await outcome(over_http(f"http://127.0.0.1:{server.port}/v1/traces"))
    assert told.verdict is Verdict.REJECTED
    assert len(told.why) < 200


@looped
async def test_headers_go_out_and_never_into_a_message() -> None:
    headers = (("authorization", "Bearer s3cret-token"), ("x-tenant", "a=b"))
    async with http_backend((401, {}, b"who is Bearer s3cret-token?")) as backend:
        told = await outcome(over_http(f"{backend.url}/v1/traces", headers=headers))
        assert backend.heads[0]["authorization"] == "Bearer s3cret-token"
        assert backend.heads[0]["x-tenant"] == "a=b"
        assert backend.heads[0]["content-type"] == PROTOBUF
        assert "s3cret" not in told.why
        assert "s3cret" not in repr(over_http(backend.url, headers=headers))
    async with grpc_backend((grpc.StatusCode.UNAUTHENTICATED, "Bearer s3cret-token?", ())) as collector:
        told = await outcome(over_grpc(collector.target, headers=headers))
        assert collector.metadata[0]["authorization"] == "Bearer s3cret-token"
        assert "s3cret" not in told.why


@looped
async def test_bodies_are_packed_where_asked_and_worth_it() -> None:
    content = body(*(llm_request(span=f"{number:016x}") for number in range(1, 50)))
    async with http_backend() as backend:
        transport = transport_to(over_http(f"{backend.url}/v1/traces", gzip=True), {})
        await transport.send(content)
        await transport.send(b"")
        await transport.close()
        assert backend.bodies == [content, b""]
        assert [head.get("content-encoding") for head in backend.heads] == ["gzip", None]
    async with receiving() as receiver:
        told = await outcome(over_grpc(f"127.0.0.1:{receiver.grpc_port}", gzip=True), content)
        assert told.verdict is Verdict.DELIVERED
        assert receiver.received.spans == 49


@looped
async def test_a_proxy_is_not_asked_for_a_local_backend() -> None:
    nowhere = {"http_proxy": f"http://127.0.0.1:{closed_port()}"}
    async with http_backend() as backend:
        transport = transport_to(over_http(f"{backend.url}/v1/traces"), nowhere)
        assert (await transport.send(b"")).verdict is Verdict.DELIVERED
        await transport.close()


@looped
async def test_tls_is_checked_against_the_given_authority(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    ca_file, wrong_file = tmp_path / "ca.pem", tmp_path / "wrong.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    stranger.cert_pem.write_to_path(str(wrong_file))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with serving(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", keep=False), tls) as server:
        url = f"https://127.0.0.1:{server.port}/v1/traces"
        assert (await outcome(over_http(url, ca_file=ca_file))).verdict is Verdict.DELIVERED
        assert (await outcome(over_http(url, ca_file=wrong_file))).verdict is Verdict.RETRY


def test_a_bad_certificate_file_is_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(ConfigError, match="cannot be used"):
        transport_to(over_http("https://c.test/v1/traces", ca_file=bad), {})
    with pytest.raises(ConfigError, match="cannot be read"):
        transport_to(Endpoint(protocol=GRPC, target="c.test:4317", tls=True, ca_file=tmp_path / "none"), {})


@looped
async def test_a_backend_that_hangs_does_not_delay_the_receiver() -> None:
    async with serving(lambda _, reader, __: hang(reader)) as silent:
        transport = transport_to(over_http(f"http://127.0.0.1:{silent.port}/v1/traces"), {})
        async with receiving(transport) as receiver:
            for number in range(1, 51):
                assert await call(receiver, body(llm_request(span=f"{number:016x}"))) == b""
            await until(lambda: silent.connections == 1)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await receiver.stop()
            assert loop.time() - began < 2.5
            counts = receiver.forwarded
            assert counts is not None
            assert counts.dropped[Drop.SHUTDOWN] == 50
