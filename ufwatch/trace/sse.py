"""Server-sent events out of bytes, however they were cut: which event, and which read completed it.

Pure. After the WHATWG's rules: lines end in LF, CR or CRLF; a line that begins with a colon is a comment; a block
without data is no event. What follows the last blank line is handed out too, marked as not ended: some servers leave
the last blank line off, and the reader must tell those from a stream that was cut.
"""

from __future__ import annotations

import re
from typing import NamedTuple

EVENT_CAP_BYTES = 1 << 20

_LINE_END = re.compile(rb"\r\n|\r|\n")
_END_MARK, _END_MARK_BYTES = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]\s*$"), 32
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):  # noqa: N818 - says what is wrong with the stream, not that something went wrong
    """An event, or a line of one, over the cap. The stream cannot be read further."""


class Event(NamedTuple):
    """One event that has data."""

    data: str
    """Its data lines joined by newlines; bytes that are no UTF-8 are replaced."""
    read: int
    """Index of the read that completed it: events with equal ones arrived together."""
    kind: str = ""
    """The ``event`` field; empty where there is none."""
    ended: bool = True
    """A blank line followed. False only for the last one of a stream."""


class SseParser:
    """Takes the body read by read. Every byte is looked at once, however small the reads are."""

    def __init__(self, cap_bytes: int = EVENT_CAP_BYTES) -> None:
        self._cap = cap_bytes
        self._reads = 0
        self._first_line = True
        self._after_cr = False
        self._tail: list[bytes] = []
        """The line so far, in pieces: joining them at each read would cost the square of its length."""
        self._size = 0
        """Bytes of the line so far and of the event's data."""
        self._data: list[bytes] = []
        self._kind = b""

    def feed(self, read: bytes) -> list[Event]:
        """The events that this read completes. Raises EventTooLarge."""
        self._reads += 1
        if self._after_cr and read.startswith(b"\n"):
            read = read[1:]
            self._after_cr = False
        if not read:
            return []
        self._after_cr = read.endswith(b"\r")
        first, *others = _LINE_END.split(read)
        self._extend(first)
        events: list[Event] = []
        for piece in others:
            self._end_line(events)
            self._extend(piece)
        return events

    def close(self) -> list[Event]:
        """What is left at the end of the body: at most one event, not ended."""
        events: list[Event] = []
        if self._tail:
            self._end_line(events)
        if self._data:
            events.append(self._event(ended=False))
        return events

    def _extend(self, piece: bytes) -> None:
        if piece:
            self._tail.append(piece)
            self._size += len(piece)
            if self._size > self._cap:
                raise EventTooLarge(f"an event of more than {self._cap} bytes")

    def _end_line(self, events: list[Event]) -> None:
        line = b"".join(self._tail)
        self._tail.clear()
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            if self._data:
                events.append(self._event(ended=True))
            self._data, self._kind, self._size = [], b"", 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            return
        # Fields without a use here must not fill the cap: a stream may be nothing but comments for an hour.
        self._size -= len(line)
        if name == b"event":
            self._kind = value.removeprefix(b" ")

    def _event(self, *, ended: bool) -> Event:
        data = b"\n".join(self._data).decode("utf-8", "replace")
        return Event(data, max(0, self._reads - 1), self._kind.decode("utf-8", "replace"), ended)


class EndMark:
    """Knows a body whose last line so far is ``data: [DONE]``, however it was cut: an answer may hold that word too."""

    def __init__(self) -> None:
        self._last = b""

    def came(self, read: bytes) -> bool:
        """Whether the body ends in the mark with this read."""
        self._last = (self._last + read[-_END_MARK_BYTES:])[-_END_MARK_BYTES:]
        return _END_MARK.search(self._last) is not None
