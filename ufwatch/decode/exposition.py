"""Text exposition, read from scratch: Prometheus text 0.0.4 and OpenMetrics 1.0, bytes in, numbers out.

Floor 2: pure. This is the cold path and the definition of what a line means; :mod:`ufwatch.decode.layout` is the
cached path and must agree with it on every page. So a line is read in two steps that do not look at each other:
the *head* (name, labels, the blanks after them) and the *tail* (value, timestamp, exemplar).

A line is read whole or refused; a refused line never takes the page with it. Looser than the formats: blanks anywhere
between tokens, a trailing comma, CRLF, exemplars in 0.0.4. Stricter than ``float``: no ``1_000``, no ``+NaN``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ufwatch.model import Labels

_QUOTED = rb'"([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)"'
_NUMBER = rb"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"

# Possessive quantifiers: a hostile line costs time in proportion to its length, whatever is in it.
# "{count:" opens the value of a native histogram, not a label set.
_HEAD = re.compile(
    rb"[ \t]*+([a-zA-Z_:][a-zA-Z0-9_:]*+)?[ \t]*+"
    rb'(?:\{(?!count:)([^"}\n]*+(?:"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"[^"}\n]*+)*+)\}[ \t]*+)?'
)
_LABEL = re.compile(
    rb"[ \t]*+(?:([a-zA-Z_][a-zA-Z0-9_]*+)|%b)[ \t]*+(?:=[ \t]*+%b[ \t]*+)?(?:,[ \t]*+|\Z)" % (_QUOTED, _QUOTED)
)
_TAIL = re.compile(
    rb"(" + _NUMBER + rb"|[+-]?[iI][nN][fF](?:[iI][nN][iI][tT][yY])?|[nN][aA][nN])"
    rb"(?:[ \t]++" + _NUMBER + rb")?"  # a timestamp: read past, never a value
    rb"(?:[ \t]++#[ \t]*+\{[^\n]*+|[ \t]*+\r?)"
)
_TYPE = re.compile(rb"[ \t]*+#[ \t]++TYPE(?:[ \t]++(.*+))?", re.S)
_TYPE_FIELDS = re.compile(rb"(?:([a-zA-Z_:][a-zA-Z0-9_:]*+)|" + _QUOTED + rb")[ \t]++([a-z]++)")
_ESCAPE = re.compile(r'\\([\\"n])')

COMPOSITE = b"{count:"
"""How the value of a native histogram begins. Such a sample is skipped: it is no number, and no fault."""


class Head(NamedTuple):
    """A sample line up to its value."""

    prefix: bytes
    """Every byte before the value."""
    name: str
    labels: Labels


class Line(NamedTuple):
    """One sample line."""

    prefix: bytes
    """Every byte before the value."""
    name: str
    labels: Labels
    """In the order in which they are written, unescaped."""
    value: float


@dataclass(frozen=True, slots=True)
class ParsedPage:
    """What a page says. ``faults`` is the number of lines that were refused."""

    types: Mapping[str, str]
    """Family name to declared type; the first declaration counts. Never infer a type from a name's ending."""
    lines: tuple[Line, ...]
    faults: int


def is_sample(line: bytes) -> bool:
    """Whether a line is neither blank nor a comment, so that it must be a sample or a fault."""
    start = line.lstrip(b" \t\r")[:1]
    return start not in (b"", b"#")


def parse_head(line: bytes, known: dict[bytes, tuple[str | None, Labels]] | None = None) -> Head:
    """Return what stands before the value; what the value is does not matter here.

    ``known`` may be a dictionary that the caller keeps over one page: label sets repeat from family to family.
    Raises ValueError when name or labels are malformed, a label name repeats, or the text is not UTF-8.
    """
    head = _HEAD.match(line)
    if head is None:  # pragma: no cover - every part of the pattern is optional
        raise ValueError("not a sample line")
    raw_name, raw_labels = head.groups()
    quoted: str | None = None
    labels: Labels = ()
    if raw_labels is None:
        if raw_name is None or head.end() == head.end(1):
            raise ValueError("no metric name, or nothing between it and what follows")
    elif known is None:
        quoted, labels = _parse_labels(raw_labels)
    else:
        found = known.get(raw_labels)
        if found is None:
            found = known[raw_labels] = _parse_labels(raw_labels)
        quoted, labels = found
    if (raw_name is None) == (quoted is None):
        raise ValueError("no metric name, or two")
    name = quoted if quoted is not None else raw_name.decode()
    return Head(line[: head.end()], name, labels)


