"""One plain HTTP/1.1 connection that is kept and asked one GET at a time.

What an agent does most is to ask a well-known neighbour the same thing again; a general HTTP client costs as much for
that as taking the answer apart. So this reads what such a neighbour sends, a whole answer with its length or in chunks,
and says :attr:`End.UNTOLD` to anything else, which then goes through the client.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import NamedTuple, cast

_HEAD_CAP_BYTES = 65_536
_HEX = frozenset(b"0123456789abcdefABCDEF")


class End(Enum):
    """How a GET ended."""

    WHOLE = auto()
    LATE = auto()
    CUT = auto()
    """The connection ended within the body, or a chunk is none."""
    DROPPED = auto()
    """The connection ended before the head was whole; ``Reply.silent`` says whether anything had come."""
    TOO_LARGE = auto()
    NO_HTTP = auto()
    UNTOLD = auto()
    """The head is one, but it does not tell where the body ends, or asks for more than reading a body."""


class Reply(NamedTuple):
    """What came. ``status`` is None where no head came; ``body`` is empty unless the end is WHOLE."""

    end: End
    status: int | None = None
    content_type: str = ""
    encoding: str = ""
    body: bytes = b""
    wire_bytes: int = 0
    """Of the body, as far as it came."""
    length: int | None = None
    """What the head said it would be."""
    silent: bool = False


class Head(NamedTuple):
    """The head of an answer. ``length`` None with ``chunked`` False: where the body ends is not told."""

    status: int
    content_type: str = ""
    encoding: str = ""
    length: int | None = None
    chunked: bool = False
    keep: bool = False


class Line(asyncio.Protocol):
    """One connection; kept while the answers tell where they end."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Reply] | None = None
        self.idle_since = 0.0
        """In the loop's time."""
        self._cap = 0
        self._head: Head | None = None
        self._parts: list[bytes] = []
        """What came and is not taken apart yet."""
        self._size = 0
        """Its bytes."""
        self._need = 0
        """How many of them it takes to get on: a body in many parts is put together once."""
        self._pieces: list[bytes] = []
        """The content of the chunks so far."""
        self._body_bytes = 0

    @property
    def open(self) -> bool:
        """Whether it can be asked."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, end: float, cap_bytes: int) -> Reply:
        """The answer to ``request``, LATE when it is not whole by ``end`` (in the loop's time)."""
        if self._transport is None:
            return Reply(End.DROPPED, silent=True)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        self._begin(cap_bytes)
        self._answer = answer
        self._transport.write(request)
        late = loop.call_at(end, self._done, End.LATE)
        try:
            return await answer
        finally:
            late.cancel()
            self._answer = None
            self._parts, self._pieces = [], []
            if answer.cancelled():
                self.close()
            self.idle_since = loop.time()

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has not the same ancestors

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self._done(End.CUT if self._head is not None else End.DROPPED)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()  # nobody asked
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._need:
            return
        buffer = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        at = 0
        if self._head is None:
            at = self._read_head(buffer)
            if self._head is None:
                self._parts = [buffer]
                return
        if self._head.chunked:
            self._read_chunks(buffer, at)
        else:
            self._read_body(buffer, at)

    def _begin(self, cap_bytes: int) -> None:
        self._cap, self._head = cap_bytes, None
        self._parts, self._pieces = [], []
        self._size = self._need = self._body_bytes = 0

    def _read_head(self, buffer: bytes) -> int:
        """Takes the head, once it is whole; where it ends, so the body begins."""
        blank = buffer.find(b"\r\n\r\n")
        if blank < 0:
            if len(buffer) > _HEAD_CAP_BYTES:
                self._done(End.NO_HTTP)
            return 0
        self._head = head = parse_head(buffer[:blank])
        if head is None:
            self._done(End.NO_HTTP)
        elif not 200 <= head.status < 300 and not 400 <= head.status < 600:
            self._done(End.UNTOLD)
        elif head.length is not None and head.length > self._cap:
            self._done(End.TOO_LARGE)
        elif head.length is None and not head.chunked:
            self._done(End.UNTOLD)
        return blank + 4

    def _read_body(self, buffer: bytes, at: int) -> None:
        assert self._head is not None
        length = self._head.length or 0
        end = at + length
        if len(buffer) >= end:
            self._whole(buffer[at:end], clean=len(buffer) == end)
        else:
            self._wait(buffer[at:], length)

    def _read_chunks(self, buffer: bytes, at: int) -> None:
        while self._answer is not None and not self._answer.done():
            line = buffer.find(b"\r\n", at)
            size = _chunk_size(buffer[at:line]) if line >= 0 else 0
            if size is None or (line < 0 and len(buffer) - at > _HEAD_CAP_BYTES):
                self._done(End.CUT)
            elif line < 0:
                self._wait(buffer[at:], 0)
                return
            elif size == 0:
                # Without trailers the blank line follows at once.
                blank = line if buffer[line : line + 4] == b"\r\n\r\n" else buffer.find(b"\r\n\r\n", line)
                if blank >= 0:
                    self._whole(b"".join(self._pieces), clean=len(buffer) == blank + 4)
                elif len(buffer) - line > _HEAD_CAP_BYTES:
                    self._done(End.CUT)
                else:
                    self._wait(buffer[at:], 0)
                return
            elif self._body_bytes + size > self._cap:
                self._done(End.TOO_LARGE)
            elif len(buffer) < line + size + 4:
                self._wait(buffer[at:], line - at + size + 4)
                return
            elif buffer[line + 2 + size : line + size + 4] != b"\r\n":
                self._done(End.CUT)
            else:
                self._pieces.append(buffer[line + 2 : line + 2 + size])
                self._body_bytes += size
                at = line + size + 4

    def _wait(self, left: bytes, need: int) -> None:
        self._parts, self._size, self._need = [left], len(left), need

    def _whole(self, body: bytes, *, clean: bool) -> None:
        self._body_bytes, self._parts, self._size = len(body), [], 0
        assert self._head is not None
        self._done(End.WHOLE, body, keep=clean and self._head.keep)

    def _done(self, end: End, body: bytes = b"", *, keep: bool = False) -> None:
        if self._answer is not None and not self._answer.done():
            head = self._head or Head(0)
            come = self._body_bytes + (self._size if self._head is not None else 0)
            silent = self._head is None and self._size == 0
            status = head.status or None
            self._answer.set_result(
                Reply(end, status, head.content_type, head.encoding, body, come, head.length, silent)
            )
        if not keep:
            self.close()


def parse_head(head: bytes) -> Head | None:
    """The head without its blank line; None where it is none of HTTP/1.x.

    Two lengths, a length beside chunks, a transfer encoding of another kind and a line that is no field leave it untold
    where the body ends.
    """
    first, *lines = head.split(b"\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or words[0] not in (b"HTTP/1.1", b"HTTP/1.0") or len(words[1]) != 3 or not words[1].isdigit():
        return None
    kind = encoding = b""
    lengths: list[bytes] = []
    codings: list[bytes] = []
    keep = words[0] == b"HTTP/1.1"
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name[:1].isspace() or name[-1:].isspace():
            return Head(int(words[1]))
        name, value = name.lower(), value.strip()
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            lengths.append(value)
        elif name == b"content-encoding":
            encoding = value
        elif name == b"transfer-encoding":
            codings.append(value.lower())
        elif name == b"connection" and b"close" in value.lower():
            keep = False
    status = int(words[1])
    told = [b"0"] if status == 204 else lengths
    length = int(told[0]) if len(told) == 1 and told[0].isdigit() and len(told[0]) < 16 and not codings else None
    return Head(
        status,
        kind.decode("latin-1"),
        encoding.decode("latin-1"),
        length,
        chunked=codings == [b"chunked"] and not lengths and words[0] == b"HTTP/1.1",
        keep=keep,
    )


def _chunk_size(line: bytes) -> int | None:
    """The bytes that a chunk's first line announces; None where that is no number."""
    digits = line.partition(b";")[0].strip()
    return int(digits, 16) if 0 < len(digits) < 16 and _HEX.issuperset(digits) else None
