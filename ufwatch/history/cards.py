"""Each target's cards, watched for ageing: a stretch a minute, while their steps can be told from anybody else's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ufwatch.core.ageing import Ageing, Sample
from ufwatch.core.continuity import Verdict
from ufwatch.core.gpu import TargetGpus, attributable, card_labels
from ufwatch.core.steps import Stretch
from ufwatch.core.target import TargetReport
from ufwatch.core.track import EngineTrack
from ufwatch.decode.gpu import CardId, GpuSnapshot
from ufwatch.decode.vllm import EngineShape
from ufwatch.gpu_metrics import AGEING_DRIFT
from ufwatch.history.store import JOINT
from ufwatch.model import Quality, Reading, Reason, Samples

SIGNAL = "gpu_ageing_drift"
_COMPUTED = frozenset({"num_gpu_blocks", "num_cpu_blocks", "kv_cache_size_tokens", "kv_cache_max_concurrency"})
"""What the engine works out from the memory that it finds free; it differs from start to start without any change."""

Process = tuple[float | None, float | None]
"""When the engine's process started, and when its counters were last doubtful: another one may have another version."""


class Wanted(NamedTuple):
    """An engine's process whose version is asked for."""

    target: str
    process: Process


class Watched:
    """The cards of one target and the engine on them."""

    def __init__(self, cards: tuple[CardId, ...], ageing: Ageing, now: Callable[[], float]) -> None:
        self.cards, self.ageing = cards, ageing
        self.process: Process | None = None
        self.version: str | None = None
        """What the engine's process is, by :meth:`CardBook.identified`; None until that is known."""
        self.asked: Process | None = None
        """The process that was asked about last, so that one that does not say is left alone for a while."""
        self.blocked: Reason | None = Reason.WARMING_UP
        """Why nothing can be learned now."""
        self._now = now
        self._shape: EngineShape | None = None
        self._group = ""
        self._stretch: Stretch | None = None

    def scraped(self, report: TargetReport, at_seconds: float) -> None:
        """Takes one look at the target."""
        shown = [(engine.track, engine.fresh) for engine in report.engines if engine.track is not None]
        if len(shown) != 1:
            # Which engine is on which card is not known.
            self.blocked = Reason.NOT_ATTRIBUTABLE if shown else report.reason or Reason.NO_SOURCE
            self._stretch = None
            return
        ((track, fresh),) = shown
        if not fresh or track.verdict is not Verdict.CONTINUES or not self._recognised(track):
            self._stretch = None
            return
        if self._stretch is None:
            self._stretch = Stretch(track, at_seconds)
        elif self._stretch.step(track, at_seconds):
            step = self._stretch.end(track)
            self._stretch = Stretch(track, at_seconds)
            if step is not None:
                now = self._now()
                self.ageing.add(Sample(now, self._group, *step))
                self.ageing.evaluate(now)

    def _recognised(self, track: EngineTrack) -> bool:
        """Whether the engine is the one that the stretch began with, and known by version and flags."""
        process = track.start_time, track.disturbed_at
        if process != self.process:
            self.process, self.version, self.asked = process, None, None
        shape = track.shape
        if not {"itl", "engine_steps", "running", "kv_usage"} <= shape.present:
            self.blocked = Reason.NO_SOURCE
            return False
        if self.version is None:
            self.blocked, self._shape = Reason.NO_SOURCE if self.asked == process else Reason.WARMING_UP, None
            return False
        self.blocked = None
        if shape is not self._shape:
            group = engine_group(self.version, shape)
            if group != self._group:
                self._stretch = None
            self._shape, self._group = shape, group
        return True

    def polled(self, shown: Mapping[CardId, Mapping[str, float]]) -> None:
        """Takes one poll of the cards that answered."""
        if self._stretch is not None:
            self._stretch.climate.polled(shown.get(card) for card in self.cards)


def engine_group(version: str, shape: EngineShape) -> str:
    """A digest of what an engine is: its version and command line, its model, the families and edges of its page, and
    the flags that the page tells. Steps of two groups are never compared."""
    flags = sorted((key, value) for key, value in shape.cache.items() if key not in _COMPUTED)
    edges = [buckets.edges if buckets is not None else None for buckets in shape.buckets]
    told = json.dumps([version, shape.model_name, sorted(shape.present), edges, flags])
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


