"""From what was stamped and read to an :class:`~ufwatch.trace.model.Exchange`, failures included. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from yarl import URL

from ufwatch.trace import split
from ufwatch.trace.chunkjson import DETAIL_CHARACTERS, error_text, json_object
from ufwatch.trace.deltas import Answer, read_answer
from ufwatch.trace.failing import AnswerError, Named
from ufwatch.trace.model import Chunk, Exchange, Failure, Phase
from ufwatch.trace.phases import Ends, Moment, attempts_of, phase_of_failure, spans_of
from ufwatch.trace.recorder import Recorder
from ufwatch.trace.request import Ids, TraceRequest

_DETAIL_CHARACTERS = DETAIL_CHARACTERS + 50


@dataclass(slots=True)
class Raw:
    """What one request left behind. Moments are of the recorder's clock."""

    recorder: Recorder
    tls: bool = False
    proxied: bool = False
    started_unix_ns: int = 0
    wanted_at: float = 0.0
    ended_at: float | None = None
    retried: bool = False
    status: int | None = None
    content_type: str = ""
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    peer: str = ""
    tls_version: str = ""
    min_rtt: float | None = None
    loop_lag: float = 0.0
    failure: Named | None = None


def redirect_error(url: str, location: str) -> AnswerError:
    """Redirects are not followed: what is behind one is another server, with times of its own."""
    try:
        host = URL(url).join(URL(location)).host if location else None
    except ValueError:
        host = None
    return AnswerError("redirect", f"a redirect to {host or 'nowhere'}; ask that server directly")


def status_error(raw: Raw) -> AnswerError:
    """A status other than 200, with what its JSON says of it."""
    error = json_object(b"".join(part for _, part in raw.reads).decode("utf-8", "replace"))
    text = None if error is None else error_text(error)
    told = f": {text}" if text else f" ({_kind(raw) or 'no content type'})"
    return AnswerError(f"status_{raw.status}", f"HTTP {raw.status}{told}")


def exchange_of(request: TraceRequest, ids: Ids, raw: Raw, secrets: tuple[str, ...] = ()) -> Exchange:
    """Everything that is told of a request. ``secrets`` and the prompt are cut out of what the server said."""
    wanted_at = raw.wanted_at
    read = raw.status == 200
    answer = read_answer(raw.reads, wanted=request.choices) if read else Answer()
    ended_at = wanted_at if raw.ended_at is None else raw.ended_at
    if read and answer.trouble is None and raw.failure is not None:
        ended_at = raw.reads[-1][0]  # whole; what failed after that is no part of it
    found = _failure(raw, answer) if read else raw.failure
    marks = raw.recorder.marks
    phase = None
    if found is not None:
        begun = bool(answer.chunks)
        phase = phase_of_failure(marks, tls=raw.tls, proxied=raw.proxied, content_begun=begun)
        if raw.status is not None and not read:
            phase = Phase.HEADERS
    peer = raw.peer or _connected_to(raw)
    ends = Ends(
        wanted_at=wanted_at,
        ended_at=ended_at,
        first_content_at=answer.chunks[0].at if answer.chunks else None,
        failed=phase,
        tls=raw.tls,
        proxied=raw.proxied,
        peer=peer,
    )
    body_split = split.from_body(answer.metrics)
    return Exchange(
        url=request.endpoint,
        operation=request.operation.value,
        model=request.model,
        trace_id=ids.trace_id,
        span_id=ids.span_id,
        request_id=ids.request_id,
        started_unix_ns=raw.started_unix_ns,
        total=ended_at - wanted_at,
        spans=spans_of(marks, ends),
        attempts=attempts_of(marks, wanted_at, peer),
        reused=raw.recorder.reused,
        retried=raw.retried,
        proxied=raw.proxied,
        peer_address=peer,
        tls_version=raw.tls_version,
        status=raw.status,
        response_id=_shown(answer.response_id),
        response_model=_shown(answer.response_model),
        finish_reasons=tuple(_shown(c.finish_reason) for c in answer.choices if c.finish_reason is not None),
        refused=any(choice.refused for choice in answer.choices),
        role_at=None if answer.role_at is None else answer.role_at - wanted_at,
        chunks=tuple(_since(chunk, wanted_at) for chunk in answer.chunks),
        usage=answer.usage,
        min_rtt=raw.min_rtt,
        loop_lag=raw.loop_lag,
        server=body_split,
        failure=None if found is None else Failure(phase, found.error_type, _clean(found.detail, request, secrets)),
        request_attributes=request.attributes,
    )


def _failure(raw: Raw, answer: Answer) -> Named | None:
    """What the stream itself says goes before how it ended; a whole answer is one, however the connection ended."""
    trouble = answer.trouble
    if trouble is None:
        return None
    if trouble.error_type != "cut":
        return Named(*trouble)
    if raw.failure is not None:
        return raw.failure
    kind = _kind(raw)
    if answer.events == 0 and kind != "text/event-stream":
        body = json_object(b"".join(part for _, part in raw.reads).decode("utf-8", "replace"))
        text = error_text(body) if body is not None and body.get("error") else None
        if text is not None:
            return Named("error_event", text)
        return Named("malformed", f"{kind or 'no content type'} instead of an event stream")
    return Named(*trouble)


def _kind(raw: Raw) -> str:
    return raw.content_type.partition(";")[0].strip().lower()[:60]


def _connected_to(raw: Raw) -> str:
    """The address of the last socket that connected, where the connection itself is gone."""
    addresses = {mark.number: mark.detail for mark in raw.recorder.marks if mark.moment is Moment.CONNECT}
    connected = [mark.number for mark in raw.recorder.marks if mark.moment is Moment.CONNECTED]
    return addresses.get(connected[-1], "") if connected else ""


def _since(chunk: Chunk, wanted_at: float) -> Chunk:
    return Chunk(
        chunk.at - wanted_at, chunk.choice, chunk.characters, chunk.tokens, chunk.coalesced, visible=chunk.visible
    )


def _clean(detail: str, request: TraceRequest, secrets: tuple[str, ...]) -> str:
    for secret in secrets:
        detail = detail.replace(secret, "…")
    # Cut after that: half a prompt is no longer found in it.
    cut = " ".join(request.without_words(detail).split())[:_DETAIL_CHARACTERS]
    return _shown(request.without_runs(cut), _DETAIL_CHARACTERS)


def _shown(text: str, most: int = DETAIL_CHARACTERS) -> str:
    """A server's word as a terminal may show it: no control sequences, no half characters, no length of its own."""
    return "".join(character if character.isprintable() else "�" for character in text[:most])
