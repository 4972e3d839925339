"""What comes in by either door is answered, counted and joined; what should not come in is refused in OTLP's words."""

from __future__ import annotations

import asyncio
import io
import socket
from pathlib import Path

import aiohttp
import grpc
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.sources.loopback import looped
from tests.trace.otlp import LATENCIES, METHOD, Hanging, body, llm_request, packed, receiving, until
from ufwatch.errors import ListenError
from ufwatch.trace.forward import Limits
from ufwatch.trace.intake import Refusal
from ufwatch.trace.receiver import Receiver, ReceiverConfig, start_receiver
from ufwatch.trace.server_spans import split_of, tokens_of
from ufwatch.trace.wire import PROTOBUF
from ufwatch.web.server import serve

TYPE = {"Content-Type": PROTOBUF}


async def post(
    receiver: Receiver, content: bytes, *, path: str = "/v1/traces", **headers: str
) -> tuple[int, bytes, str]:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    async with (
        aiohttp.ClientSession() as client,
        client.post(
            f"http://127.0.0.1:{receiver.http_port}{path}", data=io.BytesIO(content), headers={**TYPE, **named}
        ) as got,
    ):
        return got.status, await got.read(), got.headers.get("Content-Type", "")


async def call(receiver: Receiver, content: bytes, compression: grpc.Compression | None = None) -> bytes:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{receiver.grpc_port}", compression=compression) as channel:
        answer: bytes = await channel.unary_unary(METHOD)(content)
        return answer


