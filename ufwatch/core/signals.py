"""From totals to readings: each signal of one engine, from its best source, or null with the reason.

Everything here is a pure function of a track, the other sources' windows and the engine's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from ufwatch import catalogue, families, metrics
from ufwatch.catalogue import Provider, Signal
from ufwatch.core.continuity import Verdict
from ufwatch.core.spread import occupied, quantile_edges
from ufwatch.core.track import COLUMN, EngineTrack
from ufwatch.core.window import Span, Totals
from ufwatch.formula import Window, counters_of, evaluate
from ufwatch.model import EngineState, Labels, Quality, Reading, Reason

LOST_BATCHES = "kv_event_batches_lost"
"""Beside ``kv_evictions_total`` in the totals of ``kv_events``: batches that never arrived."""
MISSING_BATCHES = "kv_event_batches_missing"
"""Likewise: batches that are known of and may still be replayed."""

_ITL = metrics.HISTOGRAM_INDEX["itl"]
_BY_VERDICT = {
    Verdict.FIRST: Reason.WARMING_UP,
    Verdict.HELD: Reason.WARMING_UP,
    Verdict.RESTART_SEEN: Reason.COUNTER_RESET,
    Verdict.STEP_BACK: Reason.INCONSISTENT,
    Verdict.INCONSISTENT: Reason.INCONSISTENT,
}
_RATES = (
    ("preemptions_rate", COLUMN["preemptions_total"], "preemptions"),
    ("prompt_tokens_rate", COLUMN["prompt_tokens"], "prompt_tokens"),
    ("generation_tokens_rate", COLUMN["decode_tokens_total"], "generation_tokens"),
)
"""Signal, its column of the totals, and what the page must have for it."""
_BY_STATE = {EngineState.STALLED: Reason.STALLED, EngineState.ASLEEP: Reason.ASLEEP}


class _Latency(NamedTuple):
    """One latency histogram: its name, its two signals, and where it stands in a track."""

    name: str
    mean_id: str
    p99_id: str
    histogram: int
    summed: int
    observed: int


_LATENCIES = tuple(
    _Latency(
        name,
        f"{name}_mean",
        f"{name}_p99",
        metrics.HISTOGRAM_INDEX[name],
        COLUMN[f"{name}_sum"],
        COLUMN[f"{name}_count"],
    )
    for name in families.LATENCIES
)
_LATENCY = {latency.name: latency for latency in _LATENCIES}


class EngineInput(NamedTuple):
    """What one engine's signals are made from.

    ``extra`` holds the windows of the sources beside the page (``plugin``, ``kv_events``) that are alive; one of 0 s
    is not full yet. ``track`` is None when the page has no such engine.
    """

    engine: str
    state: EngineState | None
    track: EngineTrack | None
    extra: Mapping[str, Totals]
    absent: Reason | None = None
    """Why there is no track at all (``stats_disabled``, ``target_down``, …)."""


def engine_readings(given: EngineInput) -> tuple[Reading, ...]:
    """All readings of one engine: the page's share of the seven, then latencies, requests and rates."""
    span, blocked = _span(given)
    track = given.track
    exact = _best(Quality.EXACT, track)
    if track is not None and not given.extra:
        providers = _page_providers(track.shape.present)
    else:
        providers = tuple(provider_of(signal, given) for signal in catalogue.ENGINE_SIGNALS)
    readings = [
        _signal(signal, provider, given, span, blocked)
        for signal, provider in zip(catalogue.ENGINE_SIGNALS, providers, strict=True)
    ]
    if "plugin" in given.extra:
        signal = catalogue.PAGE_TABLE_PROBES
        probes = _signal(signal, provider_of(signal, given), given, span, blocked)
        if probes.value is not None:
            readings.append(probes)
    labels: Labels = (("engine", given.engine),)
    for latency in _LATENCIES:
        readings += _latency(latency, labels, track, span, blocked, exact)
    readings += _requests(given, labels, span, blocked, exact)
    return tuple(readings)


def _span(given: EngineInput) -> tuple[Span | None, Reason | None]:
    """The page's window, or why no rate may be drawn from the page now."""
    track = given.track
    if track is None:
        return None, given.absent or Reason.NO_SOURCE
    if given.state in _BY_STATE:
        return None, _BY_STATE[given.state]
    if track.verdict in _BY_VERDICT:
        return None, _BY_VERDICT[track.verdict]
    span = track.span()
    return (span, None) if span is not None else (None, Reason.WARMING_UP)


