"""Which layer had how much of a request: parts, and what no part explains. Pure.

The parts and ``unaccounted`` add up to the total. What is left over is shown, never spread: it may be below 0 where the
server's durations and ours overlap or its clock runs differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ufwatch.trace.model import Exchange, Phase, ServerSplit

_ANCHOR_SECONDS = 0.001
"""What two wall clocks of one machine may seem to differ by: each is read once, and then counted on from."""


class Part(NamedTuple):
    """One layer's share in seconds."""

    name: str
    seconds: float
    estimate: bool = False
    """Not of this request alone (a mean over several), or by a rule rather than measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where the time went, in seconds."""

    total: float
    parts: tuple[Part, ...]
    unaccounted: float
    network: float | None
    """One round trip as the kernel saw it at its best; None where it does not say. An estimate."""
    network_to: str
    """``server`` or ``proxy``: where that round trip ends. A balancer looks like the server."""
    http_frontend_raw: float | None
    """Of the wait for the first token what is neither the server's nor the network's, before it was held at 0 or more.
    None where the server does not tell its own TTFT."""
    clock_skew_suspected: bool = False
    server_ahead: float | None = None
    """By how much the server's clock seems ahead of ours, give or take ``server_ahead_doubt``; only with a span."""
    server_ahead_doubt: float | None = None

    def part(self, name: str) -> Part | None:
        """The part of that name, where there is one."""
        return next((part for part in self.parts if part.name == name), None)


def network(exchange: Exchange) -> Account:
    """The accounting of one request, also of one that failed: then of what was measured until then.

    Parts: the client's phases up to the last byte of the request; then, up to the first token, the server's own pieces,
    ``network`` and ``http_frontend`` (HTTP, encoding, and our own lateness); then ``decode``, or the ``stream`` as the
    client saw it where the server does not tell.
    """
    parts = [Part(span.phase.value, span.end - span.start) for span in exchange.spans if span.phase in _BEFORE]
    waited, rtt = exchange.ttft, exchange.min_rtt
    front = None
    if waited is not None:
        pieces = _server_pieces(exchange.server)
        parts += pieces
        if rtt is not None:
            # More than all of the wait cannot be the network's.
            parts.append(Part("network", min(rtt, waited), estimate=True))
        ttft = exchange.server.ttft
        rest = waited - (math.fsum(piece.seconds for piece in pieces) if ttft is None else ttft) - (rtt or 0.0)
        front = None if ttft is None else rest
        parts.append(Part(_rest_name(exchange.server, rtt), max(0.0, rest), estimate=not exchange.server.exact))
    else:
        parts += [Part(span.phase.value, span.end - span.start) for span in exchange.spans if span.phase in _WAITS]
    parts += _after_first(exchange, told=waited is not None)
    ahead, doubt, suspected = _clocks(exchange)
    return Account(
        total=exchange.total,
        parts=tuple(parts),
        unaccounted=exchange.total - math.fsum(part.seconds for part in parts),
        network=rtt,
        network_to="proxy" if exchange.proxied else "server",
        http_frontend_raw=front,
        clock_skew_suspected=suspected,
        server_ahead=ahead,
        server_ahead_doubt=doubt,
    )


_BEFORE = (Phase.DNS, Phase.TCP, Phase.PROXY, Phase.TLS, Phase.SEND)
_WAITS = (Phase.HEADERS, Phase.FIRST_TOKEN)


def _server_pieces(split: ServerSplit) -> list[Part]:
    """The server's time before its first token, in the finest pieces that it tells."""
    estimate = not split.exact
    told = (("queue", split.queue), ("prefill", split.prefill))
    known = [Part(name, value, estimate) for name, value in told if value is not None]
    if split.ttft is None:
        return known
    wait = split.pre_engine_wait
    if wait is None:
        return [Part("server_ttft", split.ttft, estimate)]
    return [Part("pre_engine_wait", wait, estimate), *known]


def _rest_name(split: ServerSplit, rtt: float | None) -> str:
    """What is left of the wait for the first token, by what could be told apart from it."""
    network = "" if rtt is not None else "_and_network"
    if split.ttft is not None:
        return f"http_frontend{network}"
    return f"{'server' if split.queue is None and split.prefill is None else 'pre_engine'}_and_http{network}"


def _after_first(exchange: Exchange, *, told: bool) -> list[Part]:
    stream, decode = exchange.span(Phase.STREAM), exchange.server.decode
    if stream is None:
        return []
    if told and decode is not None:
        return [Part("decode", decode, estimate=not exchange.server.exact)]
    return [Part(Phase.STREAM.value, stream.end - stream.start)]


def _clocks(exchange: Exchange) -> tuple[float | None, float | None, bool]:
    """How far the server's clock seems ahead, how sure that is, and whether it must be off (after NTP's arithmetic)."""
    split, sent = exchange.server, exchange.span(Phase.SEND)
    if split.start_unix_ns is None or split.end_unix_ns is None or sent is None:
        return None, None, False
    # Whole nanoseconds first: as floats, seconds since 1970 are no finer than a quarter of a microsecond.
    start = (split.start_unix_ns - exchange.started_unix_ns) / 1e9
    end = (split.end_unix_ns - exchange.started_unix_ns) / 1e9
    ahead = ((start - sent.end) + (end - exchange.total)) / 2
    doubt = ((exchange.total - sent.end) - (end - start)) / 2
    slack = max(doubt, 0.0) + _ANCHOR_SECONDS
    return ahead, doubt, start < sent.end - slack or end > exchange.total + slack