def as_vllm_sends(request_id: str) -> ReadableSpan:
    """A span of the real SDK with vLLM's name and attributes."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    attributes: dict[str, str | float] = {
        **LATENCIES,
        "gen_ai.request.id": request_id,
        "gen_ai.usage.completion_tokens": 5,
    }
    provider.get_tracer("vllm.tracing.otel").start_span("llm_request", attributes=attributes).end()
    return kept.get_finished_spans()[0]


@pytest.mark.parametrize("packing", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_span_of_the_real_exporter_is_found_by_its_trace_and_its_request(protocol: str, packing: bool) -> None:
    @looped
    async def run() -> None:
        async with receiving() as receiver:
            span = as_vllm_sends("chatcmpl-r7")
            exporter: SpanExporter
            if protocol == "grpc":
                exporter = GrpcExporter(
                    endpoint=f"127.0.0.1:{receiver.grpc_port}",
                    insecure=True,
                    compression=grpc.Compression.Gzip if packing else grpc.Compression.NoCompression,
                )
            else:
                from opentelemetry.exporter.otlp.proto.http import Compression

                exporter = HttpExporter(
                    endpoint=f"http://127.0.0.1:{receiver.http_port}/v1/traces",
                    compression=Compression.Gzip if packing else Compression.NoCompression,
                )
            trace_id = f"{span.get_span_context().trace_id:032x}"  # type: ignore[union-attr]
            waiting = asyncio.create_task(receiver.wait_for(trace_id, "", 20))
            assert await asyncio.to_thread(exporter.export, [span]) is SpanExportResult.SUCCESS
            await asyncio.to_thread(exporter.shutdown)
            found = await waiting
            assert found is not None
            assert (split_of(found).queue, split_of(found).ttft) == (0.010, 0.100)
            assert tokens_of(found) == (None, 5)
            assert await receiver.wait_for("f" * 32, "r7", 0) == found
            assert receiver.received[:3] == (1, 1, 0)

    run()


@looped
async def test_both_doors_answer_with_an_empty_response_which_means_that_all_was_taken() -> None:
    async with receiving() as receiver:
        assert await post(receiver, body(llm_request())) == (200, b"", PROTOBUF)
        assert await call(receiver, body(llm_request())) == b""
        assert await call(receiver, b"") == b""
        assert receiver.received[:2] == (3, 2)


@looped
async def test_vllm_without_the_path_in_its_endpoint_is_understood() -> None:
    async with receiving() as receiver:
        assert (await post(receiver, body(llm_request()), path="/"))[0] == 200
        assert (await post(receiver, b"", path="/v1/metrics"))[0] == 404


@looped
async def test_a_full_queue_is_told_and_never_waited_for() -> None:
    content = body(llm_request(), llm_request(span="1" * 16))
    async with receiving(Hanging(), limits=Limits(most_spans=2)) as receiver:
        assert await call(receiver, content) == b""
        told = ExportTraceServiceResponse.FromString((await post(receiver, content))[1]).partial_success
        assert told.rejected_spans == 2
        assert "queue" in told.error_message
        told = ExportTraceServiceResponse.FromString(await call(receiver, content)).partial_success
        assert told.rejected_spans == 2
        assert receiver.received[:3] == (3, 6, 4)
        # Not passed on, but joined all the same.
        assert await receiver.wait_for("", "r1", 5) is not None


@looped
async def test_what_is_no_otlp_is_refused_over_http() -> None:
    async with receiving(cap_bytes=100_000) as receiver:
        status, told, kind = await post(receiver, b"\xff\xff\xff")
        assert (status, kind) == (400, PROTOBUF)
        assert "protobuf" in Status.FromString(told).message
        assert (await post(receiver, b"no gzip at all", Content_Encoding="gzip"))[0] == 400
        assert (await post(receiver, packed(body(llm_request()))[:-20], Content_Encoding="gzip"))[0] == 400
        assert (await post(receiver, b'{"resourceSpans":[]}', Content_Type="application/json"))[0] == 415
        assert (await post(receiver, bytes(10_000_000)))[0] == 413
        assert (await post(receiver, packed(bytes(50_000_000)), Content_Encoding="gzip"))[0] == 413
        refused = receiver.received.refused
        assert refused[Refusal.UNSUPPORTED] == 1
        assert refused[Refusal.MALFORMED] == 3
        assert refused[Refusal.TOO_LARGE] == 2
        assert receiver.received[:2] == (0, 0)


@looped
async def test_what_is_no_otlp_is_refused_over_grpc() -> None:
    async with receiving(cap_bytes=100_000) as receiver:
        for content, packing, code in (
            (b"\xff\xff\xff", None, grpc.StatusCode.INVALID_ARGUMENT),
            (b"\x1f\x8bno gzip", None, grpc.StatusCode.INVALID_ARGUMENT),
            (bytes(10_000_000), None, grpc.StatusCode.RESOURCE_EXHAUSTED),
            (bytes(50_000_000), grpc.Compression.Gzip, grpc.StatusCode.RESOURCE_EXHAUSTED),
            (bytes(50_000_000), grpc.Compression.Deflate, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await call(receiver, content, packing)
            assert failure.value.code() is code
        assert receiver.received[:2] == (0, 0)
        assert await call(receiver, body(llm_request())) == b""


@pytest.mark.parametrize("door", ["grpc", "http"])
def test_a_port_in_use_is_one_clear_line(door: str) -> None:
    @looped
    async def run() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            config = ReceiverConfig(grpc_port=port if door == "grpc" else None, http_port=port if door == "http" else 0)
            with pytest.raises(ListenError) as failure:
                await start_receiver(
                    config, serve=serve, now=lambda: 0.0, random=lambda: 0.5, random_bytes=lambda size: bytes(size)
                )
        assert str(failure.value).splitlines() == [str(failure.value)]
        assert str(port) in str(failure.value)
        assert "in use" in str(failure.value)

    run()


@looped
async def test_a_door_without_passwords_is_not_opened_to_others(tmp_path: Path) -> None:
    config = ReceiverConfig(host="0.0.0.0", grpc_port=0, http_port=None, web_config_file=tmp_path / "web.yml")
    with pytest.raises(ListenError, match="without the TLS and passwords"):
        await start_receiver(
            config, serve=serve, now=lambda: 0.0, random=lambda: 0.5, random_bytes=lambda size: bytes(size)
        )


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0", "", "[::1]", "::"])
def test_any_way_to_write_an_address_will_do(host: str) -> None:
    @looped
    async def run() -> None:
        receiver = await start_receiver(
            ReceiverConfig(host=host, grpc_port=0, http_port=0),
            serve=serve,
            now=lambda: 0.0,
            random=lambda: 0.5,
            random_bytes=lambda size: bytes(size),
        )
        target = "[::1]" if ":" in host else "127.0.0.1"
        async with grpc.aio.insecure_channel(f"{target}:{receiver.grpc_port}") as channel:
            assert await channel.unary_unary(METHOD)(b"") == b""
        await receiver.stop()

    run()


@looped
async def test_two_receivers_never_share_a_port() -> None:
    async with receiving() as receiver:
        config = ReceiverConfig(grpc_port=receiver.grpc_port, http_port=None)
        with pytest.raises(ListenError, match="in use"):
            await start_receiver(
                config, serve=serve, now=lambda: 0.0, random=lambda: 0.5, random_bytes=lambda size: bytes(size)
            )


@looped
async def test_who_waits_is_told_at_once_and_who_waits_in_vain_is_told_too() -> None:
    async with receiving() as receiver:
        assert await receiver.wait_for("f" * 32, "", 0.01) is None
        first = asyncio.create_task(receiver.wait_for("f" * 32, "my-id", 20))
        second = asyncio.create_task(receiver.wait_for("f" * 32, "chatcmpl-my-id", 20))
        await until(lambda: len(receiver.joins._waiting) == 2)
        await post(receiver, body(llm_request("cmpl-my-id-0")))
        found = await first
        assert found is not None
        assert found == await second
        assert len(receiver.joins._waiting) == 0
