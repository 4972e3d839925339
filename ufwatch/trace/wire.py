"""OTLP's messages and our spans, in both directions; the bytes that came are passed on as they came.

An export request is nothing but a list, so what is added to one is written behind its bytes: whatever is inside, known
here or not, stays the same to the byte. Imports OpenTelemetry: import this where OTLP is wanted, not at the start.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from ufwatch import __version__
from ufwatch.trace.conventions import DEPRECATED, LLM_REQUEST, SCHEMA_URL, Name
from ufwatch.trace.record import MOST_ATTRIBUTES, MOST_CHARACTERS, Value
from ufwatch.trace.server_spans import (
    PIECES,
    Piece,
    ServerSpan,
    is_load_phase,
    is_native_child,
    pieces_of,
    request_key,
)

Request = ExportTraceServiceRequest
PROTOBUF = "application/x-protobuf"

_READ = frozenset({*(name.value for name in Name if name.startswith("gen_ai.")), *DEPRECATED})
"""The attributes that are kept of a received span: nothing that could hold a prompt."""
_SCOPE = InstrumentationScope(name="ufwatch", version=__version__)
_CHILDREN = {
    name: WireSpan(
        name=name,
        kind=WireSpan.SPAN_KIND_INTERNAL,
        attributes=[KeyValue(key=Name.SYNTHESIZED, value=AnyValue(bool_value=True))],
    )
    for name in PIECES
}
_NUMBERS = frozenset({"double_value", "int_value", "bool_value"})
_REQUEST_ID = Name.VLLM_REQUEST_ID.value
SPANS_AT_A_TIME = 64
"""After so many (about 2 ms) others in the loop have their turn: it also times tokens."""
_PASSED_AT_A_TIME = 32
"""So many spans that are passed over take the time of one that is read."""
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8


class MalformedError(Exception):
    """The body is not what it is said to be."""


class TooLargeError(Exception):
    """The body is larger than is taken, packed or unpacked."""


def inflated(packed: bytes, cap_bytes: int) -> bytes:
    """The content of a gzip or zlib stream, of which no more than ``cap_bytes`` and one are ever made.

    Raises MalformedError and TooLargeError.
    """
    stream = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
    try:
        content = stream.decompress(packed, cap_bytes + 1)
    except zlib.error:
        raise MalformedError("the body is said to be compressed and is not") from None
    if len(content) > cap_bytes:
        raise TooLargeError(f"more than {cap_bytes} bytes after decompression")
    if not stream.eof or stream.unused_data:
        raise MalformedError("the compressed body is cut or has more behind it")
    return content


def parsed(body: bytes) -> Request:
    """The request. Raises MalformedError."""
    try:
        request: Request = Request.FromString(body)
    except DecodeError:
        raise MalformedError("the body is no OTLP trace request in protobuf") from None
    return request


def count_spans(request: Request) -> int:
    """How many spans are in it."""
    return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)


def answer(rejected: int, why: str) -> bytes:
    """The response to an exporter; empty, which means all were taken, where none is rejected."""
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = why
    written: bytes = response.SerializeToString()
    return written


def rejected_in(body: bytes) -> tuple[int, str]:
    """How many spans a backend's response rejects, and why. Raises MalformedError."""
    try:
        response = ExportTraceServiceResponse.FromString(body)
    except DecodeError:
        raise MalformedError("the answer is no OTLP response") from None
    partial = response.partial_success
    return max(0, partial.rejected_spans), partial.error_message


def known_spans(request: Request) -> Iterator[ServerSpan]:
    """The spans that are read here: of requests, of their native children, of model loads. Others are passed over."""
    return (span for span in known_in_turns(request) if span is not None)


def known_in_turns(request: Request) -> Iterator[ServerSpan | None]:
    """As :func:`known_spans`, with a None for every so many that are passed over: 4 MB may hold two million."""
    passed = 0
    for resource in request.resource_spans:
        instance = _instance(resource)
        for scope in resource.scope_spans:
            for span in scope.spans:
                # The name is compared first: all that others send is looked at no further.
                name = span.name
                if name == LLM_REQUEST or is_native_child(name) or is_load_phase(name):
                    known = _server_span(span, instance)
                    if known is not None:
                        yield known
                        continue
                passed += 1
                if passed % _PASSED_AT_A_TIME == 0:
                    yield None


