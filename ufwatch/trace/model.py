"""What is known of one traced request: phases as they were measured, tokens as they came, the server's own split.

All durations are seconds of a monotonic clock counted from the moment at which the request was wanted (``t0``); only
``Exchange.started_unix_ns`` is wall time, taken once at ``t0``. What was not measured is absent or None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Phase(StrEnum):
    """Where the time of a request goes as the client sees it, in order. On a reused connection those before SEND are
    absent, not 0."""

    DNS = "dns"
    TCP = "tcp_connect"
    PROXY = "proxy_connect"
    """Behind a proxy: from its connection to its leave to speak TLS with the server (CONNECT, one round trip more)."""
    TLS = "tls_handshake"
    SEND = "request_send"
    HEADERS = "response_headers"
    """From the last byte of the request to the head of the answer."""
    FIRST_TOKEN = "first_token_wait"
    """From the head of the answer to the first content: not to the role chunk, a comment or usage."""
    STREAM = "stream"
    """From the first content to the end of the body."""


PREPARE = "prepare"
"""Where a request fails that never began: a certificate that cannot be read, for one."""


@dataclass(frozen=True, slots=True)
class Span:
    """One phase: when it began and ended, in seconds after ``t0``."""

    phase: Phase
    start: float
    end: float
    """Where the request failed in this phase: when it failed, and ``ufwatch.failed`` is among the attributes."""
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at connecting. ``won`` is the one whose connection was used."""

    address: str
    start: float
    won: bool
    error: str = ""
    """Why it failed, in the system's words; empty for the winner and for one that was given up."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why and in which phase the request ended early; ``phase`` None: before anything was tried."""

    phase: Phase | None
    error_type: str
    """A short stable word, such as ``nxdomain``, ``refused``, ``certificate``, ``timeout``, ``status_503``, ``cut``."""
    detail: str

    @property
    def where(self) -> str:
        """The phase's name; ``prepare`` where there is none."""
        return PREPARE if self.phase is None else self.phase.value


@dataclass(frozen=True, slots=True)
class Chunk:
    """One read of the stream that brought content. ``tokens`` is None where the server does not say how many."""

    at: float
    choice: int
    characters: int
    tokens: int | None = None
    coalesced: bool = False
    """It shares its read with an earlier chunk of its choice, so their gap is not the server's."""
    visible: bool = True
    """It holds more than reasoning."""


class ChunkGap(NamedTuple):
    """Seconds between two chunks of one choice. Only where both are single tokens is it a token interval, and only
    where the later one did not share its read is it the server's."""

    seconds: float
    coalesced: bool
    token_interval: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the server counts them; None where it did not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class TokenSource(StrEnum):
    """Where the number of tokens of an answer is from."""

    USAGE = "usage"
    CHUNKS = "chunks"
    """The server did not say: chunks with content, at least one token each."""


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
    """The connection had carried a request before."""
    retried: bool = False
    """The server had closed the idle connection; all was sent once more over a fresh one, ``t0`` staying as it was."""
    proxied: bool = False
    peer_address: str = ""
    tls_version: str = ""
    status: int | None = None
    response_id: str = ""
    response_model: str = ""
    finish_reasons: tuple[str, ...] = ()
    """One for each choice that finished, in the order of the choices."""
    refused: bool = False
    """Some choice holds a refusal instead of an answer."""
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
        return self._after_sent(chunk.at for chunk in self.chunks)

    @property
    def time_to_first_visible(self) -> float | None:
        """As ``ttft``, to the first content that is not reasoning."""
        return self._after_sent(chunk.at for chunk in self.chunks if chunk.visible)

    @property
    def token_source(self) -> TokenSource | None:
        """What ``output_tokens`` rests on; None where there are none."""
        if self.usage.completion_tokens is not None:
            return TokenSource.USAGE
        return TokenSource.CHUNKS if self.chunks else None

    @property
    def output_tokens(self) -> int | None:
        """Of all choices; see ``token_source``."""
        return self.usage.completion_tokens if self.token_source is TokenSource.USAGE else len(self.chunks) or None

    @property
    def tpot(self) -> float | None:
        """Mean time per token after the first: (last content - first content) / (tokens - 1). None for fewer than two
        tokens, for several choices (which share the time), and for a request that failed."""
        tokens = self.output_tokens
        if self.failure is not None or tokens is None or tokens < 2 or len({c.choice for c in self.chunks}) != 1:
            return None
        return (self.chunks[-1].at - self.chunks[0].at) / (tokens - 1)

    @property
    def chunk_gaps(self) -> tuple[ChunkGap, ...]:
        """Between neighbouring chunks of each choice, by the later one's moment."""
        last: dict[int, Chunk] = {}
        gaps = []
        for chunk in self.chunks:
            before = last.get(chunk.choice)
            if before is not None:
                gaps.append(ChunkGap(chunk.at - before.at, chunk.coalesced, before.tokens == chunk.tokens == 1))
            last[chunk.choice] = chunk
        return tuple(gaps)

    def _after_sent(self, moments: Iterable[float]) -> float | None:
        sent, first = self.span(Phase.SEND), min(moments, default=None)
        return None if sent is None or first is None else first - sent.end
