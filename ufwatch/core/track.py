"""One engine's counters over time: what grew between two scrapes, folded into totals that start at 0 and never fall.

The totals vector is ``COLUMNS`` (what the signals' formulas speak of) | sum and count of each latency histogram | the
cumulative buckets of each histogram. Everything later (rates, ratios, bounds, quantiles) is a difference of two totals.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from math import isnan, nan
from operator import add, sub
from types import MappingProxyType
from typing import NamedTuple

from ufwatch import metrics
from ufwatch.core.align import Kept, interchangeable, realign, relaid
from ufwatch.core.continuity import Continuity, Identity, Verdict, judge
from ufwatch.core.spread import second_moment_bounds
from ufwatch.core.window import History, Span
from ufwatch.decode.vllm import BUCKETS, SUMS, EnginePage, EngineShape

COLUMNS = (
    "prefill_tokens_total",
    "decode_tokens_total",
    "prefill_seconds_total",
    "decode_seconds_total",
    "page_table_lookups_total",
    "page_table_misses_total",
    "token_intervals_total",
    "token_interval_seconds_total",
    "token_interval_squared_low_total",
    "token_interval_squared_high_total",
    "kv_evictions_total",
    "preemptions_total",
    "admission_rejections_total",
    "prompt_tokens",
    "request_prompt_tokens",
    "requests_finished",
    "prefix_queries",
    "engine_steps",
)
_SUM_COLUMNS = tuple(f"{h.id}_{part}" for h in metrics.HISTOGRAMS for part in ("sum", "count"))
COLUMN = {name: position for position, name in enumerate((*COLUMNS, *_SUM_COLUMNS))}
HEAD = len(COLUMN)
_SHIFT = HEAD - BUCKETS
"""How far a bucket moves from its place on the page to its place in the totals."""

STALLED_AFTER_SECONDS = 30.0

_RAW = metrics.COUNTER_INDEX
_ITL = metrics.HISTOGRAM_INDEX["itl"]
_ITL_SUM = SUMS + 2 * _ITL


class EngineTrack(NamedTuple):
    """Everything remembered of one engine between scrapes."""

    shape: EngineShape
    gauges: tuple[float | None, ...]
    memory: Continuity
    verdict: Verdict
    totals: array[float]
    history: History[array[float]]
    start_time: float | None
    frozen_since: float | None
    """Since when there has been work and nothing has moved; None while something moves or there is no work."""
    busy: bool
    """There is work, or tokens moved since the scrape before."""
    step_unit: bool = False
    """One interval observation is an engine step that may yield several tokens."""
    kept: Kept = MappingProxyType({})
    seen_wall: float | None = None
    """When this process last answered, in Unix time."""
    disturbed_at: float | None = None
    """When growth was last lost or doubtful: a restart, a step back, changed edges."""

    def gauge(self, raw_id: str) -> float | None:
        return self.gauges[metrics.GAUGE_INDEX[raw_id]]

    @property
    def disturbed(self) -> bool:
        """Whether something was lost or doubtful within the window: then no rate over it is exact."""
        entries = self.history.entries
        return self.disturbed_at is not None and bool(entries) and entries[0][0] < self.disturbed_at

    def span(self) -> Span | None:
        ends = self.history.ends()
        if ends is None:
            return None
        (start, first), (end, final) = ends
        return Span(COLUMN, end - start, first, final)

    def bucket_increase(self, span: Span, histogram: int) -> tuple[tuple[float, ...], list[float]] | None:
        """Edges and cumulative growth of one histogram over the span; None when absent or when its edges changed."""
        buckets = self.shape.buckets[histogram]
        if buckets is None:
            return None
        start, stop = buckets.start + _SHIFT, buckets.stop + _SHIFT
        if isnan(span.first[start]):
            return None
        return buckets.edges, list(map(sub, span.final[start:stop], span.first[start:stop]))


def start(
    page: EnginePage,
    process_start: float | None,
    at_seconds: float,
    history: History[array[float]],
    seen_wall: float | None = None,
) -> EngineTrack:
    """The first sight of an engine: a baseline, every total 0."""
    totals = array("d", bytes(8 * (page.shape.size + _SHIFT)))
    identity = Identity(process_start, page.gauge("created"))
    memory, verdict, _ = judge(None, identity, page.counters)
    busy = _work(page) > 0
    return EngineTrack(
        shape=page.shape,
        gauges=page.gauges,
        memory=memory,
        verdict=verdict,
        totals=totals,
        history=history.push(at_seconds, totals),
        start_time=identity.began,
        frozen_since=at_seconds if busy else None,
        busy=busy,
        step_unit=page.shape.has("draft_tokens"),
        seen_wall=seen_wall,
    )


def step(
    track: EngineTrack,
    page: EnginePage,
    process_start: float | None,
    at_seconds: float,
    *,
    hold: bool = False,
    seen_wall: float | None = None,
) -> EngineTrack:
    """The track after one more page, read at ``seen_wall``. ``hold`` as in :func:`~ufwatch.core.continuity.judge`."""
    totals, memory, history, kept = track.totals, track.memory, track.history, track.kept
    changed = False
    if not interchangeable(page.shape, track.shape):
        memory, kept, changed = realign(track.shape, memory, kept, page)
        totals = relaid(track.shape, page.shape, totals, _SHIFT, 0.0)
        entries = tuple((when, relaid(track.shape, page.shape, old, _SHIFT, nan)) for when, old in history.entries)
        history = history._replace(entries=entries)
    identity = Identity(process_start, page.gauge("created"))
    moved = track.memory.suspect is not None or _moved(track, page)
    memory, verdict, grown = judge(memory, identity, page.counters, hold=hold, seen_wall=track.seen_wall)
    # Counters that differ because another process answers are no proof of work.
    worked = moved and track.memory.suspect is None and verdict is not Verdict.RESTART_SEEN
    step_unit = track.step_unit or page.shape.has("draft_tokens")
    if grown is not None:
        retries = _retries_possible(track, page, grown)
        totals = array("d", map(add, totals, _growth(page.shape, grown, retries=retries)))
        step_unit = step_unit or _several_tokens_a_step(totals)
    disturbed = track.disturbed_at
    if changed or verdict in (Verdict.RESTARTED, Verdict.STEP_BACK):
        disturbed = at_seconds
    if verdict is Verdict.FIRST:
        history = history.cleared()  # no rate across the time in which nothing could be counted
    if grown is not None or verdict is Verdict.FIRST:
        history = history.push(at_seconds, totals)
    if verdict in (Verdict.RESTARTED, Verdict.FIRST):
        kept = {}
    work = _work(page)
    frozen = None if moved or not work else track.frozen_since if track.frozen_since is not None else at_seconds
    return EngineTrack(
        shape=page.shape,
        gauges=page.gauges,
        memory=memory,
        verdict=verdict,
        totals=totals,
        history=history,
        start_time=identity.began or track.start_time,
        frozen_since=frozen,
        busy=work > 0 or worked,
        step_unit=step_unit,
        kept=kept,
        seen_wall=seen_wall if verdict is not Verdict.RESTART_SEEN else track.seen_wall,
        disturbed_at=disturbed,
    )


def after_gap(track: EngineTrack) -> EngineTrack:
    """The track of a target that was gone so long that its series vanished: no rate is drawn across the gap."""
    return track._replace(history=track.history.cleared(), frozen_since=None)


def _growth(shape: EngineShape, grown: list[float], *, retries: bool) -> list[float]:
    """The totals' growth from the counters' growth over one interval."""
    by_source = shape.has("prompt_by_source")
    if by_source:
        lookups, misses = grown[_RAW["prompt_by_source"]], grown[_RAW["prompt_computed"]]
    elif retries:
        lookups = misses = 0.0
    else:
        lookups = grown[_RAW["prefix_queries"]]
        misses = max(0.0, lookups - grown[_RAW["prefix_hits"]])
    intervals = interval_seconds = low = high = 0.0
    itl = shape.buckets[_ITL]
    if itl is not None:
        cumulative = grown[itl.start : itl.stop]
        intervals, interval_seconds = cumulative[-1], grown[_ITL_SUM]
        if intervals > 0:
            counts = [cumulative[0], *(b - a for a, b in pairwise(cumulative))]
            low, high = second_moment_bounds(itl.edges, counts, interval_seconds)
    return [
        grown[_RAW["prompt_computed"]] if by_source else grown[_RAW["prompt_tokens"]],
        grown[_RAW["generation_tokens"]],
        grown[_RAW["prefill_seconds"]],
        grown[_RAW["decode_seconds"]],
        lookups,
        misses,
        intervals,
        interval_seconds,
        low,
        high,
        grown[_RAW["recycles"]],
        grown[_RAW["preemptions"]],
        grown[_RAW["admission_rejections"]],
        grown[_RAW["prompt_tokens"]],
        grown[_RAW["request_prompt_tokens"]],
        grown[_RAW["requests_finished"]],
        grown[_RAW["prefix_queries"]],
        grown[_RAW["engine_steps"]],
        *grown[SUMS:],
    ]


def _retries_possible(track: EngineTrack, page: EnginePage, grown: list[float]) -> bool:
    """Before 0.27.1 every scheduling attempt of a waiting request counted its look-up again (vLLM issue 43736).

    Requests may have waited between two scrapes that saw none waiting; more look-ups than prompt tokens give it away.
    (So does a prompt still being computed, whose look-ups are then left out too.)
    """
    if page.shape.has("prompt_by_source") or not page.shape.has("prefix_queries"):
        return False
    waiting = (track.gauge("waiting") or 0.0) + (page.gauge("waiting") or 0.0)
    if waiting > 0 or grown[_RAW["preemptions"]] > 0:
        return True
    return page.shape.has("prompt_tokens") and grown[_RAW["prefix_queries"]] > 1.05 * grown[_RAW["prompt_tokens"]]


def _several_tokens_a_step(totals: array[float]) -> bool:
    """Without speculation there is one interval per token but the first; clearly fewer means several a step."""
    intervals = totals[COLUMN["itl_count"]]
    tokens = totals[COLUMN["decode_tokens_total"]] - totals[COLUMN["ttft_count"]]
    return intervals >= 100 and tokens > 1.05 * intervals + 10


def _work(page: EnginePage) -> float:
    return (page.gauge("running") or 0.0) + (page.gauge("waiting") or 0.0)


def _moved(track: EngineTrack, page: EnginePage) -> bool:
    """Whether a token counter or the KV usage moved: a long prompt is credited all at once, but its blocks move."""
    before, now = track.memory.base, page.counters
    return (
        before[_RAW["generation_tokens"]] != now[_RAW["generation_tokens"]]
        or before[_RAW["prompt_tokens"]] != now[_RAW["prompt_tokens"]]
        or track.gauge("kv_usage") != page.gauge("kv_usage")
    )
