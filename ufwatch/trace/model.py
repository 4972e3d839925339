"""What is known of one traced request: phases as they were measured, tokens as they came, the server's own split.

All durations are seconds of a monotonic clock counted from the moment at which the request was wanted (``t0``); only
``Exchange.started_unix_ns`` is wall time, taken once at ``t0``. What was not measured is absent or None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Where the time of a request goes as the client sees it, in order. On a reused connection the first three are
    absent, not 0."""

    DNS = "dns"
    TCP = "tcp_connect"
    TLS = "tls_handshake"
    SEND = "request_send"
    HEADERS = "response_headers"
    """From the last byte of the request to the head of the answer."""
    FIRST_TOKEN = "first_token_wait"
    """From the head of the answer to the first content: not to the role chunk, a comment or usage."""
    STREAM = "stream"
    """From the first content to the end of the body."""


@dataclass(frozen=True, slots=True)
class Span:
    """One phase: when it began and ended, in seconds after ``t0``."""

    phase: Phase
    start: float
    end: float
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at connecting. ``won`` is the one whose connection was used."""

    address: str
    start: float
    won: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """Why and in which phase the request ended early; ``phase`` None: before anything was tried."""

    phase: Phase | None
    error_type: str
    """A short stable word, such as ``nxdomain``, ``refused``, ``certificate``, ``timeout``, ``status_503``, ``cut``."""
    detail: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """One read of the stream that brought content. ``tokens`` is None where the server does not say how many."""

    at: float
    choice: int
    characters: int
    tokens: int | None = None
    coalesced: bool = False
    """It shares its read with an earlier chunk, so their gap is not the server's."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class SplitSource(StrEnum):
    """Where the server's split is from, best first."""

    SPAN = "span"
    BODY = "body_metrics"
    HISTOGRAM = "histogram_delta"
    """Exact where one request fell into the window, otherwise a mean over all that did."""
    NONE = "unavailable"


@dataclass(frozen=True, slots=True)
class ServerSplit:
    """The server's own durations in seconds; None where it does not tell. Never moments: its clock may be off.

    ``exact`` False: a mean over several requests. ``ttft`` counts from the arrival at the API server.
    """

    source: SplitSource
    exact: bool = True
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    ttft: float | None = None
    e2e: float | None = None
    why: str = ""
    """For NONE: what stood in the way, and what would help."""
    start_unix_ns: int | None = None
    end_unix_ns: int | None = None
    """Of the server's span, for telling clocks apart; only with SPAN."""

    @property
    def pre_engine_wait(self) -> float | None:
        """What of the server's TTFT is in neither queue nor prefill: tokenizing, transport to the engine, and waiting
        for a busy engine core, which vLLM books nowhere else."""
        if self.ttft is None or self.queue is None or self.prefill is None:
            return None
        return max(0.0, self.ttft - self.queue - self.prefill)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request from beginning to end."""

    url: str
    """Without credentials, query and fragment."""
    operation: str
    """``chat`` or ``text_completion``."""
    model: str
    trace_id: str
    """32 hex digits, sent as ``traceparent``."""
    span_id: str
    """16 hex digits: the client's span, the parent of the server's."""
    request_id: str
    started_unix_ns: int
    total: float
    """To the last byte, or to the failure."""
    spans: tuple[Span, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    reused: bool = False
    proxied: bool = False
    peer_address: str = ""
    tls_version: str = ""
    status: int | None = None
    response_id: str = ""
    response_model: str = ""
    finish_reasons: tuple[str, ...] = ()
    role_at: float | None = None
    """When the first chunk without content came."""
    chunks: tuple[Chunk, ...] = ()
    usage: Usage = Usage()
    min_rtt: float | None = None
    """The kernel's smallest round trip of the connection: to the proxy or balancer, where there is one."""
    loop_lag: float = 0.0
    """The longest that our own event loop was late during the request: how wrong the figures may be."""
    server: ServerSplit = ServerSplit(SplitSource.NONE)
    failure: Failure | None = None
    request_attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """Of the GenAI conventions: temperature, max_tokens and the like; never the prompt or the answer."""

    def span(self, phase: Phase) -> Span | None:
        """The phase, where it was measured."""
        return next((span for span in self.spans if span.phase is phase), None)

    @property
    def ttft(self) -> float | None:
        """From the last byte of the request to the first content; None where none came."""
        sent, first = self.span(Phase.SEND), self.span(Phase.FIRST_TOKEN)
        return None if sent is None or first is None else first.end - sent.end
