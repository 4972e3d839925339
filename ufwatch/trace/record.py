"""What a span is here, apart from any library: frozen, ended, with nothing that a backend could choke on. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Value = str | bool | int | float | tuple[str, ...]
Ids = Callable[[], str]
"""Gives 16 hex digits, never the same twice and never all 0."""

MOST_ATTRIBUTES = 128
"""A span, as in OpenTelemetry's SDKs; the rest is left out."""
MOST_CHARACTERS = 1024
_MOST_SECONDS = 1e8
LATEST_NS = 2**63 - 1 - int(_MOST_SECONDS * 2e9)
_LONGEST_INT = 2**63 - 1


class Kind(StrEnum):
    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something that happened at one moment within a span."""

    name: str
    at_unix_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """Whether what the span stands for failed; not failed is unset, as the conventions want it of a client."""

    failed: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """A span that has ended. ``parent_id`` None: the first of its trace."""

    name: str
    kind: Kind = Kind.INTERNAL
    trace_id: str
    span_id: str
    parent_id: str | None
    start_unix_ns: int
    end_unix_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: tuple[EventRecord, ...] = ()
    status: Status = Status()
    synthesized: bool = False
    """Made from durations, not measured as a span."""


def cleaned(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """What may stand in a span: finite numbers, integers that fit, text of bearable length, so many entries."""
    kept: dict[str, Value] = {}
    for name, value in attributes.items():
        if len(kept) == MOST_ATTRIBUTES:
            break
        if isinstance(value, str):
            kept[str(name)] = value[:MOST_CHARACTERS]
        elif isinstance(value, tuple):
            kept[str(name)] = tuple(str(part)[:MOST_CHARACTERS] for part in value[:MOST_ATTRIBUTES])
        elif isinstance(value, float) and not math.isfinite(value):
            continue
        elif isinstance(value, bool | float) or (isinstance(value, int) and abs(value) <= _LONGEST_INT):
            kept[str(name)] = value
    return kept


def seconds_of(value: object) -> float | None:
    """A duration that can be one: a finite number, not negative, under three years."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_SECONDS:
        return None
    return float(value)


def ids_from(random_bytes: Callable[[int], bytes]) -> Ids:
    """Span ids from a source of random bytes such as ``os.urandom``."""

    def made() -> str:
        while True:
            found = random_bytes(8)
            # All zeros is how OpenTelemetry writes: no id.
            if any(found):
                return found.hex()

    return made