class CardBook:
    """The cards of every target. For the event loop's thread only. ``now`` is the Unix time that the books go by."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.sets: dict[str, Ageing] = {}
        """By the UUIDs of cards that work together; every set ever known."""
        self._now = now
        self._watched: dict[str, Watched] = {}
        self._reasons: Mapping[str, Reason | None] = {}
        self._up: frozenset[CardId] = frozenset()

    def mapped(self, mapped: Mapping[str, TargetGpus], models: Mapping[CardId, str]) -> None:
        """Takes over which cards each target has; what did not change goes on untouched."""
        self._reasons = attributable(mapped, models)
        before, self._watched = self._watched, {}
        for target, reason in self._reasons.items():
            cards = mapped[target].cards
            if reason is None:
                same = before.get(target)
                kept = same if same is not None and same.cards == cards else Watched(cards, self._of(cards), self._now)
                self._watched[target] = kept

    def _of(self, cards: tuple[CardId, ...]) -> Ageing:
        return self.sets.setdefault(JOINT.join(sorted(card.uuid for card in cards)), Ageing())

    def scraped(self, report: TargetReport, at_seconds: float) -> None:
        """Takes one look at a target; of one without cards of its own it costs one look into a dictionary."""
        watched = self._watched.get(report.name)
        if watched is not None:
            watched.scraped(report, at_seconds)

    def polled(self, snapshot: GpuSnapshot) -> None:
        """Takes one poll of all cards."""
        if self._watched:
            shown = {card.card: card.values for card in snapshot.cards if card.health.up}
            self._up = frozenset(shown)
            for watched in self._watched.values():
                watched.polled(shown)

    def wanted(self) -> Iterator[Wanted]:
        """Engines whose version is not known and was not asked for yet."""
        for target, watched in self._watched.items():
            if watched.process is not None and watched.version is None and watched.asked != watched.process:
                yield Wanted(target, watched.process)

    def identified(self, wanted: Wanted, version: str | None) -> None:
        """What an engine's process said; None where it did not."""
        watched = self._watched.get(wanted.target)
        if watched is not None and watched.process == wanted.process:
            watched.asked, watched.version = wanted.process, version

    def ask_again(self) -> None:
        """Engines that did not say their version are asked once more."""
        for watched in self._watched.values():
            if watched.version is None:
                watched.asked = None

    def evaluate(self) -> None:
        """Lets stretches of over an hour ago go."""
        now = self._now()
        for ageing in self.sets.values():
            if ageing.recent:
                ageing.evaluate(now)

    def forget(self, sets: frozenset[str]) -> None:
        """References of these cards begin anew."""
        for cards in sets:
            fresh = self.sets[cards] = Ageing()
            for watched in self._watched.values():
                if JOINT.join(sorted(card.uuid for card in watched.cards)) == cards:
                    watched.ageing = fresh

    def samples(self) -> Samples:
        """The drift of every card that answers, where it is known; cards that work together share theirs."""
        samples = Samples()
        for watched in self._watched.values():
            ratio = watched.ageing.drift.ratio
            if ratio is not None:
                for card in watched.cards:
                    if card in self._up:
                        samples.add(AGEING_DRIFT.name, card_labels(card), ratio)
        return samples

    def readings(self, target: str) -> tuple[Reading, ...]:
        """The drift of each of a target's cards, or why there is none."""
        watched = self._watched.get(target)
        if watched is None:
            return (Reading(SIGNAL, (), None, reason=self._reasons.get(target, Reason.NO_SOURCE)),)
        drift = watched.ageing.drift
        found = []
        for card in watched.cards:
            labels = card_labels(card)
            if drift.ratio is None:
                reason = watched.blocked or drift.reason
                found.append(Reading(SIGNAL, labels, None, source="history", reason=reason))
            elif card not in self._up:
                found.append(Reading(SIGNAL, labels, None, source="history", reason=Reason.STALE))
            else:
                found.append(Reading(SIGNAL, labels, drift.ratio, source="history", quality=Quality.ESTIMATE))
        return tuple(found)
