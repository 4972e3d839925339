"""The same page again: what did not change is verified, not read.

Floor 2: pure. A server's page keeps its shape from scrape to scrape and only numbers move, so the shape is read once
(a :class:`Layout`, shared by every target whose page looks the same) and each scrape then only proves that it still
holds. The proof covers every line, with one pass in C per class of line:

==============================  ===================================================================================
class                           proof that a fresh parse would say the same
==============================  ===================================================================================
wanted sample                   begins with the known prefix (name, labels, blanks); what is left is a number
other sample                    begins with the known name and the character that ends it: its labels may churn
wanted series, repeated         begins with the known prefix: what follows is a fault whatever it is
native histogram                begins with the known prefix and the brace that opens its value
comment, blank, malformed line  equal byte for byte
==============================  ===================================================================================

If one line fails, nothing of the page is believed and a layout is looked up or built anew. An escaped quote, a brace in
a label value or a family in disorder needs no rule here: bytes before a value are compared, never read again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import compress, count
from operator import eq, itemgetter, le, lt, ne
from re import compile as regex
from typing import Any, NamedTuple
from weakref import WeakSet

from ufwatch.decode.exposition import COMPOSITE, is_sample, parse_head, parse_value
from ufwatch.model import Labels

_NAME = regex(rb"[ \t]*+([a-zA-Z_:][a-zA-Z0-9_:]*+)[ \t{]")
_DIGITS = b"0123456789.eE+-\n"
"""On these bytes alone ``float`` accepts exactly what :func:`parse_value` accepts, and is three times faster. (A line's
own newline, at its end, it passes over.)"""
_NEVER = b""
"""Equal to no line but the last, which is never wanted."""
_KEEP_TEXTS = 20_000
_RECENT_BYTES = 1 << 24
_WHOLE_PAGES = 15
"""Pages read whole after one on which more than half of the wanted lines had moved."""
MAX_WANTED = 20_000
"""Wanted lines of one page. A hundred engines have half as many; each costs a kilobyte in all that is kept of it."""

Pick = Callable[[Sequence[bytes]], tuple[bytes, ...]]
_Key = tuple[int, bytes]


class PageTooLarge(ValueError):  # noqa: N818 - says what is wrong with the page, not that something went wrong
    """A page with more wanted lines than ``MAX_WANTED``. Nothing of it is kept."""


class Series(NamedTuple):
    """Whose value stands in one place of the value list."""

    name: str
    """The sample's name: ``…_bucket``, ``…_total``; not the family's."""
    labels: Labels


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """The shape of a page. Equal shapes of one store are one object; nothing but the memos ever changes."""

    lines: tuple[Series, ...]
    """The wanted samples in page order: one for each place of the value list."""
    faults: int
    """Wanted lines that were refused (malformed, or a series that was there before: the first one counts), plus lines
    that name nothing, plus a last line without a newline. Other lines are not read beyond their name."""
    _key: _Key
    _pick_wanted: Pick
    _prefixes: tuple[bytes, ...]
    _pick_named: Pick
    _least: tuple[bytes, ...]
    _above: tuple[bytes, ...]
    """What begins with a name lies, as bytes sort, from the name itself to below the name with its last byte raised by
    one. Two comparisons cost less than one ``startswith``."""
    _pick_fixed: Pick
    _fixed: tuple[bytes, ...]
    _size: int
    """Bytes of the page: no less than is kept of it here."""
    memo: dict[object, Any] = field(default_factory=dict)
    """For callers: what they derive from the shape and want to derive once."""
    _seen_prefixes: dict[bytes, bool] = field(default_factory=dict)

    def has_prefix(self, prefix: bytes) -> bool:
        """Whether the name of any sample line, wanted or not, begins with ``prefix``. Found once, then remembered."""
        answer = self._seen_prefixes.get(prefix)
        if answer is None:
            text = prefix.decode()
            answer = any(line.name.startswith(text) for line in self.lines) or any(
                least.lstrip(b' \t{"').startswith(prefix) for least in self._least
            )
            self._seen_prefixes[prefix] = answer
        return answer


class Layouts:
    """The shapes that readers use now, and the last ``recent`` of those that some reader has left.

    A target whose shape never settles must not fill the memory, and one that goes back and forth not build each time.
    ``wanted`` holds names of samples, not of families.
    """

    def __init__(self, wanted: frozenset[bytes], *, recent: int = 16) -> None:
        self.wanted = wanted
        self._capacity = recent
        self._known: dict[_Key, WeakSet[Layout]] = {}
        self._recent: OrderedDict[Layout, None] = OrderedDict()
        self._texts: dict[bytes, bytes] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def candidates(self, lines: Sequence[bytes]) -> Sequence[Layout]:
        """Return the known layouts that a page may have; the caller proves it."""
        return tuple(self._known.get(self._key(lines), ()))

    def left(self, layout: Layout) -> None:
        """Keep a layout a little longer, since a reader leaves it."""
        self._recent[layout] = None
        self._recent.move_to_end(layout)
        while len(self._recent) > self._capacity or sum(known._size for known in self._recent) > _RECENT_BYTES:
            self._recent.popitem(last=False)

    def build(self, lines: Sequence[bytes]) -> Layout:
        """Return a new layout for a page, and keep it. Raises PageTooLarge."""
        series: dict[tuple[str, frozenset[tuple[str, str]]], Series] = {}
        wanted: list[int] = []
        prefixes: list[bytes] = []
        named: list[int] = []
        ranges: list[tuple[bytes, bytes]] = []
        fixed: list[int] = []
        last = len(lines) - 1
        faults = int(is_sample(lines[last]))  # what follows the last newline may be cut
        for index, whole in enumerate(lines[:last]):
            line = whole[:-1]
            name = _NAME.match(line)
            if name is not None and name[1] not in self.wanted:
                named.append(index)
                ranges.append(self._all_that_begin(name[0]))
                continue
            if not is_sample(line):
                fixed.append(index)
                continue
            if len(wanted) + faults >= MAX_WANTED:
                raise PageTooLarge(f"more than {MAX_WANTED} series of an engine")
            try:
                prefix, text, labels = parse_head(line)
                identity = (text, frozenset(labels))
                if text.encode() not in self.wanted:  # a name in quotes
                    bounds = self._all_that_begin(prefix)
                elif identity in series:
                    bounds = self._all_that_begin(prefix)
                    if b"{" not in prefix:  # labels could follow, but not on a byte that is no blank and no brace
                        bounds = self._text(prefix + b"!"), self._text(prefix + b"{")
                        if not bounds[0] <= line < bounds[1]:
                            raise ValueError("repeated, and malformed")
                    faults += 1
                elif parse_value(line, len(prefix)) is None:
                    bounds = self._all_that_begin(prefix + COMPOSITE)
                else:
                    series[identity] = Series(text, tuple(self._pairs.setdefault(pair, pair) for pair in labels))
                    wanted.append(index)
                    prefixes.append(prefix)
                    continue
            except ValueError:
                faults += 1
                fixed.append(index)
            else:
                named.append(index)
                ranges.append(bounds)
        fixed.append(last)
        layout = Layout(
            lines=tuple(series.values()),
            faults=faults,
            _key=self._key(lines),
            _size=sum(map(len, lines)),
            _pick_wanted=_pick(wanted),
            _prefixes=tuple(prefixes),
            _pick_named=_pick(named),
            _least=tuple(least for least, _ in ranges),
            _above=tuple(above for _, above in ranges),
            _pick_fixed=_pick(fixed),
            _fixed=tuple(self._text(lines[index]) for index in fixed),
        )
        self._keep(layout)
        return layout

    def _key(self, lines: Sequence[bytes]) -> _Key:
        """Return what tells most shapes apart: the number of lines, and the labels of the first wanted series with any.

        Targets differ in their model's name first of all. Equal shapes must have equal keys, so only what the shape
        holds may enter: never a value, never a label of an unwanted line.
        """
        for line in lines[:-1]:
            name = _NAME.match(line)
            if name is not None and name[1] in self.wanted and b"{" in line:
                try:
                    prefix, _, labels = parse_head(line)
                    if labels and parse_value(line[:-1], len(prefix)) is not None:
                        return len(lines), prefix
                except ValueError:
                    continue
        return len(lines), b""

    def _keep(self, layout: Layout) -> None:
        # Keys of shapes that are gone are swept here: a layout is built seldom, and they would pile up one by one.
        self._known = {key: alike for key, alike in self._known.items() if alike}
        self._known.setdefault(layout._key, WeakSet()).add(layout)
        # These only save memory, so they may be dropped whole when label churn has filled them.
        if len(self._texts) > _KEEP_TEXTS:
            self._texts.clear()
        if len(self._pairs) > _KEEP_TEXTS:
            self._pairs.clear()

    def _all_that_begin(self, start: bytes) -> tuple[bytes, bytes]:
        """Return the least text that begins with ``start``, and the least above all that do. It ends in ASCII."""
        return self._text(start), self._text(start[:-1] + bytes((start[-1] + 1,)))

    def _text(self, text: bytes) -> bytes:
        """Return an equal text that other layouts hold too: comments and names are the same for every model."""
        return self._texts.setdefault(text, text)


class PageReader:
    """Reads the pages of one target. Of the last page it keeps the wanted lines only."""

    def __init__(self, layouts: Layouts) -> None:
        self._layouts = layouts
        self._layout: Layout | None = None
        self._wanted: tuple[bytes, ...] = ()
        self._values: list[float] = []
        self._whole = 0
        """Pages still to be read whole: where most lines move, finding those that do not costs more than it saves."""

    def read(self, body: bytes) -> tuple[Layout, list[float]]:
        """Return a page's layout and its values, ``values[i]`` belonging to ``layout.lines[i]``.

        Raises PageTooLarge and nothing else; the reader is then as good as before.
        The layout is the object of the last call exactly when the page's shape is unchanged. The list is the reader's
        own and the next call changes it: copy what is kept.
        """
        lines = _lines(body)
        layout = self._layout
        if layout is not None and self._follow(layout, lines):
            return layout, self._values
        if layout is not None:
            self._layouts.left(layout)
        for known in self._layouts.candidates(lines):
            self._begin(known)
            if self._follow(known, lines):
                return known, self._values
        layout = self._layouts.build(lines)
        self._begin(layout)
        if not self._follow(layout, lines):
            raise AssertionError("a layout does not fit the page it was built from")
        return layout, self._values

    def _begin(self, layout: Layout) -> None:
        """Forget the last page: every wanted line will count as moved."""
        self._layout = layout
        self._wanted = (_NEVER,) * len(layout.lines)
        self._values = [0.0] * len(layout.lines)
        self._whole = 0

    def _follow(self, layout: Layout, lines: Sequence[bytes]) -> bool:
        """Take over the page's values if it has this layout; otherwise change nothing and return False."""
        if len(lines) != layout._key[0] or layout._pick_fixed(lines) != layout._fixed:
            return False
        named = layout._pick_named(lines)
        if not (all(map(le, layout._least, named)) and all(map(lt, named, layout._above))):
            return False
        wanted = layout._pick_wanted(lines)
        fresh, prefixes, moved = wanted, layout._prefixes, None
        if self._whole:
            self._whole -= 1
        else:
            moved = list(map(ne, wanted, self._wanted))
            if sum(moved) * 2 > len(moved):
                self._whole = _WHOLE_PAGES
            fresh, prefixes = tuple(compress(wanted, moved)), tuple(compress(prefixes, moved))
        tails = list(map(bytes.removeprefix, fresh, prefixes))
        # A tail is as long as its line only if there was no such prefix to remove.
        if any(map(eq, tails, fresh)):
            return False
        try:
            numbers = _numbers(tails)
        except ValueError:
            return False
        if moved is None:
            self._values[:] = numbers
        else:
            values = self._values
            for place, number in zip(compress(count(), moved), numbers, strict=False):
                values[place] = number
        self._wanted = wanted
        return True


def _lines(body: bytes) -> list[bytes]:
    """Return the lines, each with its newline, and what follows the last newline: nothing, of a whole page.

    Half the cost of ``split``, which looks at the bytes one by one.
    """
    lines = BytesIO(body).readlines()
    if not lines or lines[-1].endswith(b"\n"):
        lines.append(b"")
    return lines


def _numbers(tails: list[bytes]) -> list[float]:
    """Return the values of these ends of lines; ValueError when one is no number."""
    if not b"".join(tails).translate(None, _DIGITS):
        return list(map(float, tails))
    numbers: list[float] = []
    for tail in tails:
        value = parse_value(tail[:-1]) if tail.translate(None, _DIGITS) else float(tail)
        if value is None:
            raise ValueError("a native histogram has no single value")
        numbers.append(value)
    return numbers


def _pick(indices: list[int]) -> Pick:
    """Return what takes these places out of a list, always as a tuple (``itemgetter`` does so from two places on)."""
    if len(indices) > 1:
        return itemgetter(*indices)
    if indices:
        only = indices[0]
        return lambda lines: (lines[only],)
    return lambda _: ()
