"""What the tests of OTLP share: requests as vLLM sends them, an open receiver, and backends that misbehave."""

from __future__ import annotations

import asyncio
import gzip
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from ufwatch.config import WebConfig
from ufwatch.trace.forward import Limits, Outcome, Transport, Verdict
from ufwatch.trace.receiver import Receiver, ReceiverConfig, start_receiver
from ufwatch.trace.wire import PROTOBUF, Request
from ufwatch.web.server import serve

START = 1_700_000_000_000_000_000
TRACE = "0af7651916cd43dd8448eb211c80319c"
LATENCIES: Mapping[str, float] = {
    "gen_ai.latency.time_in_queue": 0.010,
    "gen_ai.latency.time_to_first_token": 0.100,
    "gen_ai.latency.e2e": 0.300,
    "gen_ai.latency.time_in_model_prefill": 0.050,
    "gen_ai.latency.time_in_model_decode": 0.190,
    "gen_ai.latency.time_in_model_inference": 0.240,
}
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


def any_value(value: object) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(double_value=value) if isinstance(value, float) else AnyValue(string_value=str(value))


def wire(
    name: str = "llm_request",
    *,
    trace: str = TRACE,
    span: str = "00f067aa0ba902b7",
    parent: str = "b7ad6b7169203331",
    start: int = START,
    seconds: float = 0.3,
    attributes: Mapping[str, object] | None = None,
) -> WireSpan:
    return WireSpan(
        name=name,
        kind=WireSpan.SPAN_KIND_SERVER,
        trace_id=bytes.fromhex(trace),
        span_id=bytes.fromhex(span),
        parent_span_id=bytes.fromhex(parent),
        start_time_unix_nano=start,
        end_time_unix_nano=start + round(seconds * 1e9),
        attributes=[KeyValue(key=key, value=any_value(value)) for key, value in (attributes or {}).items()],
    )


def llm_request(request_id: str = "chatcmpl-r1", **changes: object) -> WireSpan:
    known: dict[str, object] = {**LATENCIES, "gen_ai.usage.prompt_tokens": 7, "gen_ai.request.id": request_id}
    return wire(attributes=known, **changes)  # type: ignore[arg-type]


def request(*spans: WireSpan, **resource: str) -> Request:
    attributes = {"service.name": "vllm", "service.instance.id": "i1", **resource}
    return Request(
        resource_spans=[
            ResourceSpans(
                resource=Resource(
                    attributes=[KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]
                ),
                scope_spans=[ScopeSpans(scope=InstrumentationScope(name="vllm.tracing.otel"), spans=spans)],
            )
        ]
    )


def body(*spans: WireSpan, **resource: str) -> bytes:
    written: bytes = request(*spans, **resource).SerializeToString()
    return written


def spans_in(payload: bytes) -> list[WireSpan]:
    found = Request.FromString(payload)
    return [span for resource in found.resource_spans for scope in resource.scope_spans for span in scope.spans]


def counting_bytes() -> Callable[[int], bytes]:
    """Random bytes that are not: span ids 1, 2, 3, …"""
    numbers = itertools.count(1)
    return lambda size: b"".join(next(numbers).to_bytes(8, "big") for _ in range(size // 8))


@dataclass
class Backend:
    """A transport that answers as told, in turn, the last answer for ever; without any, it takes everything."""

    outcomes: list[Outcome] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    closed: bool = False
    sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, payload: bytes) -> Outcome:
        self.payloads.append(payload)
        self.sent.set()
        await asyncio.sleep(0)
        if not self.outcomes:
            return Outcome(Verdict.DELIVERED)
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]

    async def close(self) -> None:
        self.closed = True


class Hanging(Backend):
    """Takes a request and never answers."""

    async def send(self, payload: bytes) -> Outcome:
        self.payloads.append(payload)
        self.sent.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError


@asynccontextmanager
async def receiving(
    transport: Transport | None = None,
    *,
    limits: Limits | None = None,
    cap_bytes: int = 4 * 2**20,
    grouping: Mapping[str, str] | None = None,
) -> AsyncIterator[Receiver]:
    """A receiver on ports of the system's choice."""
    receiver = await start_receiver(
        ReceiverConfig(grpc_port=0, http_port=0, cap_bytes=cap_bytes, grouping=grouping or {}),
        serve=serve,
        now=asyncio.get_running_loop().time,
        random=lambda: 0.5,
        random_bytes=counting_bytes(),
        transport=transport,
        limits=limits,
    )
    try:
        yield receiver
    finally:
        await receiver.stop()


Answer = tuple[int, Mapping[str, str], bytes]
TAKEN: Answer = (200, {"Content-Type": PROTOBUF}, b"")


@dataclass
class HttpBackend:
    """A collector over HTTP that gives these answers in turn, the last one for ever."""

    answers: list[Answer]
    bodies: list[bytes] = field(default_factory=list)
    heads: list[Mapping[str, str]] = field(default_factory=list)
    url: str = ""

    async def handle(self, asked: web.Request) -> web.Response:
        self.bodies.append(await asked.read())
        self.heads.append({key.lower(): value for key, value in asked.headers.items()})
        status, headers, content = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.Response(status=status, headers=headers, body=content)


@asynccontextmanager
async def http_backend(*answers: Answer) -> AsyncIterator[HttpBackend]:
    backend = HttpBackend(list(answers) or [TAKEN])
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", backend.handle)
    served = await serve(app, WebConfig(port=0))
    backend.url = served.url
    try:
        yield backend
    finally:
        await served.stop()


@dataclass
class GrpcBackend:
    """A collector over gRPC: fails with these codes in turn, then takes everything, or answers with ``content``."""

    failures: list[tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]]
    content: bytes = ExportTraceServiceResponse().SerializeToString()
    bodies: list[bytes] = field(default_factory=list)
    metadata: list[Mapping[str, str]] = field(default_factory=list)
    target: str = ""

    async def handle(self, payload: bytes, context: grpc.aio.ServicerContext) -> bytes:
        self.bodies.append(payload)
        self.metadata.append(dict(context.invocation_metadata()))
        if self.failures:
            code, details, trailing = self.failures.pop(0)
            context.set_trailing_metadata(trailing)
            await context.abort(code, details)
        return self.content


@asynccontextmanager
async def grpc_backend(
    *failures: tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]], content: bytes = b""
) -> AsyncIterator[GrpcBackend]:
    backend = GrpcBackend(list(failures), content)
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(backend.handle)
    service = METHOD.split("/")[1]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    backend.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield backend
    finally:
        await server.stop(0)


async def until(condition: Callable[[], bool]) -> None:
    """Waits, turn by turn of the loop, until something that is under way has happened; the test's limit ends it."""
    while not condition():
        await asyncio.sleep(0.002)


def packed(content: bytes) -> bytes:
    return gzip.compress(content)
