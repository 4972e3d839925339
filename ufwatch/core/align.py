"""When a page changes its shape: the memory of counters carried over into the new layout, without inventing growth.

- A family that is gone for a page keeps what it was last at; when it comes back, it goes on from there.
- A family never seen before is a baseline, like everything at first sight. Only where the engine had shown no counter
  at all does it count from 0: that is V0 before its first request, which makes its children on first use.
- A histogram whose edges differ starts again: its growth over the interval is dropped, never interpolated.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from ufwatch import metrics
from ufwatch.core.continuity import Continuity
from ufwatch.decode.vllm import BUCKETS, SUMS, Buckets, EnginePage, EngineShape

Kept = Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
"""Families that are not on the page now: their last values, and for a histogram its edges."""

_COUNTED = frozenset([raw.id for raw in metrics.COUNTERS] + [histogram.id for histogram in metrics.HISTOGRAMS])


def interchangeable(one: EngineShape, other: EngineShape) -> bool:
    """Whether two shapes lay their vectors out alike."""
    return one is other or (one.present == other.present and one.buckets == other.buckets)


def realign(old: EngineShape, memory: Continuity, kept: Kept, page: EnginePage) -> tuple[Continuity, Kept, bool]:
    """The memory in the page's layout, the families now missing, and whether some growth had to be dropped."""
    new, was = page.shape, memory.base
    base = array("d", page.counters)  # a baseline for whatever is new
    suspect = array("d", bytes(8 * new.size)) if memory.suspect is not None else None
    missing, dropped = dict(kept), False
    untouched = not (old.present & _COUNTED)
    for place, raw in enumerate(metrics.COUNTERS):
        before, now = raw.id in old.present, raw.id in new.present
        if before and now:
            base[place] = was[place]
            if suspect is not None and memory.suspect is not None:
                suspect[place] = memory.suspect[place]
        elif now:
            (base[place],) = _returning(missing.pop(raw.id, None), (), (page.counters[place],), untouched)
        elif before:
            missing[raw.id] = ((was[place],), ())
    for index, histogram in enumerate(metrics.HISTOGRAMS):
        places_before, edges_before = _places(index, old.buckets[index])
        places_now, edges_now = _places(index, new.buckets[index])
        before, now = histogram.id in old.present, histogram.id in new.present
        if before and now and edges_before == edges_now:
            for place_before, place_now in zip(places_before, places_now, strict=True):
                base[place_now] = was[place_before]
                if suspect is not None and memory.suspect is not None:
                    suspect[place_now] = memory.suspect[place_before]
            continue
        if before:
            missing[histogram.id] = (tuple(was[place] for place in places_before), edges_before)
        if now:
            here = tuple(page.counters[place] for place in places_now)
            values = _returning(missing.pop(histogram.id, None), edges_now, here, untouched)
            for place, value in zip(places_now, values, strict=True):
                base[place] = value
            dropped = dropped or before
    return memory._replace(base=base, suspect=suspect), missing, dropped


def _returning(
    last: tuple[tuple[float, ...], tuple[float, ...]] | None,
    edges: tuple[float, ...],
    here: tuple[float, ...],
    untouched: bool,
) -> tuple[float, ...]:
    """What a family that appears is measured from: where it was, nothing at all, or where it is now."""
    if last is not None:
        return last[0] if last[1] == edges else here
    return (0.0,) * len(here) if untouched else here


def _places(index: int, buckets: Buckets | None) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Where a histogram's sum, count and buckets lie, and its edges."""
    ends = (SUMS + 2 * index, SUMS + 2 * index + 1)
    if buckets is None:
        return ends, ()
    return (*ends, *range(buckets.start, buckets.stop)), buckets.edges


def relaid(old: EngineShape, new: EngineShape, totals: array[float], shift: int, unknown: float) -> array[float]:
    """A totals vector in another layout, its buckets ``shift`` away from the page's; what cannot be carried over reads
    ``unknown``, what is new 0."""
    laid = array("d", totals[: BUCKETS + shift])
    for was, now in zip(old.buckets, new.buckets, strict=True):
        if now is None:
            continue
        if was is None:
            laid.extend([0.0] * (now.stop - now.start))
        elif was.edges == now.edges:
            laid.extend(totals[was.start + shift : was.stop + shift])
        else:
            laid.extend([unknown] * (now.stop - now.start))
    return laid
