"""Good and bad events of one engine between two looks: exact where the source allows, otherwise a low and a high count.

A histogram answers at its edges only. For a limit between two edges, what lies over the edge above is proved bad (low)
and what lies over the edge below may be bad (high). The plugin counts the very limit. A slice of 10 s whose jitter may
lie on either side of the limit is unknown. Floor 2: pure; times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from operator import itemgetter
from typing import Any, NamedTuple

from ufwatch import metrics
from ufwatch.config import Objective
from ufwatch.core.spread import std_dev
from ufwatch.core.track import COLUMN, HEAD, EngineTrack
from ufwatch.decode.vllm import BUCKETS, EngineShape
from ufwatch.model import EngineState

SLICE_SECONDS = 10.0
SLICES_NEED_SECONDS = 5.0
"""The longest interval between scrapes at which a slice has two looks."""
_SHIFT = HEAD - BUCKETS
_INTERVALS = itemgetter(
    COLUMN["token_intervals_total"],
    COLUMN["token_interval_seconds_total"],
    COLUMN["token_interval_squared_low_total"],
    COLUMN["token_interval_squared_high_total"],
)


class Tally(NamedTuple):
    """Events, those proved bad, those that may be bad, and those whose verdict nobody knows (not among the events)."""

    events: float = 0.0
    low: float = 0.0
    high: float = 0.0
    unknown: float = 0.0

    def plus(self, other: Tally) -> Tally:
        events, low, high, unknown = other
        return Tally(self[0] + events, self[1] + low, self[2] + high, self[3] + unknown)


class Exact(NamedTuple):
    """What an exact source has counted since the agent's start: all events, and those over the limit."""

    events: float
    bad: float


class Edges(NamedTuple):
    """Where one objective's three counts lie in the totals; ``below`` None where the limit is under every edge."""

    objective: int
    edges: tuple[float, ...]
    total: int
    below: int | None
    above: int


class Plan(NamedTuple):
    """The edges of every objective that an engine's page can answer, made once per shape."""

    shape: EngineShape
    edges: tuple[Edges, ...]
    pick: Any
    """Takes total, below and above of each out of the totals, in one go."""


class Mixed(NamedTuple):
    """An objective with an exact source beside the page. The stint is the time since the exact source took over."""

    last: Exact
    stint: Exact = Exact(0.0, 0.0)
    page: Tally = Tally()


class Slice(NamedTuple):
    """The slice that is open: since when, from which source, and the four sums at its start."""

    since: float
    source: str
    sums: tuple[float, ...]


class EngineCount(NamedTuple):
    """What is remembered of an engine between looks."""

    plan: Plan | None = None
    picked: tuple[float, ...] = ()
    mixed: Mapping[int, Mixed] = {}
    slice: Slice | None = None


def plan(shape: EngineShape, objectives: Sequence[Objective]) -> Plan:
    """Where an engine of this shape keeps what its objectives ask for."""
    found = []
    for number, objective in enumerate(objectives):
        index, limit = metrics.HISTOGRAM_INDEX.get(objective.metric), objective.threshold_seconds
        buckets = None if index is None else shape.buckets[index]
        if buckets is None or limit is None:
            continue
        below, above = neighbours(buckets.edges, limit)
        first = buckets.start + _SHIFT
        lower = None if below is None else first + below
        found.append(Edges(number, buckets.edges, buckets.stop - 1 + _SHIFT, lower, first + above))
    places = [place for e in found for place in (e.total, e.total if e.below is None else e.below, e.above)]
    return Plan(shape, tuple(found), itemgetter(*(places or (0, 0))))


def neighbours(edges: Sequence[float], limit: float) -> tuple[int | None, int]:
    """The places of the last edge that is not over ``limit`` (None under all edges) and the first not under it."""
    below = max((place for place, edge in enumerate(edges) if edge <= limit), default=None)
    return below, next(place for place, edge in enumerate(edges) if edge >= limit)


def between(total: float, below: float, above: float) -> Tally:
    """The verdict of ``total`` observations, of which ``below`` and ``above`` lie up to the limit's two edges."""
    low, high = total - above, total - below
    if 0.0 <= low <= high <= total:
        return Tally(total, low, high)
    # Counts of a page that was written while requests ended can disagree by one.
    low = min(max(0.0, low), total)
    return Tally(total, low, min(max(low, high), total))


def requests(
    state: EngineCount, track: EngineTrack, objectives: Sequence[Objective]
) -> tuple[EngineCount, dict[int, Tally]]:
    """What an engine's histograms gained since the last look, by the objective's place."""
    before = state.plan
    if before is not None and before.shape is track.shape:
        picked = before.pick(track.totals)
        if picked == state.picked:
            return state, {}
        return state._replace(picked=picked), _grown(before, state.picked, picked)
    now = plan(track.shape, objectives)
    picked = now.pick(track.totals)
    return state._replace(plan=now, picked=picked), _grown(now, _carried(state, now), picked)


def _carried(state: EngineCount, now: Plan) -> tuple[float, ...]:
    """The counts before in the order of a new plan: totals go on where the edges stayed and begin at 0 elsewhere."""
    held = {} if state.plan is None else {e.objective: (at, e) for at, e in enumerate(state.plan.edges)}
    carried: list[float] = []
    for edges in now.edges:
        at, was = held.get(edges.objective, (0, None))
        same = was is not None and was.edges == edges.edges
        carried += state.picked[3 * at : 3 * at + 3] if same else (0.0, 0.0, 0.0)
    return tuple(carried)