def provider_of(signal: Signal, given: EngineInput) -> Provider | None:
    """The best source this engine has for the signal, whether or not it has a value now."""
    for provider in signal.providers:
        if provider.source in ("plugin", "kv_events"):
            totals = given.extra.get(provider.source)
            if totals is not None and all(totals.last(name) is not None for name in counters_of(provider.formula)):
                return provider
        elif given.track is not None and _on_page(provider.source, signal.id, given.track.shape.present):
            return provider
    return None


@lru_cache(maxsize=256)
def _page_providers(present: frozenset[str]) -> tuple[Provider | None, ...]:
    """The best source of each of an engine's signals, of those on a page that has these."""
    return tuple(
        next((p for p in signal.providers if _on_page(p.source, signal.id, present)), None)
        for signal in catalogue.ENGINE_SIGNALS
    )


def _on_page(source: str, signal_id: str, present: frozenset[str]) -> bool:
    if source == "histogram":
        return "itl" in present
    if source == "prompt_tokens_by_source":
        return "prompt_by_source" in present and (signal_id != "prefill_decode" or "generation_tokens" in present)
    if source == "prefix_cache":
        return {"prefix_queries", "prefix_hits"} <= present
    if source == "prompt_tokens":
        return {"prompt_tokens", "generation_tokens"} <= present
    if source == "request_seconds":
        return {"prefill_seconds", "decode_seconds"} <= present
    return source in present


def _signal(
    signal: Signal, provider: Provider | None, given: EngineInput, span: Span | None, blocked: Reason | None
) -> Reading:
    labels: Labels = (("engine", given.engine), *signal.extra)
    if provider is None:
        why = Reason.NO_SOURCE if given.track is not None else given.absent or Reason.NO_SOURCE
        return Reading(signal.id, labels, None, reason=why)
    window: Window | None = span
    quality, nothing = _best(provider.quality, given.track), Reason.IDLE
    if provider.source in given.extra:
        window, blocked, quality = given.extra[provider.source], None, provider.quality
        nothing = _BY_STATE.get(given.state, Reason.IDLE) if given.state is not None else Reason.IDLE
    if window is None or window.seconds <= 0:
        return Reading(signal.id, labels, None, source=provider.source, reason=blocked or Reason.WARMING_UP)
    if signal is catalogue.TOKEN_JITTER:
        return _jitter(provider, given, labels, window, quality, nothing)
    value = evaluate(provider.formula, window)
    reason: Reason | None = None
    if signal is catalogue.PAGE_TABLE_MISS and provider.source == "prefix_cache":
        reason = _refused(span)
    elif signal is catalogue.PREFILL_DECODE_TOKENS and (window.increase("preemptions_total") or 0.0) > 0:
        quality = Quality.ESTIMATE  # work redone after a preemption is on neither counter
    if value is None:
        return Reading(signal.id, labels, None, source=provider.source, reason=reason or nothing)
    if (window.increase(LOST_BATCHES) or 0.0) > 0 or (window.last(MISSING_BATCHES) or 0.0) > 0:
        # Events were lost, or are still to be replayed: what was counted is a lower bound.
        return Reading(signal.id, labels, value, low=value, source=provider.source, quality=Quality.BOUNDED)
    return Reading(signal.id, labels, value, source=provider.source, quality=quality)


def _best(quality: Quality, track: EngineTrack | None) -> Quality:
    """What the page's window allows: over a restart, what came after the last scrape before it is lost."""
    return Quality.ESTIMATE if quality is Quality.EXACT and track is not None and track.disturbed else quality


def _jitter(
    provider: Provider, given: EngineInput, labels: Labels, window: Window, quality: Quality, nothing: Reason
) -> Reading:
    intervals = window.increase("token_intervals_total") or 0.0
    if intervals < catalogue.MIN_INTERVALS:
        reason = Reason.TOO_FEW_TOKENS if intervals > 0 else nothing
        return Reading("token_jitter", labels, None, source=provider.source, reason=reason)
    value = evaluate(provider.formula, window)
    if provider.low is None or provider.high is None:
        return Reading("token_jitter", labels, value, source=provider.source, quality=quality)
    low, high = evaluate(provider.low, window), evaluate(provider.high, window)
    grown = given.track.bucket_increase(window, _ITL) if given.track is not None and isinstance(window, Span) else None
    if (grown is not None and occupied(_apart(grown[1])) == 1) or not low:
        # A lower bound of 0 makes the mean of the bounds 0, which would claim a steadiness nobody has seen.
        return Reading("token_jitter", labels, None, None, high, provider.source, provider.quality, Reason.ONE_BUCKET)
    return Reading("token_jitter", labels, value, low, high, provider.source, provider.quality)


