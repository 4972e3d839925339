"""The format of a textfile, which exporters inside an inference process write, and its reader.

**The format.** One file ``<role>-<id>.prom`` per writer; the id is unique among all containers that share the
directory (a pid alone is not). UTF-8 lines, each ended by a newline; a file whose last line is not ended is cut off::

    # ufwatch <unix time of this write> <unix time at which this writer began>
    ufwatch_pinned_alloc_failures_total{code="out_of_memory"} 3

The first line is the heartbeat. A writer renews it every 5 s at least, and its start time is one constant text: a
changed start time means another writer. Counters begin at 0 with the writer, ratios are 0–1, times are seconds. A line
``# absent <metric>: <why>`` says why a metric cannot be there; other ``#`` lines and blank lines are skipped. An
ordinary writer writes a new file beside the old one (a name that does not end in ``.prom``) and renames it over the old
one; it carries no second line as below.

**In place.** A writer that does not write a whole new file each time (the C interposer) has a second line::

    # seq <20 decimal digits, zero-padded>

and keeps these rules. The file is complete before it gets its ``.prom`` name. Its length never changes: every series
is there from the start, and each changing number (both times, every value) is left-aligned in a field of fixed width
and padded with blanks on its right. Before a change the sequence number is made odd, after it even and higher, with
the stores in that order; nothing but the number itself changes while it is even. A reader takes the number, the
whole, and the number again: odd or changed means read again. A file belongs to one process: after a fork the child
begins one of its own, at 0 and with its own start time, or its counts would be taken twice.

Floor 2: pure. :mod:`ufwatch.sources.textfile` reads the directory, :mod:`ufwatch.decode.textfile` sums over its files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ufwatch.model import Labels, Reason
from ufwatch.spec import PREFIX, Kind

PINNED_CODES = (
    "out_of_memory",
    "invalid_value",
    "already_registered",
    "not_supported",
    "no_device",
    "operating_system",
    "other",
)
"""The closed set of ``code``: the six refusals of page-locking told apart, and the rest."""

_CUDA_CODES = {
    "1": "invalid_value",
    "2": "out_of_memory",
    "35": "no_device",
    "100": "no_device",
    "304": "operating_system",
    "712": "already_registered",
    "801": "not_supported",
}

_LINE = re.compile(r'([A-Za-z_:][A-Za-z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)[ \t]*')
_LABEL = re.compile(r'[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|$)')
_ABSENT = re.compile(r"# absent ([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})?: (.+)")
_THRESHOLD = re.compile(r"\d{1,6}(?:\.\d{1,6})?", re.ASCII)
_TOO_MUCH = 2.0**64
"""No counter of a process gets there, and sums of what a broken file says stay finite."""
_MOST_ABSENT = 32
_MOST_CHARACTERS = 200
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SEQUENCE = re.compile(rb"# seq (\d{20})")
_ENGINE = re.compile(r"0|[1-9]\d{0,2}", re.ASCII)


class SeriesKey(NamedTuple):
    """One series: metric name without prefix, and the labels that are kept, in page order."""

    metric: str
    labels: Labels


class _Known(NamedTuple):
    kind: Kind
    labels: Mapping[str, frozenset[str]]
    """Kept label → its closed set; empty where another rule applies (``engine``, ``code``, ``threshold_seconds``)."""


_PHASES: Mapping[str, frozenset[str]] = {
    "phase": frozenset({"capture", "compile"}),
    "cache": frozenset({"cold", "warm", "unknown"}),
}
_ENGINES: Mapping[str, frozenset[str]] = {"engine": frozenset()}
_STEPS: Mapping[str, frozenset[str]] = {"engine": frozenset(), "unit": frozenset({"token", "step"})}
_PROBES: Mapping[str, frozenset[str]] = {"engine": frozenset(), "unit": frozenset({"probe", "block"})}
_OVER: Mapping[str, frozenset[str]] = {"engine": frozenset(), "threshold_seconds": frozenset()}

KNOWN: Mapping[str, _Known] = {
    "graph_compile_seconds_total": _Known(Kind.COUNTER, _PHASES),
    "graph_compiles_total": _Known(Kind.COUNTER, _PHASES),
    "graph_compile_last_start_seconds": _Known(Kind.GAUGE, _PHASES),
    "pinned_alloc_attempts_total": _Known(Kind.COUNTER, {}),
    "pinned_alloc_failures_total": _Known(Kind.COUNTER, {"code": frozenset(PINNED_CODES)}),
    "pinned_alloc_bytes_total": _Known(Kind.COUNTER, {}),
    "pinned_alloc_seconds_total": _Known(Kind.COUNTER, {}),
    "token_intervals_total": _Known(Kind.COUNTER, _STEPS),
    "token_interval_seconds_total": _Known(Kind.COUNTER, _STEPS),
    "token_interval_squared_total": _Known(Kind.COUNTER, _STEPS),
    "kv_evictions_total": _Known(Kind.COUNTER, _ENGINES),
    "page_table_lookups_total": _Known(Kind.COUNTER, _PROBES),
    "page_table_misses_total": _Known(Kind.COUNTER, _PROBES),
    "ttft_requests_total": _Known(Kind.COUNTER, _ENGINES),
    "ttft_over_total": _Known(Kind.COUNTER, _OVER),
    "jitter_slices_total": _Known(Kind.COUNTER, _ENGINES),
    "jitter_slices_over_total": _Known(Kind.COUNTER, _OVER),
}
"""Every metric taken from a textfile. Anything else in a file is counted and left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """One well-formed file. Times are unix seconds of the writer's clock."""

    heartbeat_wall: float
    start_wall: float
    values: Mapping[SeriesKey, float] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    """Why the writer cannot give a metric (name without prefix), in its words."""
    sequence: int | None = None
    """Set where the file is updated in place."""
    refused: int = 0
    """Lines of known metrics that make no sense (no number, negative, NaN, huge, a label outside its set, twice)."""
    unknown: int = 0
    """Lines of metrics that are not in ``KNOWN``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFileFault:
    """Why a whole file was refused; ``detail`` is for the log and the doctor."""

    reason: Reason
    detail: str
    torn: bool = False
    """Caught while being written in place: worth reading again at once."""


def parse_file(data: bytes) -> TextFile | TextFileFault:
    """Reads one file's bytes. Never raises; a bad line is refused and counted, a file not to be trusted is a fault."""
    if not data.endswith(b"\n"):
        return TextFileFault(reason=Reason.TRUNCATED, detail="the last line has no end: the file is cut off")
    sequence = sequence_of(data)
    if sequence is not None and sequence % 2:
        return TextFileFault(reason=Reason.INCONSISTENT, detail="being written (odd sequence number)", torn=True)
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return TextFileFault(reason=Reason.CONTENT, detail="not UTF-8 text")
    heartbeat = _heartbeat(lines[0])
    if heartbeat is None:
        return TextFileFault(reason=Reason.CONTENT, detail="the first line is no `# ufwatch <time> <start time>`")
    values: dict[SeriesKey, float] = {}
    absent: dict[str, str] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    refused = unknown = 0
    for line in lines[1:]:
        if not line.strip() or line.startswith("#"):
            told = _ABSENT.fullmatch(line)
            if told is not None and len(absent) < _MOST_ABSENT:
                absent[told[1].removeprefix(PREFIX)] = _printable(told[2])
            continue
        matched = _LINE.fullmatch(line)
        if matched is None:
            refused += 1
            continue
        name = matched[1].removeprefix(PREFIX)
        known = KNOWN.get(name) if matched[1] != name else None
        if known is None:
            unknown += 1
            continue
        labels = _labels(matched[2] or "")
        value = number(matched[3])
        kept = None if labels is None else _kept(known, labels)
        if labels is None or kept is None or value is None or not 0 <= value < _TOO_MUCH:
            refused += 1
            continue
        identity = (name, frozenset(labels.items()))
        if identity in seen:
            refused += 1
            continue
        seen.add(identity)
        key = SeriesKey(name, kept)
        # Series that differ only in dropped labels fall together.
        values[key] = merged(name, values.get(key), value)
    return TextFile(
        heartbeat_wall=heartbeat[0],
        start_wall=heartbeat[1],
        values=values,
        absent=absent,
        sequence=sequence,
        refused=refused,
        unknown=unknown,
    )