def _grown(plan: Plan, before: Sequence[float], now: Sequence[float]) -> dict[int, Tally]:
    grown = {}
    for at, edges in enumerate(plan.edges):
        place = 3 * at
        total = now[place] - before[place]
        if total > 0:
            below = 0.0 if edges.below is None else now[place + 1] - before[place + 1]
            grown[edges.objective] = between(total, below, now[place + 2] - before[place + 2])
    return grown


def mixed(held: Mixed | None, page: Tally, exact: Exact | None) -> tuple[Mixed | None, Tally]:
    """What counts of a page's growth and an exact source's totals, each event once. Exact None: it is not alive.

    The exact source counts while it is alive, from its second look on. When it dies, what the page saw more over the
    stint is added, as bounded as the page knows it. The two are read at slightly different moments: at the moment an
    exact source appears, what its file lags behind the page may be counted by both.
    """
    if exact is None:
        if held is None:
            return None, page
        seen, stint = held.page.plus(page), held.stint
        rest = max(0.0, seen.events - stint.events)
        low = min(max(0.0, seen.low - stint.bad), rest)
        return None, Tally(rest, low, min(max(low, seen.high - stint.bad), rest))
    if held is None:
        return Mixed(exact), page
    events = max(0.0, exact.events - held.last.events)
    bad = min(max(0.0, exact.bad - held.last.bad), events)
    stint = Exact(held.stint.events + events, held.stint.bad + bad)
    return Mixed(exact, stint, held.page.plus(page)), Tally(events, bad, bad)


def sliced(
    held: Slice | None,
    track: EngineTrack | None,
    exact: tuple[float, float, float] | None,
    limit: float,
    at_seconds: float,
    interval_seconds: float,
) -> tuple[Slice | None, Tally]:
    """The open slice after one more look, and the verdict of the one that it closes.

    ``exact`` is count, sum and sum of squares of the token intervals where a source counts them, otherwise the page's
    bounds answer. A slice with fewer than two intervals is no event. One over a restart, a gap or a change of source,
    and one whose jitter may lie on either side of ``limit``, is unknown.
    """
    if exact is not None:
        n, total, squares = exact
        source, sums = "exact", (n, total, squares, squares)
    elif track is not None:
        source, sums = "page", _INTERVALS(track.totals)
    else:
        return held, Tally()
    fresh = Slice(at_seconds, source, sums)
    if held is None:
        return fresh, Tally()
    elapsed = at_seconds - held.since
    if elapsed < SLICE_SECONDS - interval_seconds / 2:
        return held, Tally()
    n, total, low, high = (now - then for now, then in zip(sums, held.sums, strict=True))
    if source != held.source or elapsed >= SLICE_SECONDS + max(SLICES_NEED_SECONDS, interval_seconds):
        # Of a gap without tokens nothing is unknown: there was nothing to judge.
        return fresh, Tally(unknown=max(1.0, elapsed // SLICE_SECONDS) if n > 0 or source != held.source else 0.0)
    if n < 2:
        return fresh, Tally()
    disturbed = source == "page" and track is not None and (track.disturbed_at or -inf) > held.since
    if disturbed or not isfinite(total):
        return fresh, Tally(unknown=1.0)
    return fresh, judged(std_dev(n, total, low), std_dev(n, total, high), limit)


def judged(low: float | None, high: float | None, limit: float) -> Tally:
    """The verdict of one slice whose jitter lies from ``low`` to ``high``."""
    if low is None or high is None or low <= limit < high:
        return Tally(unknown=1.0)
    bad = float(low > limit)
    return Tally(1.0, bad, bad)


_NOT_OURS = (401, 403, 404, 405)


def probed(status: int | None, ours: bool, state: EngineState | None) -> Tally:
    """The verdict of one health probe: ``status`` None is no answer, ``ours`` a failure of the agent's own.

    Good is 200 while the engine is not stalled; bad is everything else of a server that ought to serve. Unknown while
    it is starting, and where the answer says nothing of its health (no such path, not allowed to ask).
    """
    if ours or state is EngineState.STARTING or status in _NOT_OURS:
        return Tally(unknown=1.0)
    bad = float(status != 200 or state in (EngineState.STALLED, EngineState.DOWN))
    return Tally(1.0, bad, bad)


class Asked(NamedTuple):
    """One request of our own: its seconds by metric, and whether it failed. ``ours``: the failure says nothing of how
    the server serves."""

    seconds: Mapping[str, float]
    failed: bool = False
    ours: bool = False


ASKED = ("ttft", "tpot", "e2e")
"""Metrics of objectives that a request of our own can be judged by."""


def asked(request: Asked, objective: Objective, state: EngineState | None) -> Tally:
    """The verdict of one request of our own, by the very limit; no event where it does not have what is asked for.

    One that failed is bad for ``ttft``, unless that had come, and for ``e2e``. Unknown while the server is starting.
    """
    if request.ours or state is EngineState.STARTING:
        return Tally(unknown=1.0)
    seconds, limit = request.seconds.get(objective.metric), objective.threshold_seconds
    if seconds is None or limit is None:
        bad = float(request.failed and objective.metric in ("ttft", "e2e"))
        return Tally(bad, bad, bad)
    bad = float(seconds > limit)
    return Tally(1.0, bad, bad)
