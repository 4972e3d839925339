"""One answer as it comes in: its connection, its size, its status, and the page in it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from ufwatch.model import Reason
from ufwatch.sources import body as page
from ufwatch.sources.failure import CUT, NO_HTTP, DroppedError, FetchError
from ufwatch.sources.line import End, Reply
from ufwatch.sources.threads import in_thread

_INFLATE_IN_LOOP_BYTES = 32_768
"""Compressed bytes up to which inflating, by at most a factor of 1,032, may hold up the event loop."""
_ERROR_BODY_CAP_BYTES = 65_536

_used: WeakSet[ResponseHandler] = WeakSet()
"""Connections that have carried a request: only those can have been closed for being idle."""


@dataclass(slots=True)
class Exchange:
    """What is known so far of one GET, also where it fails."""

    peer: str = "?"
    status: int | None = None
    content_type: str = ""
    wire_bytes: int = 0
    may_retry: bool = True
    complete_at: float | None = None
    late: bool = False
    """Whether the deadline passed while a line was asked."""


class Answer(aiohttp.ClientResponse):
    """Knows its connection past the end of the body, and whether a lost one had been idle."""

    wire: ResponseHandler | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        self.wire = wire = connection.protocol
        reused = wire in _used
        if wire is not None and not reused:
            _used.add(wire)
        try:
            return await super().start(connection)
        except aiohttp.ServerDisconnectedError as error:
            # The message is a text where nothing had arrived, and the unfinished head otherwise.
            raise DroppedError(
                retry=reused and isinstance(error.message, str), tls=self.url.scheme == "https"
            ) from error
        except aiohttp.ClientOSError as error:
            raise DroppedError(retry=reused, tls=self.url.scheme == "https") from error

    def is_plain(self) -> bool:
        """Whether the same GET over a line would do: HTTP/1.1, and the end of the body is told."""
        told = self.content_length is not None or self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        return self.url.scheme == "http" and self.version == aiohttp.HttpVersion11 and self.status == 200 and told

    def reset_after_body(self) -> bool:
        """Whether the connection broke rather than closed, which a body without a length does not show."""
        return self.wire is not None and isinstance(self.wire.exception(), aiohttp.ClientOSError)


async def read_page(response: Answer, cap: int, exchange: Exchange) -> tuple[bytes, str]:
    """The body as sent and its encoding. Raises FetchError where the answer cannot be a page."""
    headers = response.headers
    encoding = headers.get("Content-Encoding", "")
    exchange.content_type = content_type = headers.get("Content-Type", "")
    if response.status != 200:
        raise await _refused(response, encoding, exchange)
    if not page.is_exposition_type(content_type):
        raise _no_page(content_type, page.preview(await response.content.readany(), encoding), exchange)
    length = response.content_length
    if length is not None and length > cap:
        raise _too_large(length, cap, exchange)
    parts: list[bytes] = []
    content = response.content
    while part := await content.readany():
        parts.append(part)
        exchange.wire_bytes += len(part)
        if exchange.wire_bytes > cap:
            raise _too_large(None, cap, exchange)
    if length is None and response.reset_after_body():
        raise FetchError(Reason.TRUNCATED, f"{exchange.peer}: the connection was reset within the body")
    return (parts[0] if len(parts) == 1 else b"".join(parts)), encoding


def page_of(reply: Reply, cap: int, exchange: Exchange) -> tuple[bytes, str]:
    """As :func:`read_page`, of what came over a line. Raises FetchError, DroppedError, and TimeoutError where late."""
    exchange.status, exchange.content_type, exchange.wire_bytes = reply.status, reply.content_type, reply.wire_bytes
    if reply.end is End.DROPPED:
        raise DroppedError(retry=False, tls=False)
    if reply.end is End.NO_HTTP:
        raise FetchError(Reason.CONTENT, f"{exchange.peer}: {NO_HTTP}")
    if reply.end is not End.WHOLE and reply.status == 200 and not page.is_exposition_type(reply.content_type):
        raise _no_page(reply.content_type, "", exchange)
    if reply.end is End.LATE:
        exchange.late = True
        raise TimeoutError
    if reply.status != 200:
        raise _status_failure(exchange, page.preview(reply.body, reply.encoding))
    if reply.end is End.TOO_LARGE:
        raise _too_large(reply.length, cap, exchange)
    if reply.end is End.CUT:
        raise FetchError(Reason.TRUNCATED, f"{exchange.peer}: {CUT}")
    if not page.is_exposition_type(reply.content_type):
        raise _no_page(reply.content_type, page.preview(reply.body, reply.encoding), exchange)
    return reply.body, reply.encoding


def _no_page(content_type: str, start: str, exchange: Exchange) -> FetchError:
    kind = page.printable(content_type.encode())
    return FetchError(Reason.CONTENT, f"{exchange.peer}: {kind} instead of metrics: {start}")


def _too_large(length: int | None, cap: int, exchange: Exchange) -> FetchError:
    size = f"{length} bytes, more than the {cap}" if length is not None else f"more than the {cap} bytes"
    return FetchError(Reason.CONTENT, f"{exchange.peer}: {size} allowed")


async def _refused(response: Answer, encoding: str, exchange: Exchange) -> FetchError:
    """The failure for a status other than 200. The body is read, so that the connection can be used again."""
    start, size = b"", 0
    try:
        while size < _ERROR_BODY_CAP_BYTES and (part := await response.content.readany()):
            start = start or part
            size += len(part)
    except aiohttp.ClientError:
        pass
    exchange.wire_bytes = size
    return _status_failure(exchange, page.preview(start, encoding))


def _status_failure(exchange: Exchange, start: str = "") -> FetchError:
    reason = Reason.PERMISSION if exchange.status in (401, 403, 407) else Reason.STATUS
    text = f"{exchange.peer}: HTTP status {exchange.status}"
    return FetchError(reason, f"{text}: {start}" if start else text)


def too_late(exchange: Exchange, deadline_seconds: float) -> FetchError:
    if exchange.status is not None and exchange.status >= 400:
        return _status_failure(exchange)
    state = "no answer" if exchange.status is None else f"{exchange.wire_bytes} bytes of the body"
    return FetchError(Reason.TIMEOUT, f"{exchange.peer}: {state} within {deadline_seconds:g} s")


async def decoded(raw: bytes, encoding: str, cap: int, exchange: Exchange) -> bytes:
    try:
        if page.is_gzip(encoding, raw[:2]):
            small = len(raw) <= _INFLATE_IN_LOOP_BYTES
            raw = page.inflate(raw, cap) if small else await _inflated_elsewhere(raw, cap)
        page.check(raw, exchange.content_type)
    except FetchError as failure:
        raise FetchError(failure.reason, f"{exchange.peer}: {failure.detail}") from None
    return raw


async def _inflated_elsewhere(raw: bytes, cap: int) -> bytes:
    # In a thread that ends with the process: one given up at the deadline must not hold up the agent's exit.
    return await asyncio.wrap_future(in_thread(lambda: page.inflate(raw, cap), "ufwatch-inflate"))
