"""The agent's own page: Prometheus text 0.0.4 and OpenMetrics 1.0 from samples that mostly keep their shape.

Between two scrapes a page changes its numbers, hardly ever its series. So everything that is not a number is made
once: each owner (a target, the cards, the agent itself) keeps the text in front of each of its values, and the page
keeps in which order the owners' values stand. What is left per cycle is ``repr`` of the values that moved, one gather
and one join. Pure: no clock, no socket; nothing here can fail because of a value it was given.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress, count
from operator import itemgetter, ne

from ufwatch.model import Exemplars, Labels, Sample, Samples
from ufwatch.render.lines import Family, exemplar_text, value_text, value_texts
from ufwatch.spec import MetricSpec


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


@dataclass(slots=True)
class _Owner:
    """What one owner shows: parallel sequences, in the order of its last put."""

    series: list[tuple[str, Labels]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    texts: list[str] | None = None
    """The values as text, or None when they stand in the page's own list, from ``start`` on."""
    start: int = 0
    lines: list[tuple[int, str] | None] = field(default_factory=list)
    """Family order and prefix of each sample; None for one that cannot stand on the page."""
    refused: Counter[Drop] = field(default_factory=Counter)
    exemplars: Exemplars = field(default_factory=dict)


@dataclass(slots=True)
class _Layout:
    """The order of the page: which of the owners' values (counted through) stand where, and all text between."""

    gather: Callable[[list[str]], tuple[str, ...]]
    heads: list[tuple[int, Family]]
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
                head = family.openmetrics_head if form is Format.OPENMETRICS else family.text_head
                prefixes[at] = head + prefixes[at]
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
        self._families = [Family.of(order, spec) for order, spec in enumerate(families)]
        self._named: dict[str, Family] = {}
        for order, spec in enumerate(families):
            self._named |= Family.all_of(order, spec)
        bases = {spec.name.removesuffix("_total") for spec in families}
        names = sum(len(Family.all_of(0, spec)) for spec in families)
        if len(bases) != len(families) or len(self._named) != names:
            raise ValueError("two families of the page have the same name")
        self._owners: dict[str, _Owner] = {}
        self._layout: _Layout | None = None
        self._counted = -1
        self._texts: list[str] = []
        """The values of all owners as text, one owner after the other."""
        self._bodies: dict[tuple[Format, bool], tuple[int, bytes]] = {}
        self.dropped: Counter[Drop] = Counter(dict.fromkeys(Drop, 0))
        """Samples left out, by reason: at each put, and duplicates once for every page that was read without them."""
        self.generation = 0
        """Grows whenever the page would read differently."""

    @property
    def dropped_total(self) -> int:
        """All samples left out since the start."""
        return self.dropped.total()

    def put(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None:
        """Replaces all that ``owner`` shows. Never raises for what a sample holds: bad ones are dropped and counted.

        ``exemplars`` are those of its buckets; only OpenMetrics has room for them.
        """
        kept = self._owners.get(owner)
        if kept is None:
            kept = self._owners[owner] = _Owner()
        given = Samples.of(samples)
        series, values = given.series, given.values
        if not (self._move if series == kept.series and kept.texts is None else self._take)(kept, series, values):
            good = [sample for sample in given if value_text(sample.value) is not None]
            self.dropped[Drop.VALUE] += len(given) - len(good)
            self.put(owner, good, exemplars)
            return
        if kept.exemplars != (exemplars or {}):
            kept.exemplars = dict(exemplars or {})
            self._changed()
        if kept.refused:
            self.dropped.update(kept.refused)

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

    def _move(self, kept: _Owner, _: list[tuple[str, Labels]], values: list[float]) -> bool:
        """Takes new values of the series that are already there; False when one of them cannot be written."""
        before, start = kept.values, kept.start
        # Three values tell a page on which all moves from one on which little does; being wrong costs time only.
        middle = len(values) // 2
        if values and values[0] != before[0] and values[-1] != before[-1] and values[middle] != before[middle]:
            texts = value_texts(values)
            if texts is None:
                return False
            self._texts[start : start + len(texts)] = texts
        else:
            moved = list(compress(count(), map(ne, values, before)))
            if not moved:
                return True
            texts = value_texts([values[at] for at in moved])
            if texts is None:
                return False
            for at, text in zip(moved, texts, strict=True):
                self._texts[start + at] = text
        kept.values = values
        self._changed()
        return True

    def _take(self, kept: _Owner, series: list[tuple[str, Labels]], values: list[float]) -> bool:
        """Takes samples of another shape; False when one of their values cannot be written."""
        texts = value_texts(values)
        if texts is None:
            return False
        if series != kept.series:
            kept.lines = []
            kept.refused.clear()
            for metric, pairs in series:
                family = self._named.get(metric)
                prefix = None if family is None else family.prefix(pairs)
                if family is None or prefix is None:
                    kept.refused[Drop.METRIC if family is None else Drop.LABELS] += 1
                    kept.lines.append(None)
                else:
                    kept.lines.append((family.order, prefix))
        kept.series, kept.values, kept.texts = series, values, texts
        self._layout = None
        self._changed()
        return True

    def _laid_out(self) -> _Layout:
        """Orders the page: families as declared, in each the owners as they came, in each its samples as given."""
        if self._layout is not None:
            return self._layout
        texts: list[str] = []
        found: list[list[tuple[int, str]]] = [[] for _ in self._families]
        seen: set[str] = set()
        duplicates = 0
        for kept in self._owners.values():
            own = kept.texts
            if own is None:
                own = self._texts[kept.start : kept.start + len(kept.values)]
            kept.texts, kept.start = None, len(texts)
            texts += own
            for place, line in enumerate(kept.lines, kept.start):
                if line is None:
                    continue
                order, prefix = line
                if prefix in seen:
                    duplicates += 1
                    continue
                seen.add(prefix)
                found[order].append((place, prefix))
        heads: list[tuple[int, Family]] = []
        lines: list[tuple[int, str]] = []
        for family, own_lines in zip(self._families, found, strict=True):
            if own_lines:
                heads.append((len(lines), family))
                lines += own_lines
        self._texts = texts
        gather = _gather([place for place, _ in lines])
        self._layout = _Layout(gather, heads, [prefix for _, prefix in lines], duplicates)
        return self._layout

    def _joined(self, form: Format) -> bytes:
        layout = self._laid_out()
        if self._counted != self.generation:
            self._counted = self.generation
            self.dropped[Drop.DUPLICATE] += layout.duplicates
        parts = layout.parts_of(form)
        parts[1::2] = layout.gather(self._texts if form is Format.TEXT else self._with_exemplars())
        return "".join(parts).encode()

    def _with_exemplars(self) -> list[str]:
        """The values as OpenMetrics shows them."""
        texts = self._texts
        for kept in self._owners.values():
            if kept.exemplars:
                texts = texts if texts is not self._texts else texts.copy()
                for place, series in enumerate(kept.series, kept.start):
                    if (exemplar := kept.exemplars.get(series)) is not None:
                        texts[place] += exemplar_text(exemplar)
        return texts


def _gather(order: list[int]) -> Callable[[list[str]], tuple[str, ...]]:
    """A function that takes these places of a list, in this order. ``itemgetter`` returns no tuple for one place."""
    if len(order) > 1:
        return itemgetter(*order)
    return lambda every: tuple(every[place] for place in order)
