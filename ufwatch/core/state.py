"""What an engine is doing, and whether memory trips the breaker: small rules over time, each a pure step."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ufwatch.core.continuity import Verdict
from ufwatch.core.track import STALLED_AFTER_SECONDS, EngineTrack
from ufwatch.decode.gpu import CardId, GpuSnapshot
from ufwatch.model import EngineState, Health, Reason

MISSED_BEFORE_DOWN = 3
"""A refused connection is down at once; a time-out or a cut body only when it has happened three times in a row."""

BREAKER_OVER_RATIO = 0.92
BREAKER_HOLD_SECONDS = 5.0


def serving_state(track: EngineTrack, at_seconds: float) -> EngineState:
    """The state of an engine whose page has just been read."""
    if track.gauge("awake") == 0.0:
        return EngineState.ASLEEP
    counts_tokens = track.shape.has("generation_tokens") or track.shape.has("prompt_tokens")
    if counts_tokens and track.frozen_since is not None and at_seconds - track.frozen_since >= STALLED_AFTER_SECONDS:
        return EngineState.STALLED
    if track.busy:
        return EngineState.SERVING
    return EngineState.STARTING if track.verdict is Verdict.RESTART_SEEN else EngineState.IDLE


def silent_state(
    *,
    before: EngineState | None,
    served: bool,
    health: Health,
    missed: int,
    waited_seconds: float,
    grace_seconds: float,
) -> EngineState | None:
    """The state of an engine that is not on a page: ``missed`` scrapes in a row, ``waited_seconds`` since the start.

    ``starting`` is only for what has never served; a target that served and is gone is ``down``.
    """
    if not served:
        return EngineState.STARTING if waited_seconds < grace_seconds else EngineState.DOWN
    if health.reason is Reason.RESOURCES:
        return before  # ours ran out, which says nothing of the engine
    if health.reason is Reason.CONNECT or missed >= MISSED_BEFORE_DOWN:
        return EngineState.DOWN
    return before


class Breaker(NamedTuple):
    """One kind of memory breaker. ``over_since`` is when memory was first seen over the line in an unbroken row."""

    open: bool = False
    trips: int = 0
    over_since: float | None = None
    decided: bool = False
    known: bool = False
    """Whether it was ever decided: until then there is nothing to show, not a breaker that is closed."""

    def step(self, over: bool | None, at_seconds: float) -> Breaker:
        """The breaker after one more look; ``over`` None is not decided, which never opens and never keeps it open."""
        if over is None:
            return Breaker(trips=self.trips, known=self.known)
        if not over:
            return Breaker(trips=self.trips, decided=True, known=True)
        since = self.over_since if self.over_since is not None else at_seconds
        opened = at_seconds - since >= BREAKER_HOLD_SECONDS
        return Breaker(opened, self.trips + (opened and not self.open), since, decided=True, known=True)


def kv_over(track: EngineTrack) -> bool | None:
    """Whether the KV cache is over the line with requests waiting; None when the page does not say."""
    usage, waiting = track.gauge("kv_usage"), track.gauge("waiting")
    return None if usage is None or waiting is None else usage > BREAKER_OVER_RATIO and waiting > 0


def device_over(snapshot: GpuSnapshot, cards: Collection[CardId]) -> bool | None:
    """Whether any of these cards is over the line; None when none of them can be read."""
    known = [
        used > BREAKER_OVER_RATIO * total
        for shown in snapshot.cards
        if shown.card in cards
        and (used := shown.values.get("memory_used_bytes")) is not None
        and (total := shown.values.get("memory_total_bytes")) is not None
    ]
    return any(known) if known else None
