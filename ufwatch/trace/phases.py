"""From the moments that were stamped to the phases of a request, the attempts at connecting, and where it failed.

Pure. Moments come in the order in which they were stamped and in seconds of one monotonic clock. Sockets are told apart
by ``number``, because several attempts at connecting may run at once; a retry begins a new list.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ufwatch.trace.conventions import Name
from ufwatch.trace.model import Attempt, Phase, Span

Attributes = dict[str, str | int | float | bool]


class Moment(StrEnum):
    """What is stamped, in the order in which it happens."""

    DNS_START = "dns_start"
    DNS_END = "dns_end"
    """The look-up returned; its addresses or its error are the detail."""
    CONNECT = "connect"
    """A socket began to connect to the address in the detail."""
    CONNECTED = "connected"
    CONNECT_FAILED = "connect_failed"
    """The detail is the reason."""
    TLS_START = "tls_start"
    TLS_END = "tls_end"
    """The detail is ``resumed`` where an earlier session was taken up again."""
    TLS_FAILED = "tls_failed"
    READY = "ready"
    """There is a connection to send over: a new one or, with ``reused`` as the detail, one from before."""
    SENT = "sent"
    """The last byte of the request was handed to the kernel."""
    HEAD = "head"
    """The head of the answer was read."""


class Mark(NamedTuple):
    """One stamp."""

    moment: Moment
    at: float
    detail: str = ""
    number: int = 0
    """Of the socket, for CONNECT, CONNECTED and CONNECT_FAILED."""


@dataclass(frozen=True, slots=True)
class Ends:
    """What the marks do not hold: how the request was to go, and how it ended. Moments of the same clock."""

    wanted_at: float
    ended_at: float
    """The last byte, or the failure."""
    first_content_at: float | None = None
    failed: Phase | None = None
    tls: bool = False
    proxied: bool = False
    peer: str = ""
    """The address at the other end of the connection; empty where none was made."""


def attempts_of(marks: Sequence[Mark], wanted_at: float, peer: str) -> tuple[Attempt, ...]:
    """The tries at connecting. The winner is the connected socket whose address is ``peer``, otherwise the last one
    that connected: of two tries at one address, the later counts."""
    tries = [mark for mark in marks if mark.moment is Moment.CONNECT]
    errors = {mark.number: mark.detail for mark in marks if mark.moment is Moment.CONNECT_FAILED}
    winner = _winner(marks, peer)
    return tuple(
        Attempt(mark.detail, mark.at - wanted_at, mark.number == winner, errors.get(mark.number, "")) for mark in tries
    )


def spans_of(marks: Sequence[Mark], ends: Ends) -> tuple[Span, ...]:
    """The phases that happened, in order, from ``wanted_at`` on. One that did not happen has no span."""
    at = _moments(marks)
    spans: list[Span] = []

    def add(phase: Phase, start: float | None, end: float | None, attributes: Attributes | None = None) -> None:
        failed = phase is ends.failed
        if failed:
            # It may have failed before the first stamp of its own.
            start = start if start is not None else ends.wanted_at + (spans[-1].end if spans else 0.0)
            # Stamped when it failed, where that is; the error takes its time to come through to us.
            stamped = bool(marks) and marks[-1].moment is _FAILS.get(phase)
            end = marks[-1].at if stamped else ends.ended_at
        if start is None or end is None:
            return
        attributes = {**(attributes or {}), **({str(Name.FAILED): True} if failed else {})}
        spans.append(Span(phase, start - ends.wanted_at, max(start, end) - ends.wanted_at, attributes))

    add(Phase.DNS, at.get(Moment.DNS_START), at.get(Moment.DNS_END))
    started, connected = _connection(marks, ends.peer)
    hello, ready, sent, head = (at.get(m) for m in (Moment.TLS_START, Moment.READY, Moment.SENT, Moment.HEAD))
    if connected is None and ends.failed is not Phase.TCP:
        connected = hello if hello is not None else ready
    add(Phase.TCP, started, connected)
    if ends.proxied and ends.tls:
        add(Phase.PROXY, connected, hello)
    add(Phase.TLS, hello, at.get(Moment.TLS_END), _tls(marks))
    add(Phase.SEND, ready, sent if head is None or sent is None else min(sent, head))
    add(Phase.HEADERS, sent, head)
    first = ends.first_content_at
    add(Phase.FIRST_TOKEN, head, first)
    add(Phase.STREAM, first, None if first is None else ends.ended_at)
    return tuple(spans)


def phase_of_failure(marks: Sequence[Mark], *, tls: bool, proxied: bool, content_begun: bool) -> Phase | None:
    """Where a request stood when it failed; None before anything was tried."""
    if content_begun:
        return Phase.STREAM
    seen = {mark.moment for mark in marks}
    if Moment.HEAD in seen:
        return Phase.FIRST_TOKEN
    if Moment.SENT in seen:
        return Phase.HEADERS
    if Moment.READY in seen:
        return Phase.SEND
    last = marks[-1].moment if marks else None
    if last in (Moment.TLS_START, Moment.TLS_END, Moment.TLS_FAILED):
        return Phase.TLS
    if last is Moment.CONNECTED:
        return Phase.PROXY if tls and proxied else Phase.TLS if tls else Phase.SEND
    if last in (Moment.CONNECT, Moment.CONNECT_FAILED):
        return Phase.TCP
    return Phase.DNS if last is not None else None


_FAILS = {Phase.DNS: Moment.DNS_END, Phase.TCP: Moment.CONNECT_FAILED, Phase.TLS: Moment.TLS_FAILED}


def same_address(one: str, other: str) -> bool:
    """Whether two spellings are one address: IPv6 in any form, with or without its zone, or IPv4 within IPv6."""
    return one == other or (bool(one) and bool(other) and _plain(one) == _plain(other))


def _plain(text: str) -> str:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(inner or address)


def _moments(marks: Iterable[Mark]) -> dict[Moment, float]:
    """The last of each kind: a handshake that failed with one address is followed by one with the next."""
    return {mark.moment: mark.at for mark in marks}


def _winner(marks: Sequence[Mark], peer: str) -> int | None:
    connected = [mark.number for mark in marks if mark.moment is Moment.CONNECTED]
    addresses = {mark.number: mark.detail for mark in marks if mark.moment is Moment.CONNECT}
    ours = [number for number in connected if same_address(addresses.get(number, ""), peer)]
    found = ours or connected
    return found[-1] if found else None


def _connection(marks: Sequence[Mark], peer: str) -> tuple[float | None, float | None]:
    """Start and end of the attempt whose connection was used; of the first one where none came about."""
    tries = [mark for mark in marks if mark.moment is Moment.CONNECT]
    winner = _winner(marks, peer)
    chosen = next((mark for mark in tries if mark.number == winner), tries[0] if tries else None)
    ends = (mark.at for mark in marks if mark.moment is Moment.CONNECTED and mark.number == winner)
    return None if chosen is None else chosen.at, next(ends, None)


def _tls(marks: Sequence[Mark]) -> Attributes:
    ends = [mark.detail for mark in marks if mark.moment is Moment.TLS_END]
    return {str(Name.TLS_RESUMED): ends[-1] == "resumed"} if ends else {}