def sequence_of(data: bytes) -> int | None:
    """The sequence number of a file updated in place, from its beginning; None for an ordinary file."""
    second = data.find(b"\n") + 1
    matched = _SEQUENCE.match(data, second) if second else None
    return int(matched[1]) if matched else None


def number(text: str) -> float | None:
    """A finite number in plain digits; None for anything else (Python alone would take ``1_000`` and ``nan``)."""
    if _NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text[:_MOST_CHARACTERS]).strip()


def merged(metric: str, before: float | None, value: float) -> float:
    """Two values of one series: counters add up, of gauges the largest is kept."""
    if before is None:
        return value
    return before + value if KNOWN[metric].kind is Kind.COUNTER else max(before, value)


def _heartbeat(line: str) -> tuple[float, float] | None:
    words = line.split()
    if len(words) != 4 or words[:2] != ["#", "ufwatch"]:
        return None
    written, started = number(words[2]), number(words[3])
    return None if written is None or started is None else (written, started)


def _labels(text: str) -> dict[str, str] | None:
    """Label pairs; None when they are not well-formed. Escapes are left: no value kept here contains one."""
    pairs: dict[str, str] = {}
    at = 0
    while at < len(text):
        matched = _LABEL.match(text, at)
        if matched is None or matched[1] in pairs:
            return None
        pairs[matched[1]] = matched[2]
        at = matched.end()
    return pairs


def _kept(known: _Known, labels: Mapping[str, str]) -> Labels | None:
    """The labels that stay, each within its closed set; None when one cannot be."""
    kept: list[tuple[str, str]] = []
    for name, allowed in known.labels.items():
        value = labels.get(name)
        if name == "engine":
            # Digits only and few of them: this becomes a label, and a file is not to make up thousands.
            if value is None:
                value = "0"
            elif _ENGINE.fullmatch(value) is None:
                return None
        elif name == "threshold_seconds":
            if value is None or _THRESHOLD.fullmatch(value) is None:
                return None
            seconds = float(value)
            value = f"{seconds:g}"
            if float(value) != seconds:
                return None  # its counts would be added to another one's
        elif name == "code":
            value = _CUDA_CODES.get(value or "", value)
            if value not in allowed:
                value = "other"
        elif name == "cache":
            if value not in allowed:
                value = "unknown"
        elif value not in allowed:
            return None
        kept.append((name, value or ""))
    return tuple(kept)
