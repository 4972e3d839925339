"""What came back as an answer: is it an exposition, whole, and of bearable size? Pure."""

from __future__ import annotations

import html
import json
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache

from ufwatch.model import Reason
from ufwatch.sources.failure import FetchError

_GZIP_MAGIC = b"\x1f\x8b"
_PREVIEW_BYTES = 80
_MAX_MEMBERS = 64
_PIECE_BYTES = 65_536
"""What follows a member within its last piece is copied out by zlib; pieces keep that small and the whole linear."""
_PADDING = re.compile(rb"\0*+")
_OPENMETRICS = "application/openmetrics-text"
_JSON = re.compile(rb'\s*(?:\[|\{\s*(?:\}|"(?:[^"\\]|\\.)*"\s*:))')
"""JSON, but not a sample line whose quoted UTF-8 name stands inside the braces."""


@lru_cache(maxsize=64)
def media_type(content_type: str) -> str:
    """The type without parameters, lower case, empty where there was none. Unknown parameters do not matter."""
    return re.split(r"[;,\s]", content_type.strip(), maxsplit=1)[0].lower()


def is_exposition_type(content_type: str) -> bool:
    """Whether a body of this type is worth reading: both text formats, or no type at all."""
    return media_type(content_type) in ("text/plain", _OPENMETRICS, "")


def is_openmetrics(content_type: str) -> bool:
    """Whether the body must be read as OpenMetrics. Never guessed from the body."""
    return media_type(content_type) == _OPENMETRICS


def is_gzip(encoding: str, start: bytes) -> bool:
    """Whether the body is gzip: by its header, or by its first bytes where a proxy lost the header.

    Raises FetchError for any other encoding: none was asked for.
    """
    name = encoding.strip().lower()
    if name in ("gzip", "x-gzip"):
        return True
    if name in ("", "identity"):
        return start.startswith(_GZIP_MAGIC)
    raise FetchError(Reason.CONTENT, f"content encoding {printable(encoding.encode())} was not asked for")


def may_be_packed(encoding: str, start: bytes) -> bool:
    """Whether anything is to be undone before the body can be read."""
    return bool(encoding) or start == _GZIP_MAGIC


def inflate(data: bytes, cap_bytes: int) -> bytes:
    """The content of one to 64 gzip members. At most ``cap_bytes`` are ever allocated for it.

    Raises FetchError: ``content`` where it is too large or no gzip, ``truncated`` where the last member is cut.
    """
    parts: list[bytes] = []
    left, members, position = cap_bytes, 0, 0
    view = memoryview(data)
    try:
        while position < len(data):
            members += 1
            if members > _MAX_MEMBERS:
                raise FetchError(Reason.CONTENT, f"more than {_MAX_MEMBERS} gzip members")
            member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
            while not member.eof:
                piece = view[position : position + _PIECE_BYTES]
                if not piece:
                    raise FetchError(Reason.TRUNCATED, "the gzip stream is cut")
                part = member.decompress(piece, left + 1)
                left -= len(part)
                if left < 0:
                    raise FetchError(Reason.CONTENT, f"more than {cap_bytes} bytes after decompression")
                parts.append(part)
                position += len(piece) - len(member.unused_data)
            padding = _PADDING.match(data, position)
            assert padding is not None
            position = padding.end()
    except zlib.error:
        raise FetchError(Reason.CONTENT, "the body is said to be gzip and is not") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def check(body: bytes, content_type: str) -> None:
    """Raises FetchError unless the decoded body is a whole exposition page.

    ``content`` for an empty body, HTML, JSON or binary data; ``truncated`` where the end is missing: a text page ends
    with a newline, an OpenMetrics page with ``# EOF``. A number cut in the middle would pass for a counter reset.
    """
    start = body[:512].lstrip()
    if not start:
        raise FetchError(Reason.CONTENT, "empty body")
    if start[:1] == b"<":
        raise FetchError(Reason.CONTENT, f"HTML or XML instead of metrics: {printable(start)}")
    if _JSON.match(start):
        raise FetchError(Reason.CONTENT, f"JSON instead of metrics: {printable(start)}")
    if b"\0" in start or start.startswith(_GZIP_MAGIC):
        raise FetchError(Reason.CONTENT, f"binary data instead of metrics: {printable(start)}")
    if is_openmetrics(content_type):
        if body not in (b"# EOF", b"# EOF\n") and not body.endswith((b"\n# EOF\n", b"\n# EOF")):
            raise FetchError(Reason.TRUNCATED, "OpenMetrics page without # EOF as its last line")
    elif not body.endswith(b"\n"):
        raise FetchError(Reason.TRUNCATED, "the last line has no end")


def preview(start: bytes, encoding: str) -> str:
    """The first bytes of a body that is not wanted, as one short line for the log."""
    try:
        if is_gzip(encoding, start):
            start = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(start, _PREVIEW_BYTES)
    except (FetchError, zlib.error):
        return f"{len(start)} encoded bytes"
    return printable(start)


def printable(raw: bytes) -> str:
    """At most 80 bytes as one line, without control characters."""
    text = raw[:_PREVIEW_BYTES].decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _echoes(secrets: Sequence[str]) -> list[str]:
    """The forms in which a secret may come back: as it is, within JSON or HTML, with its blanks run together."""
    forms = {form for secret in secrets for form in (secret, json.dumps(secret)[1:-1], html.escape(secret))}
    forms |= {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in secrets}
    forms |= {" ".join(form.split()) for form in forms}
    return sorted(forms - {""}, key=len, reverse=True)


def redact(text: str, secrets: Sequence[str]) -> str:
    """``text`` with every secret in it, or cut off at its end, replaced: some servers send back what they got."""
    # The longest first: one may be part of another, and what is left of it would be told.
    for secret in _echoes(secrets):
        text = text.replace(secret, "***")
        for size in range(len(secret) - 1, 3, -1):
            if text.endswith(secret[:size]):
                text = f"{text[:-size]}***"
                break
    return text
