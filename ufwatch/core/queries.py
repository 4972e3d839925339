"""Prometheus queries that say what ufwatch counts itself: observations of a latency histogram, all or up to an edge.

ufwatch asks no Prometheus, so a query is taken only where it means one of its own counts exactly. Floor 2: pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ufwatch import metrics
from ufwatch.configschema import shown, text
from ufwatch.core.objectives import JITTER

_METRICS = {family: histogram.id for histogram in metrics.HISTOGRAMS for family in histogram.families}
_WINDOW = r"\[(?:\{\{\.window\}\}|[0-9]+[smhdw])\]"
_SERIES = rf"(?P<family>[a-zA-Z_:][\w:]*)_(?P<part>bucket|count)(?:\{{(?P<labels>[^{{}}]*)\}})?(?:{_WINDOW})?"
_QUERY = re.compile(rf"(?:sum\()?(?:(?:rate|increase)\()?{_SERIES}\)?\)?")
_LE = re.compile(r'le="([0-9.eE+-]+|\+Inf)",?')
_ADVICE = (
    "ufwatch counts by itself and asks no Prometheus; use type ufwatch, or sum(rate(F_count[w])) and "
    'sum(rate(F_bucket{le="EDGE"}[w])) of a vLLM latency histogram F'
)


class Count(NamedTuple):
    """What a query counts. ``at_most`` None: all observations; ``bad``: those over ``at_most`` instead of up to it."""

    metric: str
    at_most: float | None = None
    bad: bool = False


def count_of(value: object) -> Count:
    """What ``value`` counts. Raises ValueError where it is none of the queries that ufwatch counts itself."""
    query = "".join(text(value).split())
    # Nothing but the whole minus a part is known to be a difference: the parts must speak of one histogram.
    whole, minus, part = query.partition("-sum(")
    if not minus:
        return _single(query, query)
    total, good = _single(whole, query), _single(f"sum({part}", query)
    if total.at_most is not None or good.at_most is None or total.metric != good.metric:
        raise ValueError(f"{shown(query)} is not the whole of a histogram minus one of its buckets; {_ADVICE}")
    return Count(total.metric, good.at_most, bad=True)


def gauge_of(value: object) -> str:
    """``jitter`` for a query of our own jitter gauge. Raises ValueError for anything else."""
    if "".join(text(value).split()) != "ufwatch_token_jitter_seconds":
        raise ValueError(
            f"{shown(value)} is no gauge that ufwatch judges in slices; write ufwatch_token_jitter_seconds"
        )
    return JITTER


def _single(query: str, whole: str) -> Count:
    matched = _QUERY.fullmatch(query)
    if matched is None or query.count("(") != query.count(")"):
        raise ValueError(f"{shown(whole)} cannot be counted; {_ADVICE}")
    metric = _METRICS.get(matched["family"])
    if metric is None:
        raise ValueError(f"unknown metric {shown(matched['family'])}; known are {', '.join(_METRICS)}")
    labels = matched["labels"] or ""
    edge = _LE.fullmatch(labels)
    if matched["part"] == "count" and not labels:
        return Count(metric)
    if matched["part"] != "bucket" or edge is None:
        raise ValueError(f"the matcher {{{labels[:60]}}} is not supported; counts are per target, so name le alone")
    return Count(metric) if edge[1] == "+Inf" else Count(metric, float(edge[1]))
