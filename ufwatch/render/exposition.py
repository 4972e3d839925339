"""The agent's own page: Prometheus text 0.0.4 and OpenMetrics 1.0 from samples that mostly keep their shape.

Between two scrapes a page changes its numbers, hardly ever its series. So everything that is not a number is made
once: each owner (a target, the cards, the agent itself) keeps the text in front of each of its values, and the page
keeps in which order the owners' values stand. What is left per cycle is ``repr`` of the values that moved, one gather
and one join. Pure: no clock, no socket; nothing here can fail because of a value it was given.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress, count
from math import isfinite
from operator import itemgetter, ne
from typing import cast

from ufwatch.model import Labels, Sample
from ufwatch.spec import PREFIX, Kind, MetricSpec


class Format(StrEnum):
    """The two forms in which the page is served."""

    TEXT = "text"
    OPENMETRICS = "openmetrics"


class Drop(StrEnum):
    """Why a sample is not on the page. All four are our own mistakes, except a value that a source made up."""

    VALUE = "value"
    """NaN, an infinity, None or no number at all: unknown is shown by absence, never by a number."""
    METRIC = "metric"
    """A name that is not among the page's families."""
    LABELS = "labels"
    """Another label set than the family's."""
    DUPLICATE = "duplicate"
    """The series is already on the page; the first owner keeps it."""


_GZIP_LEVEL = 1  # level 9, the usual default, costs six times as much for a page that is read once
_GZIP_WBITS = 31  # zlib's code for a gzip frame
_PLAIN_BELOW = 1e6
_EXPONENT_FROM = 1e16  # where ``repr`` begins to write an exponent itself
_EXPONENTS = tuple(f"e+{point - 1:02d}" for point in range(17))
_PROBES = 8
_PLAIN_DIGITS = 6
_float_repr = float.__repr__


def value_text(value: object) -> str | None:
    """A value as it stands on the page: shortest digits that read back the same, in Go's choice of exponent.

    Returns None for what may not stand there (NaN, infinities, None, text).
    """
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not isfinite(number):
        return None
    return repr(number) if number < _PLAIN_BELOW else _large(repr(number))


def _large(text: str) -> str:
    """The ``repr`` of a million or more with an exponent, as Prometheus' clients write it: our bytes equal theirs."""
    point = text.find(".")
    if point <= _PLAIN_DIGITS or "e" in text:
        return text
    digits = (text[1:point] + text[point + 1 :]).rstrip("0")
    return f"{text[0]}.{digits}{_EXPONENTS[point]}" if digits else text[0] + _EXPONENTS[point]


def _texts(values: Sequence[float]) -> list[str] | None:
    """All values as text, or None when one of them cannot be written. The hot loop of the page."""
    # Nearly always all are finite floats, and C tells so at little cost: ``float.__repr__`` refuses everything else,
    # and a sum shows NaN and infinities. (One that merely overflows takes the careful way as well.)
    try:
        if isfinite(sum(values)):
            texts = list(map(_float_repr, values))
            if texts and max(values) >= _PLAIN_BELOW:
                for at in [at for at, value in enumerate(values) if value >= _PLAIN_BELOW]:
                    texts[at] = _large(texts[at])
            return texts
    except TypeError:
        pass
    found = [value_text(value) for value in values]
    return None if None in found else cast(list[str], found)


def _escaped(value: str) -> str:
    r"""A label value between its quotes: ``\``, line feed and quote escaped, lone surrogates replaced."""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode("utf-8")
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@dataclass(frozen=True, slots=True)
class _Family:
    """One family with what is written above its samples in either form, line feed first."""

    order: int
    name: str
    labels: tuple[str, ...]
    heads: dict[Format, str]

    @classmethod
    def of(cls, order: int, spec: MetricSpec) -> _Family:
        name = PREFIX + spec.name
        said = spec.help.replace("\\", r"\\").replace("\n", r"\n")
        # OpenMetrics names a counter's family without the suffix that its sample carries, and escapes quotes in help.
        base = name.removesuffix("_total") if spec.kind is Kind.COUNTER else name
        quoted = said.replace('"', r"\"")
        heads = {
            Format.TEXT: f"\n# HELP {name} {said}\n# TYPE {name} {spec.kind}",
            Format.OPENMETRICS: f"\n# HELP {base} {quoted}\n# TYPE {base} {spec.kind}",
        }
        return cls(order, name, spec.labels, heads)

    def prefix(self, labels: Labels) -> str | None:
        """The line up to its value, line feed first, labels in the family's order; None for another label set."""
        given = dict(labels)
        if len(labels) != len(self.labels) or given.keys() != set(self.labels):
            return None
        if not all(isinstance(value, str) for value in given.values()):
            return None
        if not labels:
            return f"\n{self.name} "
        inside = ",".join([f'{label}="{_escaped(given[label])}"' for label in self.labels])
        return f"\n{self.name}{{{inside}}} "


