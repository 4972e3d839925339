"""How much slower cards have become, load, heat and clocks being equal (alerts.md, 12). Floor 2: pure; Unix seconds.

Steps are compared within cells of like conditions. A cell's reference is every stretch of the seven days from its first
one on, thirty at least; then it is closed, and kept until it is reset. The last hour is held against closed references
alone: the median over the cells is the drift.

Conditions vary within a cell too, and a change of load moves where in its cells an engine runs. So a reference is not
a mean but a regression through it (of the step's logarithm on the place in the cell), and a cell whose reference has
not seen the place that is asked for does not answer. Cells that are first seen while a drift is known take their
references without it: otherwise a slow card would come to be what is usual as its load moves on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import expm1, log1p
from typing import NamedTuple

from ufwatch.core.baseline import median
from ufwatch.model import Reason

REFERENCE_SECONDS = 7 * 86400.0
MIN_REFERENCE = 30
CURRENT_SECONDS = 3600.0
MIN_CURRENT = 3
"""Stretches of the last hour that a cell must have."""
MIN_CELLS = 3
MIN_COMPARED = 20
"""Stretches of the last hour that all cells compared must have together: three cells of three would be mostly noise."""
MOST_CELLS = 1000
"""Of one set of cards, 600 bytes each; 150 are usual."""
RIDGE = (0.01, 0.01, 0.01, 0.1, 0.1)
"""How small the slope of each direction is held to be before anything is seen: the squared noise of a stretch (1 %)
over the squared change that its cell's width may make. Requests, KV usage and prompt tokens may make 10 %, heat and
clocks 3 %; a place so far off that such a slope would matter does not answer (``MOST_LEVERAGE``)."""
MOST_LEVERAGE = 0.06
"""Squared error of a reference at the place asked for, in squared noise of one stretch: ±0.25 % at a noise of 1 %."""
_AHEAD_SECONDS = 60.0
_DIRECTIONS = 5
VALUES = 1 + _DIRECTIONS
"""Numbers of a stretch: the step's logarithm, and its place in each direction."""
_SUMMED, _CROSS = 2 + _DIRECTIONS, 2 + _DIRECTIONS + _DIRECTIONS * (_DIRECTIONS + 1) // 2
WIDTH = _CROSS + _DIRECTIONS
"""Numbers of a reference: count, Σy, Σx of each direction, Σxx' of each pair, Σxy of each direction."""


class Sample(NamedTuple):
    """One stretch: when it ended, which engine it was (a digest of version and flags), its cell and values."""

    at: float
    group: str
    cell: str
    values: tuple[float, ...]


class Drift(NamedTuple):
    """How much longer steps take, as a share; None with the reason. ``cells`` is how many were compared."""

    ratio: float | None
    cells: int
    reason: Reason | None = None


class Reference:
    """One cell's first stretches, as sums. ``closed`` ones take no more."""

    __slots__ = ("born", "closed", "sums")

    def __init__(self, born: float, *, closed: bool = False, sums: array[float] | None = None) -> None:
        self.born, self.closed = born, closed
        self.sums = array("d", bytes(8 * WIDTH)) if sums is None else sums

    def add(self, at: float, values: Sequence[float], drift: float) -> bool:
        """Takes a stretch without the drift that was known then; False when the reference is closed, or closes now.

        A clock that was wrong may close one early, never with fewer than thirty stretches, and never keeps one open.
        """
        sums = self.sums
        if self.closed or (sums[0] >= MIN_REFERENCE and abs(at - self.born) >= REFERENCE_SECONDS):
            changed, self.closed = not self.closed, True
            return changed
        y, places = values[0] - log1p(drift), values[1:]
        sums[0] += 1
        sums[1] += y
        pair = _SUMMED
        for number, place in enumerate(places):
            sums[2 + number] += place
            sums[_CROSS + number] += place * y
            for other in places[number:]:
                sums[pair] += place * other
                pair += 1
        return True

    def merge(self, other: Reference) -> None:
        """Adds what another reference of the same cell has seen; a closed one stands as it is."""
        if other.closed and not self.closed:
            self.born, self.closed, self.sums = other.born, True, other.sums
        elif not self.closed:
            self.born = min(self.born, other.born)
            self.sums = array("d", map(float.__add__, self.sums, other.sums))

    def gap(self, values: Sequence[float]) -> float | None:
        """The logarithm of ``values``' step over the one expected at its place; None where that has not been seen."""
        sums = self.sums
        count = sums[0]
        means = [summed / count for summed in sums[1:_SUMMED]]
        y, *place = means
        rows = [[0.0] * _DIRECTIONS for _ in range(_DIRECTIONS)]
        pair = _SUMMED
        for one in range(_DIRECTIONS):
            for two in range(one, _DIRECTIONS):
                rows[one][two] = rows[two][one] = sums[pair] - count * place[one] * place[two]
                pair += 1
            rows[one][one] += RIDGE[one]
        away = [now - then for now, then in zip(values[1:], place, strict=True)]
        weights = _solved(rows, away)
        if 1 / count + sum(map(float.__mul__, weights, away)) > MOST_LEVERAGE:
            return None
        slopes = (sums[_CROSS + number] - count * place[number] * y for number in range(_DIRECTIONS))
        return values[0] - y - sum(map(float.__mul__, weights, slopes))


