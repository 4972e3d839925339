"""A traced request as a tree of spans. Pure: moments come from the exchange, ids from the caller.

Children lie inside their parent, in order, never overlapping and never of negative length, whatever the clocks did; a
phase that was not measured is no span. A duration of the server's that its client only knows as a duration is placed at
the first content and marked as synthesised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ufwatch.address import host_of, port_of
from ufwatch.trace.conventions import EventName, Name
from ufwatch.trace.model import Exchange, Phase, ServerSplit, SplitSource
from ufwatch.trace.record import (
    LATEST_NS,
    MOST_CHARACTERS,
    EventRecord,
    Ids,
    Kind,
    SpanRecord,
    Status,
    Value,
    cleaned,
    seconds_of,
)


def tree_of(exchange: Exchange, ids: Ids, *, provider: str = "vllm") -> tuple[SpanRecord, ...]:
    """The exchange's spans, parents before children: the client's span with the ids that went out as ``traceparent``,
    its phases, and the server's split where the server sent no span of its own. ``provider`` is
    ``gen_ai.provider.name``, for which the conventions know no word for vLLM.
    """
    origin = min(max(exchange.started_unix_ns, 0), LATEST_NS)
    phases = list(_phases(exchange))
    total = seconds_of(exchange.total)
    if total is None:
        total = max((end for _, _, end, _ in phases), default=0.0)

    def at(seconds: float) -> int:
        return origin + round(min(seconds, total) * 1e9)

    root = SpanRecord(
        name=f"{exchange.operation} {exchange.model}".strip(),
        kind=Kind.CLIENT,
        trace_id=exchange.trace_id,
        span_id=exchange.span_id,
        parent_id=None,
        start_unix_ns=origin,
        end_unix_ns=at(total),
        attributes=cleaned(_root_attributes(exchange, provider)),
        events=tuple(_root_events(exchange, phases, at)),
        status=_status(exchange),
    )
    made = [root]
    failed = None if exchange.failure is None else exchange.failure.phase
    for phase, start, end, attributes in phases:
        known = {**_phase_attributes(exchange, phase), **attributes}
        if phase is failed and exchange.failure is not None:
            known[Name.ERROR_TYPE] = exchange.failure.error_type
        made.append(
            SpanRecord(
                name=phase.value,
                trace_id=exchange.trace_id,
                span_id=ids(),
                parent_id=exchange.span_id,
                start_unix_ns=at(start),
                end_unix_ns=at(end),
                attributes=cleaned(known),
                events=tuple(_lost_attempts(exchange, at)) if phase is Phase.TCP else (),
                status=_status(exchange) if phase is failed else Status(),
            )
        )
    made += _server_spans(exchange, root, {phase: (at(start), at(end)) for phase, start, end, _ in phases}, ids)
    return tuple(made)


def _phases(exchange: Exchange) -> Iterator[tuple[Phase, float, float, Mapping[str, Value]]]:
    """Each phase once, in order; one that begins before the last one ended begins with its end."""
    order = list(Phase)
    cursor, total = 0.0, seconds_of(exchange.total)
    seen: set[Phase] = set()
    for span in sorted(exchange.spans, key=lambda span: order.index(span.phase)):
        start, end = seconds_of(span.start), seconds_of(span.end)
        if start is None or end is None or end < start or span.phase in seen:
            continue
        seen.add(span.phase)
        start = max(start, cursor)
        if end < start or (total is not None and start > total):
            continue
        cursor = end
        yield span.phase, start, end, span.attributes


def _status(exchange: Exchange) -> Status:
    failure = exchange.failure
    if failure is None:
        return Status()
    # What a server says of a request that it refused may repeat the prompt; only our own words for it leave.
    told = failure.error_type if exchange.status is not None else f"{failure.error_type}: {failure.detail}"
    return Status(True, told[:MOST_CHARACTERS])


def _root_attributes(exchange: Exchange, provider: str) -> dict[str, Value]:
    chunks = [moment for moment in (seconds_of(exchange.role_at), _first_content(exchange)) if moment is not None]
    usage, failure = exchange.usage, exchange.failure
    maybe: dict[str, Value | None] = {
        Name.OPERATION: exchange.operation,
        Name.PROVIDER: provider,
        Name.REQUEST_MODEL: exchange.model or None,
        Name.REQUEST_STREAM: True,
        Name.RESPONSE_ID: exchange.response_id or None,
        Name.RESPONSE_MODEL: exchange.response_model or None,
        Name.FINISH_REASONS: exchange.finish_reasons or None,
        # Of any chunk, as the convention has it; the first content is ours below.
        Name.TIME_TO_FIRST_CHUNK: min(chunks, default=None),
        Name.INPUT_TOKENS: usage.prompt_tokens,
        Name.OUTPUT_TOKENS: usage.completion_tokens,
        Name.CACHED_TOKENS: usage.cached_tokens,
        Name.HTTP_METHOD: "POST",
        Name.HTTP_STATUS: exchange.status,
        Name.URL_FULL: exchange.url,
        Name.PEER_ADDRESS: exchange.peer_address or None,
        Name.REQUEST_ID: exchange.request_id,
        Name.REUSED: exchange.reused,
        Name.RETRIED: exchange.retried or None,
        Name.PROXIED: exchange.proxied or None,
        Name.REFUSED: exchange.refused or None,
        Name.TTFT: exchange.ttft,
        Name.TIME_TO_FIRST_VISIBLE: exchange.time_to_first_visible,
        Name.TPOT: exchange.tpot,
        Name.CHUNKS: len(exchange.chunks) or None,
        Name.MIN_RTT: exchange.min_rtt,
        Name.LOOP_LAG: exchange.loop_lag or None,
        Name.ERROR_TYPE: None if failure is None else failure.error_type,
        Name.FAILED_PHASE: None if failure is None or failure.phase is None else failure.phase.value,
        **_server_address(exchange.url),
        **_split_attributes(exchange.server),
    }
    known = {str(name): value for name, value in maybe.items() if value is not None}
    # Ours win: a caller's attribute must not stand in for what was measured.
    return {**known, **{name: v for name, v in exchange.request_attributes.items() if name not in known}}


def _first_content(exchange: Exchange) -> float | None:
    """When the first content came; not the end of the phase that waited for it, which may have failed."""
    return min((at for chunk in exchange.chunks if (at := seconds_of(chunk.at)) is not None), default=None)


def _server_address(url: str) -> dict[str, Value | None]:
    try:
        return {Name.SERVER_ADDRESS: host_of(url) or None, Name.SERVER_PORT: port_of(url)}
    except (ValueError, KeyError):
        return {}


def _split_attributes(split: ServerSplit) -> dict[str, Value | None]:
    return {
        Name.SPLIT_SOURCE: split.source.value,
        Name.SPLIT_EXACT: None if split.source is SplitSource.NONE else split.exact,
        Name.SPLIT_WHY: split.why or None,
        Name.SERVER_QUEUE: split.queue,
        Name.SERVER_PREFILL: split.prefill,
        Name.SERVER_DECODE: split.decode,
        Name.SERVER_TTFT: split.ttft,
        Name.SERVER_E2E: split.e2e,
        Name.PRE_ENGINE_WAIT: split.pre_engine_wait,
    }


def _phase_attributes(exchange: Exchange, phase: Phase) -> dict[str, Value]:
    if phase is Phase.TCP:
        known: dict[str, Value] = {}
        if exchange.peer_address:
            known[Name.PEER_ADDRESS] = exchange.peer_address
        starts = [s for a in exchange.attempts if (s := seconds_of(a.start)) is not None]
        won = [s for a in exchange.attempts if a.won and (s := seconds_of(a.start)) is not None]
        if won and won[0] > min(starts):
            known[Name.HAPPY_EYEBALLS_DELAY] = won[0] - min(starts)
        return known
    if phase is Phase.TLS and exchange.tls_version:
        return {Name.TLS_PROTOCOL: "tls", Name.TLS_VERSION: exchange.tls_version.removeprefix("TLSv")}
    return {}


def _lost_attempts(exchange: Exchange, at: Callable[[float], int]) -> Iterator[EventRecord]:
    for attempt in exchange.attempts:
        start = seconds_of(attempt.start)
        if not attempt.won and start is not None:
            why: dict[str, Value] = {Name.EXCEPTION_MESSAGE: attempt.error} if attempt.error else {}
            yield EventRecord(EventName.LOST_ATTEMPT, at(start), cleaned({Name.PEER_ADDRESS: attempt.address, **why}))


def _root_events(
    exchange: Exchange, phases: Iterable[tuple[Phase, float, float, object]], at: Callable[[float], int]
) -> Iterator[EventRecord]:
    if all(phase is not Phase.TCP for phase, *_ in phases):
        yield from _lost_attempts(exchange, at)
    role = seconds_of(exchange.role_at)
    if role is not None:
        yield EventRecord(EventName.ROLE_CHUNK, at(role))
    first = _first_content(exchange)
    if first is not None:
        yield EventRecord(EventName.FIRST_TOKEN, at(first))


def _server_spans(
    exchange: Exchange, root: SpanRecord, phases: Mapping[Phase, tuple[int, int]], ids: Ids
) -> list[SpanRecord]:
    """The server's durations as one block that ends its prefill at the first content, with queue, prefill and decode
    inside. Shifted, never stretched, where it would begin before the request was sent."""
    split, first = exchange.server, _first_content(exchange)
    if split.source not in (SplitSource.BODY, SplitSource.HISTOGRAM) or first is None or exchange.failure is not None:
        return []
    wait = None if split.ttft is None else seconds_of(split.pre_engine_wait)
    told = (("pre_engine_wait", wait), ("queue", split.queue), ("prefill", split.prefill), ("decode", split.decode))
    pieces = [(name, round(seconds * 1e9)) for name, value in told if (seconds := seconds_of(value)) is not None]
    if not pieces:
        return []
    before = sum(length for name, length in pieces if name != "decode")
    earliest = phases[Phase.SEND][1] if Phase.SEND in phases else root.start_unix_ns
    start = max(root.start_unix_ns + round(first * 1e9) - before, earliest)
    marks: dict[str, Value] = {
        Name.SYNTHESIZED: True,
        Name.SPLIT_SOURCE: split.source.value,
        Name.SPLIT_EXACT: split.exact,
    }
    block, cursor, children = ids(), start, []
    for name, length in pieces:
        end = min(cursor + length, root.end_unix_ns)
        fits = end - cursor == length
        told_length: dict[str, Value] = {} if fits else {Name.INCONSISTENT: True, Name.DURATION: length / 1e9}
        children.append(
            SpanRecord(
                name=name,
                trace_id=root.trace_id,
                span_id=ids(),
                parent_id=block,
                start_unix_ns=cursor,
                end_unix_ns=end,
                attributes={**marks, **told_length},
                synthesized=True,
            )
        )
        cursor = end
    server = SpanRecord(
        name="server",
        trace_id=root.trace_id,
        span_id=block,
        parent_id=root.span_id,
        start_unix_ns=start,
        end_unix_ns=cursor,
        attributes=marks,
        synthesized=True,
    )
    return [server, *children]