@dataclass(slots=True)
class _Owner:
    """What one owner shows. The four sequences run in parallel, in the order of its last put."""

    metrics: tuple[str, ...] = ()
    labels: tuple[Labels, ...] = ()
    values: tuple[float, ...] = ()
    texts: list[str] = field(default_factory=list)
    lines: list[tuple[int, str] | None] = field(default_factory=list)
    """Family order and prefix of each sample; None for one that cannot stand on the page."""
    refused: Counter[Drop] = field(default_factory=Counter)


@dataclass(slots=True)
class _Layout:
    """The order of the page: which of the owners' values (counted through) stand where, and all text between."""

    gather: Callable[[list[str]], tuple[str, ...]]
    heads: list[tuple[int, _Family]]
    """Where in ``prefixes`` a family begins."""
    prefixes: list[str]
    duplicates: int
    parts: dict[Format, list[str]] = field(default_factory=dict)
    """Prefixes and values in turn, ready to be joined; made when a form is first asked for."""

    def parts_of(self, form: Format) -> list[str]:
        parts = self.parts.get(form)
        if parts is None:
            prefixes = self.prefixes.copy()
            for at, family in self.heads:
                prefixes[at] = family.heads[form] + prefixes[at]
            if prefixes:
                prefixes[0] = prefixes[0].removeprefix("\n")
            parts = [""] * (2 * len(prefixes) + 1)
            parts[:-1:2] = prefixes
            parts[-1] = ("\n" if prefixes else "") + ("# EOF\n" if form is Format.OPENMETRICS else "")
            self.parts[form] = parts
        return parts