def parse_value(line: bytes, start: int = 0) -> float | None:
    """Return the value that begins at ``start``; None for a native histogram, which is skipped.

    A timestamp or an exemplar behind the value is allowed and ignored. Raises ValueError for anything else.
    """
    tail = _TAIL.fullmatch(line, start)
    if tail is not None:
        return float(tail[1])
    if line.startswith(COMPOSITE, start):
        return None
    raise ValueError("the value is not a number, or something follows it")


def parse_line(line: bytes) -> Line:
    """Return one sample line, given without its newline.

    Raises ValueError when it is malformed, and for a native histogram, which has no single value.
    """
    prefix, name, labels = parse_head(line)
    value = parse_value(line, len(prefix))
    if value is None:
        raise ValueError("a native histogram has no single value")
    return Line(prefix, name, labels, value)


def parse_page(body: bytes) -> ParsedPage:
    """Return everything a page says, in page order; never raises.

    A last line without a newline is refused, since it may be cut inside its number.
    """
    lines = body.split(b"\n")
    cut = lines.pop()
    faults = int(is_sample(cut))
    types: dict[str, str] = {}
    found: list[Line] = []
    known: dict[bytes, tuple[str | None, Labels]] = {}
    for line in lines:
        try:
            if not is_sample(line):
                _read_type(line, types)
                continue
            prefix, name, labels = parse_head(line, known)
            value = parse_value(line, len(prefix))
        except ValueError:
            faults += 1
        else:
            if value is not None:
                found.append(Line(prefix, name, labels, value))
    return ParsedPage(MappingProxyType(types), tuple(found), faults)


def _parse_labels(raw: bytes) -> tuple[str | None, Labels]:
    """Return the metric name if it is written inside the braces, and the labels; ValueError when malformed."""
    raw = raw.strip(b" \t")
    position, end = 0, len(raw)
    quoted_name: str | None = None
    labels: list[tuple[str, str]] = []
    while position < end:
        item = _LABEL.match(raw, position)
        if item is None:
            raise ValueError("malformed labels")
        bare, quoted, value = item.groups()
        if value is not None:
            labels.append((bare.decode() if bare is not None else _unescape(quoted), _unescape(value)))
        elif quoted and position == 0:
            quoted_name = _unescape(quoted)  # {"any.name",label="value"}: names beyond the old alphabet
        else:
            raise ValueError("a label without a value")
        position = item.end()
    if len(labels) > 1 and len({name for name, _ in labels}) < len(labels):
        raise ValueError("a label name repeats")
    return quoted_name, tuple(labels)


def _unescape(raw: bytes) -> str:
    """Return a quoted text; an escape that the formats do not know stays as it is. ValueError when not UTF-8."""
    text = raw.decode()
    if "\\" in text:
        text = _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text)
    return text


def _read_type(line: bytes, types: dict[str, str]) -> None:
    """Add what a ``# TYPE`` line declares; ValueError when it is one and malformed."""
    declaration = _TYPE.fullmatch(line.rstrip(b" \t\r")) if b"TYPE" in line else None
    if declaration is None:
        return
    fields = _TYPE_FIELDS.fullmatch(declaration[1] or b"")
    if fields is None:
        raise ValueError("malformed TYPE line")
    bare, quoted, kind = fields.groups()
    types.setdefault(bare.decode() if bare is not None else _unescape(quoted), kind.decode())
