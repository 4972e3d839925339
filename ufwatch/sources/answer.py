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
from ufwatch.sources.failure import DroppedError, FetchError
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
        start = page.preview(await response.content.readany(), encoding)
        kind = page.printable(content_type.encode())
        raise FetchError(Reason.CONTENT, f"{exchange.peer}: {kind} instead of metrics: {start}")
    length = response.content_length
    if length is not None and length > cap:
        raise FetchError(Reason.CONTENT, f"{exchange.peer}: {length} bytes, more than the {cap} allowed")
    parts: list[bytes] = []
    content = response.content
    while part := await content.readany():
        parts.append(part)
        exchange.wire_bytes += len(part)
        if exchange.wire_bytes > cap:
            raise FetchError(Reason.CONTENT, f"{exchange.peer}: more than the {cap} bytes allowed")
    if length is None and response.reset_after_body():
        raise FetchError(Reason.TRUNCATED, f"{exchange.peer}: the connection was reset within the body")
    return (parts[0] if len(parts) == 1 else b"".join(parts)), encoding


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
