"""Request events of the time in which no agent looked: found once, from the engine's own counters.

The counters of the last saved moment are kept with the budget. An engine that has kept its start time has counted on;
the difference is what happened meanwhile. Floor 2: pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

from ufwatch import metrics
from ufwatch.config import Objective
from ufwatch.core.continuity import Identity
from ufwatch.core.counting import Tally, between, neighbours
from ufwatch.core.track import EngineTrack

Raw = Mapping[str, Any]
"""Plain data, fit for JSON: ``identity`` (two times or nulls) and ``histograms`` (edges without inf, counts)."""


def raw(track: EngineTrack, objectives: Sequence[Objective]) -> Raw:
    """An engine's counters up to which everything is counted, as far as the objectives need them."""
    histograms = {}
    for name in {o.metric for o in objectives if o.metric in metrics.HISTOGRAM_INDEX}:
        buckets = track.shape.buckets[metrics.HISTOGRAM_INDEX[name]]
        if buckets is not None:
            counts = track.memory.base[buckets.start : buckets.stop].tolist()
            histograms[name] = {"edges": list(buckets.edges[:-1]), "counts": counts}
    identity = track.memory.identity
    return {"identity": [identity.process_start, identity.created], "histograms": histograms}


def recovered(saved: object, track: EngineTrack, objectives: Sequence[Objective]) -> dict[int, Tally] | str:
    """The events between ``saved`` and an engine's first page, by the objective's place; a text says why there is none.

    ``saved`` comes from a file, so nothing about it is taken for granted.
    """
    if not isinstance(saved, Mapping):
        return "nothing was saved of it"
    identity, histograms = saved.get("identity"), saved.get("histograms")
    if not (isinstance(identity, list) and len(identity) == 2 and isinstance(histograms, Mapping)):
        return "what was saved of it cannot be read"
    known = Identity(*(float(t) if isinstance(t, int | float) else None for t in identity))
    same = known.same_as(track.memory.identity)
    if same is None:
        return "its pages do not tell when it started"
    if not same:
        return "it has been restarted meanwhile"
    now = raw(track, objectives)["histograms"]
    found: dict[int, Tally] = {}
    for place, objective in enumerate(objectives):
        limit, after = objective.threshold_seconds, now.get(objective.metric)
        before = histograms.get(objective.metric)
        if limit is None or not isinstance(before, Mapping) or not isinstance(after, Mapping):
            continue
        if not _fits(before, after):
            continue
        grown = [b - a for a, b in zip(before["counts"], after["counts"], strict=True)]
        if min(grown) < 0:
            return "its counters have fallen meanwhile"
        below, above = neighbours((*after["edges"], inf), limit)
        if grown[-1] > 0:
            found[place] = between(grown[-1], 0.0 if below is None else grown[below], grown[above])
    return found


def _fits(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    counts = before.get("counts")
    return (
        before.get("edges") == after["edges"]
        and isinstance(counts, list)
        and len(counts) == len(after["counts"])
        and all(isinstance(c, int | float) and isfinite(c) for c in counts)
    )