async def dressed(
    body: bytes,
    *,
    known: Callable[[str], ServerSpan | None],
    has_native: Callable[[str], bool],
    random_bytes: Callable[[int], bytes],
    grouping: Mapping[str, str],
) -> bytes:
    """The request with what is added to it: the children of each ``llm_request`` without native ones, and the
    attributes of ``grouping`` on each resource that has none of that name. Raises MalformedError.

    ``known`` finds a span that has been read before by its id, ``has_native`` whether it has children by vLLM itself
    that came in another request. A long request lets others run in between.
    """
    request = parsed(body)
    if grouping and _group(request, grouping):
        body = request.SerializeToString()
    more = Request()
    native = _native_parents(request)
    done = passed = 0
    for resource in request.resource_spans:
        children: ScopeSpans | None = None
        for scope in resource.scope_spans:
            for span in scope.spans:
                passed += 1
                if passed % (_PASSED_AT_A_TIME * SPANS_AT_A_TIME) == 0:
                    await asyncio.sleep(0)
                if span.name != LLM_REQUEST or span.span_id in native or has_native(span_id := span.span_id.hex()):
                    continue
                done += 1
                if done % SPANS_AT_A_TIME == 0:
                    await asyncio.sleep(0)
                read = known(span_id)
                if read is None or read.start_unix_ns != span.start_time_unix_nano:
                    read = _server_span(span, "")
                pieces = [] if read is None else pieces_of(read)
                if pieces and children is None:
                    added = more.resource_spans.add(resource=resource.resource, schema_url=resource.schema_url)
                    children = added.scope_spans.add(scope=_SCOPE, schema_url=SCHEMA_URL)
                if children is not None:
                    _add_children(children, span, pieces, random_bytes)
    written: bytes = more.SerializeToString()
    return body + written


def _native_parents(request: Request) -> set[bytes]:
    return {
        span.parent_span_id
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        if is_native_child(span.name)
    }


def _add_children(
    to: ScopeSpans, parent: WireSpan, pieces: Sequence[Piece], random_bytes: Callable[[int], bytes]
) -> None:
    # One call for all ids: that they are all zeros, which would mean none, happens once in 2^64.
    ids = random_bytes(_SPAN_ID_BYTES * len(pieces))
    trace_id, parent_id = parent.trace_id, parent.span_id
    for position, piece in enumerate(pieces):
        # The same message over and over, copied as it is appended: a fifth of the cost of making each anew.
        child = _CHILDREN[piece.name]
        child.trace_id, child.parent_span_id = trace_id, parent_id
        child.span_id = ids[position * _SPAN_ID_BYTES : (position + 1) * _SPAN_ID_BYTES]
        child.start_time_unix_nano, child.end_time_unix_nano = piece.start_unix_ns, piece.end_unix_ns
        to.spans.append(child)
        if piece.told_seconds is not None:
            to.spans[-1].attributes.extend(
                (
                    KeyValue(key=Name.INCONSISTENT, value=AnyValue(bool_value=True)),
                    KeyValue(key=Name.DURATION, value=AnyValue(double_value=piece.told_seconds)),
                )
            )


def _instance(resource: ResourceSpans) -> str:
    for pair in islice(resource.resource.attributes, MOST_ATTRIBUTES):
        if pair.key == "service.instance.id":
            return str(pair.value.string_value[:MOST_CHARACTERS])
    return ""


def _server_span(span: WireSpan, instance: str) -> ServerSpan | None:
    """None where the ids cannot be any: such a span is passed on, not joined."""
    trace_id, span_id, parent_id = span.trace_id, span.span_id, span.parent_span_id
    if len(trace_id) != _TRACE_ID_BYTES or len(span_id) != _SPAN_ID_BYTES:
        return None
    attributes = _attributes(span.attributes)
    request_id = attributes.get(_REQUEST_ID)
    return ServerSpan(
        name=span.name[:MOST_CHARACTERS],
        trace_id=trace_id.hex(),
        span_id=span_id.hex(),
        parent_id=parent_id.hex() if len(parent_id) == _SPAN_ID_BYTES else "",
        start_unix_ns=span.start_time_unix_nano,
        end_unix_ns=span.end_time_unix_nano,
        attributes=attributes,
        request_id=request_key(request_id) if isinstance(request_id, str) else "",
        instance=instance,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Value]:
    known: dict[str, Value] = {}
    for pair in islice(pairs, MOST_ATTRIBUTES):
        key = pair.key
        if key in _READ:
            value = pair.value
            kind = value.WhichOneof("value")
            if kind in _NUMBERS:
                known[key] = getattr(value, kind)
            elif kind == "string_value":
                known[key] = value.string_value[:MOST_CHARACTERS]
    return known


def _group(request: Request, grouping: Mapping[str, str]) -> bool:
    changed = False
    for resource in request.resource_spans:
        there = {pair.key for pair in resource.resource.attributes}
        for key in grouping.keys() - there:
            resource.resource.attributes.append(KeyValue(key=key, value=AnyValue(string_value=grouping[key])))
            changed = True
    return changed