def _refused(span: Span | None) -> Reason | None:
    """Why there is no ratio although look-ups were made: none of them could be told from a retry."""
    if span is None or not (span.increase("prefix_queries") or 0.0) > 0:
        return None
    return None if (span.increase("page_table_lookups_total") or 0.0) > 0 else Reason.RETRIES_COUNTED


def _latency(
    latency: _Latency,
    labels: Labels,
    track: EngineTrack | None,
    span: Span | None,
    blocked: Reason | None,
    quality: Quality,
) -> tuple[Reading, Reading]:
    """Mean and 99th percentile, never one without the other."""
    mean_id, p99_id = latency.mean_id, latency.p99_id
    if track is None or span is None:
        return _neither(mean_id, p99_id, labels, blocked or Reason.NO_SOURCE)
    if track.shape.buckets[latency.histogram] is None and latency.name == "tpot":
        # Before 0.11 the mean interval is the nearest thing to the time per output token.
        latency, quality = _LATENCY["itl"], Quality.PROXY
    if latency.name not in track.shape.present:
        return _neither(mean_id, p99_id, labels, Reason.NO_SOURCE)
    first, final = span.first, span.final
    count = final[latency.observed] - first[latency.observed]
    if count <= 0:
        return _neither(mean_id, p99_id, labels, Reason.IDLE)
    mean = (final[latency.summed] - first[latency.summed]) / count
    shown = Reading(mean_id, labels, mean, None, None, "histogram", quality)
    grown = track.bucket_increase(span, latency.histogram)
    if grown is None:
        return shown, Reading(p99_id, labels, None, reason=Reason.BUCKETS_CHANGED)
    low, high = quantile_edges(grown[0], grown[1], 0.99)
    known = Reason.EDGES_ONLY if low != 0.0 else Reason.FIRST_BUCKET
    reason = known if high is not None else Reason.OVERFLOW_BUCKET
    return shown, Reading(p99_id, labels, None, low, high, "histogram", Quality.BOUNDED, reason)


def _neither(mean_id: str, p99_id: str, labels: Labels, reason: Reason) -> tuple[Reading, Reading]:
    return Reading(mean_id, labels, None, reason=reason), Reading(p99_id, labels, None, reason=reason)


def _requests(
    given: EngineInput, labels: Labels, span: Span | None, blocked: Reason | None, exact: Quality
) -> list[Reading]:
    track = given.track
    readings = []
    for raw in ("running", "waiting", "kv_usage"):
        value = track.gauge(raw) if track is not None else None
        if value is not None and track is not None and track.verdict is not Verdict.INCONSISTENT:
            readings.append(Reading(raw, labels, value, None, None, "vllm", Quality.EXACT))
        else:
            readings.append(Reading(raw, labels, None, reason=given.absent or _no_gauge(track, raw, value)))
    for signal, column, raw in _RATES:
        if track is not None and raw not in track.shape.present:
            readings.append(Reading(signal, labels, None, reason=Reason.NO_SOURCE))
        elif span is None:
            readings.append(Reading(signal, labels, None, reason=blocked or Reason.NO_SOURCE))
        else:
            rate = (span.final[column] - span.first[column]) / span.seconds
            readings.append(Reading(signal, labels, rate, None, None, "vllm", exact))
    readings.append(_unmatched(labels, track, span, blocked))
    return readings


def _no_gauge(track: EngineTrack | None, raw: str, value: float | None) -> Reason:
    if track is None or not track.shape.has(raw):
        return Reason.NO_SOURCE
    return Reason.OUT_OF_RANGE if value is None else Reason.INCONSISTENT


def _unmatched(labels: Labels, track: EngineTrack | None, span: Span | None, blocked: Reason | None) -> Reading:
    """Prompt tokens in the engine's total that no finished request accounts for: aborted ones (vLLM issue 55634), which
    is why ratios use one family of counters only. While requests run, theirs are among them, or older ones' are not.
    """
    if track is None or span is None or not track.shape.has("request_prompt_tokens"):
        return Reading("prompt_tokens_unmatched", labels, None, reason=blocked or Reason.NO_SOURCE)
    unmatched = (span.increase("prompt_tokens") or 0.0) - (span.increase("request_prompt_tokens") or 0.0)
    quality = Quality.ESTIMATE if track.gauge("running") or unmatched < 0 else _best(Quality.EXACT, track)
    return Reading("prompt_tokens_unmatched", labels, max(0.0, unmatched), source="vllm", quality=quality)


def _apart(cumulative: list[float]) -> list[float]:
    return [cumulative[0], *(b - a for a, b in pairwise(cumulative))]