def _solved(rows: list[list[float]], right: Sequence[float]) -> list[float]:
    """x of ``rows · x = right``, by Cholesky's way; rows are symmetric, and positive by the ridge."""
    size = len(rows)
    lower = [[0.0] * size for _ in range(size)]
    x = [0.0] * size
    for i in range(size):
        for j in range(i + 1):
            rest = rows[i][j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            lower[i][j] = max(rest, 1e-12) ** 0.5 if i == j else rest / lower[j][j]
        x[i] = (right[i] - sum(lower[i][k] * x[k] for k in range(i))) / lower[i][i]
    for i in reversed(range(size)):
        x[i] = (x[i] - sum(lower[k][i] * x[k] for k in range(i + 1, size))) / lower[i][i]
    return x


class Ageing:
    """One set of cards that work on one engine's steps together: its references, its last hour, its drift.

    It changes in place. ``dirty`` are the cells, ``fresh`` the stretches that are not on disk as they are here;
    ``gone`` are engines forgotten for want of room.
    """

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], Reference] = {}
        self.recent: list[Sample] = []
        self.drift = Drift(None, 0, Reason.WARMING_UP)
        self.dirty: set[tuple[str, str]] = set()
        self.fresh: list[Sample] = []
        self.gone: set[str] = set()

    def add(self, sample: Sample) -> None:
        """Takes one stretch."""
        self.recent.append(sample)
        self.fresh.append(sample)
        key = sample.group, sample.cell
        reference = self.cells.get(key)
        if reference is None:
            if len(self.cells) >= MOST_CELLS and not self._make_room(sample.group):
                return
            reference = self.cells[key] = Reference(sample.at)
        if reference.add(sample.at, sample.values, self.drift.ratio or 0.0):
            self.dirty.add(key)

    def evaluate(self, now: float) -> Drift:
        """The drift at ``now``, from the stretches of the last hour of the engine seen last."""
        self.recent = [each for each in self.recent if -_AHEAD_SECONDS <= now - each.at < CURRENT_SECONDS]
        self.fresh = [each for each in self.fresh if now - each.at < CURRENT_SECONDS]  # others are of no use to anybody
        self.drift = self._drift()
        return self.drift

    def _drift(self) -> Drift:
        if not self.recent:
            return Drift(None, 0, Reason.IDLE)
        group = self.recent[-1].group
        by_cell: dict[str, list[tuple[float, ...]]] = {}
        for sample in self.recent:
            if sample.group == group:
                by_cell.setdefault(sample.cell, []).append(sample.values)
        gaps, compared = [], 0
        for cell, values in by_cell.items():
            reference = self.cells.get((group, cell))
            if reference is None or not reference.closed or len(values) < MIN_CURRENT:
                continue
            gap = reference.gap([sum(column) / len(values) for column in zip(*values, strict=True)])
            if gap is not None:
                gaps.append(gap)
                compared += len(values)
        if len(gaps) < MIN_CELLS or compared < MIN_COMPARED:
            return Drift(None, len(gaps), Reason.WARMING_UP)
        return Drift(expm1(median(gaps)), len(gaps))

    def merge(self, cells: Iterable[tuple[str, str, Reference]], recent: Iterable[Sample]) -> None:
        """Takes what was kept on disk; what has been seen since the start stays on top of it."""
        for group, cell, kept in cells:
            reference = self.cells.get((group, cell))
            if reference is None:
                self.cells[group, cell] = kept
            else:
                reference.merge(kept)
        self.recent = [*recent, *self.recent]

    def all_dirty(self) -> None:
        """Everything is to be saved again."""
        self.dirty, self.fresh = set(self.cells), list(self.recent)

    def _make_room(self, group: str) -> bool:
        """Forgets the engine whose newest cell is oldest, never the one that runs; False where there is no other."""
        newest: dict[str, float] = {}
        for (each, _), reference in self.cells.items():
            if each != group:
                newest[each] = max(newest.get(each, reference.born), reference.born)
        if not newest:
            return False
        oldest = min(newest, key=newest.__getitem__)
        self.cells = {key: reference for key, reference in self.cells.items() if key[0] != oldest}
        self.dirty = {key for key in self.dirty if key[0] != oldest}
        self.gone.add(oldest)
        return True
