"""What vLLM's own spans say: a request's durations, placed as children of its span, and the phases of a model load.

Pure. vLLM 0.32 sends one span ``llm_request`` a request and no children; its times in seconds are attributes. All are
durations, so a clock that is off does not touch them; they are laid out from the span's own start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from ufwatch.trace.conventions import LLM_REQUEST, NATIVE_CHILD, Name, current
from ufwatch.trace.model import ServerSplit
from ufwatch.trace.record import LATEST_NS, Ids, SpanRecord, Value, seconds_of
from ufwatch.trace.split import from_span

LOADING = "Overall Loading"
_LOAD_PHASES = re.compile(
    r"Overall Loading|AsyncMPClient init|EngineCoreProc init|Executor init|Worker init|Load model|Initialize model"
    r"|Load weights|Prepare model|Allocate KV cache|(?:Loading|Warmup) \([A-Z]{2,4}\)"
)
_REQUEST_ID = re.compile(r"(?:\d{1,4}_)?(?:chatcmpl-(.+)|cmpl-(.+?)(?:-\d{1,4})?)", re.DOTALL)
_MOST_DEPTH = 32
PIECES = ("preprocess+engine_wait", "queue", "prefill", "decode", "postprocess")
_MEASURED = frozenset({"queue", "prefill", "decode"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpan:
    """A span as it was received, with the attributes that are read here. ``parent_id`` is empty for a root."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_unix_ns: int
    end_unix_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    request_id: str = ""
    """As its client gave it; empty where the server does not tell."""
    instance: str = ""
    """The server's ``service.instance.id``, where it has one."""

    def seconds(self, name: str) -> float | None:
        """A duration among the attributes; None where it is missing or none."""
        return seconds_of(self.attributes.get(name))


class Piece(NamedTuple):
    """A part of a request's span. ``told_seconds``: its length as the server told it, where that does not fit."""

    name: str
    start_unix_ns: int
    end_unix_ns: int
    told_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """One step of a model load; ``depth`` 0 is the whole. ``start`` is seconds after the whole began."""

    name: str
    depth: int
    start: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """A model load as vLLM traced it, parents before their children."""

    trace_id: str
    instance: str
    started_unix_ns: int
    phases: tuple[LoadPhase, ...]

    @property
    def seconds(self) -> float:
        """How long the whole took."""
        return self.phases[0].seconds


def request_key(text: str) -> str:
    """The id that the client sent as ``X-Request-Id``: vLLM puts ``chatcmpl-`` or ``cmpl-`` before it, before that the
    number of the choice where there are several, and for completions the number of the prompt behind it."""
    match = _REQUEST_ID.fullmatch(text)
    return text if match is None else match[1] or match[2]


def is_request(name: str) -> bool:
    """Whether a span of this name stands for a request at a vLLM server."""
    return name == LLM_REQUEST


def is_native_child(name: str) -> bool:
    """Whether a span of this name is a child of a request's that vLLM itself sends."""
    return name.startswith(NATIVE_CHILD)


def is_load_phase(name: str) -> bool:
    """Whether a span of this name belongs to a model load."""
    return _LOAD_PHASES.fullmatch(name) is not None


def split_of(span: ServerSpan) -> ServerSplit:
    """The span's durations as the split of a traced request; unavailable where it holds none."""
    return from_span(span.attributes, span.start_unix_ns, span.end_unix_ns)


def tokens_of(span: ServerSpan) -> tuple[int | None, int | None]:
    """Prompt and completion tokens, by the names of today or by the deprecated ones that vLLM sends."""
    today = {current(name): value for name, value in span.attributes.items()}

    def count(name: Name) -> int | None:
        value = today.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    return count(Name.INPUT_TOKENS), count(Name.OUTPUT_TOKENS)


def pieces_of(span: ServerSpan) -> list[Piece]:
    """What ``llm_request`` consists of, laid end to end from its start: ``preprocess+engine_wait``, ``queue``,
    ``prefill``, ``decode``, ``postprocess``. Fewer where a duration is missing, none for another span."""
    start, end = span.start_unix_ns, span.end_unix_ns
    ttft = span.seconds(Name.VLLM_TTFT)
    if not is_request(span.name) or ttft is None or not 0 < start <= end <= LATEST_NS:
        return []
    queue, prefill, decode = (span.seconds(name) for name in (Name.VLLM_QUEUE, Name.VLLM_PREFILL, Name.VLLM_DECODE))
    first = start + round(ttft * 1e9)
    prefilled = None if prefill is None else first - round(prefill * 1e9)
    queued = None if prefilled is None or queue is None else prefilled - round(queue * 1e9)
    decoded = None if decode is None else first + round(decode * 1e9)
    # An edge that is not known is a gap: nothing is drawn on either side of it.
    edges = (None if queued is None else start, queued, prefilled, first, decoded, None if decoded is None else end)
    made = []
    for name, (begins, ends) in zip(PIECES, pairwise(edges), strict=True):
        if begins is None or ends is None:
            continue
        left, right = min(max(begins, start), end), min(max(ends, start), end)
        if name in _MEASURED:
            made.append(Piece(name, left, right, None if right - left == ends - begins else (ends - begins) / 1e9))
        elif left < right:
            made.append(Piece(name, left, right))
    return made


def children_of(span: ServerSpan, ids: Ids, *, native: bool = False) -> tuple[SpanRecord, ...]:
    """The pieces of ``llm_request`` as its children; none where vLLM itself sent children (``native``).

    Each lies within the span; one cut to fit says so (``ufwatch.inconsistent``) and keeps the length that was told.
    """
    return () if native else tuple(_child(span, piece, ids()) for piece in pieces_of(span))


def _child(span: ServerSpan, piece: Piece, span_id: str) -> SpanRecord:
    attributes: dict[str, Value] = {Name.SYNTHESIZED: True}
    if piece.told_seconds is not None:
        attributes |= {Name.INCONSISTENT: True, Name.DURATION: piece.told_seconds}
    return SpanRecord(
        name=piece.name,
        trace_id=span.trace_id,
        span_id=span_id,
        parent_id=span.span_id,
        start_unix_ns=piece.start_unix_ns,
        end_unix_ns=piece.end_unix_ns,
        attributes=attributes,
        synthesized=True,
    )


def load_of(spans: Sequence[ServerSpan]) -> ModelLoad | None:
    """The model load that these spans of one trace tell; None while its whole has not come, which is sent last."""
    root = next((span for span in spans if span.name == LOADING), None)
    if root is None:
        return None
    below: dict[str, list[ServerSpan]] = {}
    for span in spans:
        if span is not root and span.end_unix_ns >= span.start_unix_ns:
            below.setdefault(span.parent_id, []).append(span)
    phases = tuple(_descend(root, root.start_unix_ns, below.pop, 0))
    return ModelLoad(trace_id=root.trace_id, instance=root.instance, started_unix_ns=root.start_unix_ns, phases=phases)


def _descend(
    span: ServerSpan, origin: int, take: Callable[[str, list[ServerSpan]], Iterable[ServerSpan]], depth: int
) -> Iterator[LoadPhase]:
    length = max(0, span.end_unix_ns - span.start_unix_ns) / 1e9
    yield LoadPhase(span.name, depth, (span.start_unix_ns - origin) / 1e9, length)
    if depth < _MOST_DEPTH:
        # Taken, not looked up: spans that are each other's parents end here.
        for child in sorted(take(span.span_id, []), key=lambda child: child.start_unix_ns):
            yield from _descend(child, origin, take, depth + 1)