class Page:
    """The whole page, in parts that owners replace on their own; read as often as one likes at the cost of one body.

    Raises ``ValueError`` when two families would share a name in either form: nothing could serve them both.
    """

    def __init__(self, families: Sequence[MetricSpec]) -> None:
        self._families = {spec.name: _Family.of(order, spec) for order, spec in enumerate(families)}
        bases = {spec.name.removesuffix("_total") for spec in families}
        if len(bases) != len(families):
            raise ValueError("two families of the page have the same name")
        self._ordered = list(self._families.values())
        self._owners: dict[str, _Owner] = {}
        self._layout: _Layout | None = None
        self._counted = -1
        self._bodies: dict[tuple[Format, bool], tuple[int, bytes]] = {}
        self.dropped: Counter[Drop] = Counter()
        """Samples left out, by reason: at each put, and duplicates once for every page that was read without them."""
        self.generation = 0
        """Grows whenever the page would read differently."""

    @property
    def dropped_total(self) -> int:
        """All samples left out since the start."""
        return self.dropped.total()

    def put(self, owner: str, samples: Sequence[Sample]) -> None:
        """Replaces all that ``owner`` shows. Never raises for what a sample holds: bad ones are left out and counted."""
        kept = self._owners.get(owner)
        if kept is None:
            kept = self._owners[owner] = _Owner()
        metrics, labels, values = zip(*samples, strict=False) if samples else ((), (), ())
        if metrics == kept.metrics and labels == kept.labels and self._move(kept, values):
            if kept.refused:
                self.dropped.update(kept.refused)
            return
        texts = _texts(values)
        if texts is None:
            good = [sample for sample in samples if value_text(sample.value) is not None]
            self.dropped[Drop.VALUE] += len(samples) - len(good)
            self.put(owner, good)
            return
        kept.metrics, kept.labels, kept.values, kept.texts = metrics, labels, values, texts
        self._arrange(kept)
        self.dropped.update(kept.refused)
        self._layout = None
        self._changed()

    def drop(self, owner: str) -> None:
        """Takes all of an owner's samples off the page; an unknown owner has none."""
        if self._owners.pop(owner, None) is not None:
            self._layout = None
            self._changed()

    def text(self) -> bytes:
        """The page in Prometheus text format 0.0.4, UTF-8, the last line ended."""
        return self.body(Format.TEXT)

    def openmetrics(self) -> bytes:
        """The page in OpenMetrics 1.0, closed by its end marker."""
        return self.body(Format.OPENMETRICS)

    def body(self, form: Format, *, gzip: bool = False) -> bytes:
        """One form of the page as sent; made once per generation, and compressed only when asked for."""
        # An outdated body stays until its successor is there: memory that is handed back to the system between two
        # bodies of half a megabyte costs as much, in page faults, as writing the page.
        generation, body = self._bodies.get((form, gzip), (-1, b""))
        if generation != self.generation:
            body = zlib.compress(self.body(form), _GZIP_LEVEL, _GZIP_WBITS) if gzip else self._joined(form)
            self._bodies[form, gzip] = (self.generation, body)
        return body

    def _changed(self) -> None:
        self.generation += 1

    def _move(self, kept: _Owner, values: tuple[float, ...]) -> bool:
        """Takes new values of the series that are already there; False when one of them cannot be written."""
        before = kept.values
        # Three values tell a page on which all moves from one on which little does; being wrong costs time only.
        middle = len(values) // 2
        if values and values[0] != before[0] and values[-1] != before[-1] and values[middle] != before[middle]:
            texts = _texts(values)
            if texts is None:
                return False
            kept.texts = texts
        else:
            moved = list(compress(count(), map(ne, values, before)))
            if not moved:
                return True
            some = _texts([values[at] for at in moved])
            if some is None:
                return False
            for at, text in zip(moved, some, strict=True):
                kept.texts[at] = text
        kept.values = values
        self._changed()
        return True

    def _arrange(self, kept: _Owner) -> None:
        """Finds each sample's family and writes its prefix."""
        kept.lines = []
        kept.refused.clear()
        for metric, labels in zip(kept.metrics, kept.labels, strict=True):
            family = self._families.get(metric)
            prefix = None if family is None else family.prefix(labels)
            if family is None or prefix is None:
                kept.refused[Drop.METRIC if family is None else Drop.LABELS] += 1
                kept.lines.append(None)
            else:
                kept.lines.append((family.order, prefix))

    def _laid_out(self) -> _Layout:
        """Orders the page: families as declared, in each the owners as they came, in each its samples as given."""
        if self._layout is not None:
            return self._layout
        places: list[list[int]] = [[] for _ in self._ordered]
        prefixes: list[list[str]] = [[] for _ in self._ordered]
        seen: set[str] = set()
        place = duplicates = 0
        for kept in self._owners.values():
            for place, line in enumerate(kept.lines, place):
                if line is None:
                    continue
                order, prefix = line
                if prefix in seen:
                    duplicates += 1
                    continue
                seen.add(prefix)
                places[order].append(place)
                prefixes[order].append(prefix)
            place += bool(kept.lines)
        heads: list[tuple[int, _Family]] = []
        begin = 0
        for family in self._ordered:
            if prefixes[family.order]:
                heads.append((begin, family))
                begin += len(prefixes[family.order])
        order = [place for places_of in places for place in places_of]
        self._layout = _Layout(_gather(order), heads, [p for of in prefixes for p in of], duplicates)
        return self._layout

    def _joined(self, form: Format) -> bytes:
        layout = self._laid_out()
        if self._counted != self.generation:
            self._counted = self.generation
            self.dropped[Drop.DUPLICATE] += layout.duplicates
        every: list[str] = []
        for kept in self._owners.values():
            every += kept.texts
        parts = layout.parts_of(form)
        parts[1::2] = layout.gather(every)
        return "".join(parts).encode()


def _gather(order: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    """A function that takes these places of a list, in this order. ``itemgetter`` returns no tuple for one place."""
    if len(order) > 1:
        return itemgetter(*order)
    return lambda every: tuple(every[place] for place in order)
