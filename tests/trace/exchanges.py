"""Exchanges as a client would have recorded them, to the millisecond that a test wants."""

from __future__ import annotations

from typing import Any

from ufwatch.trace.model import Chunk, Exchange, Failure, Phase, ServerSplit, Span, SplitSource, Usage

CONNECTING = {Phase.DNS: 0.023, Phase.TCP: 0.010, Phase.TLS: 0.041}


def exchange(
    *,
    connecting: dict[Phase, float] | None = None,
    wait: float = 0.020,
    stream: float = 0.100,
    server: ServerSplit | None = None,
    **more: Any,
) -> Exchange:
    """A request of one millisecond to send, a head after five, a first token ``wait`` after it was sent."""
    at, spans = 0.0, []
    phases = {**(CONNECTING if connecting is None else connecting), Phase.SEND: 0.001}
    phases |= {Phase.HEADERS: 0.005, Phase.FIRST_TOKEN: wait - 0.005, Phase.STREAM: stream}
    for phase, seconds in phases.items():
        spans.append(Span(phase, at, at + seconds))
        at += seconds
    first = spans[-1].start
    known: dict[str, Any] = {
        "url": "https://llm.test/v1/chat/completions",
        "operation": "chat",
        "model": "tiny",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
        "request_id": "r1",
        "started_unix_ns": 1_700_000_000_000_000_000,
        "total": at,
        "spans": tuple(spans),
        "reused": connecting == {},
        "status": 200,
        "chunks": (Chunk(first, 0, 3), Chunk(at, 0, 3)),
        "usage": Usage(5, 11),
        "min_rtt": 0.002,
        "server": server or split(),
    }
    return Exchange(**{**known, **more})


def split(queue: float = 0.001, prefill: float = 0.012, decode: float = 0.098, ttft: float = 0.015) -> ServerSplit:
    return ServerSplit(SplitSource.SPAN, queue=queue, prefill=prefill, decode=decode, ttft=ttft, e2e=ttft + decode)


def failed(phase: Phase = Phase.TLS) -> Exchange:
    return Exchange(
        url="https://llm.test/v1/chat/completions",
        operation="chat",
        model="tiny",
        trace_id="0" * 32,
        span_id="0" * 16,
        request_id="r2",
        started_unix_ns=1,
        total=0.050,
        spans=(Span(Phase.DNS, 0.0, 0.023), Span(Phase.TCP, 0.023, 0.033), Span(phase, 0.033, 0.050)),
        failure=Failure(phase, "certificate", "llm.test:443: self-signed \x1b[31m<b>"),
        server=ServerSplit(SplitSource.NONE, why="nothing came"),
    )
