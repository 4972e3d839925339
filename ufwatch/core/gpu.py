"""From polls of the GPUs to readings and samples: counters from 0, gauges that vanish, and who uses which card.

Pure. What the driver counts since its load is turned into what was counted since we began:

- the first sight of a total is its baseline; a total that falls (driver reload, reset) is a new baseline and adds
  nothing, because a number that once came out too low must not become a burst of errors;
- a counter that is not read stays on the page for three polls and then vanishes; it comes back at the value it had, and
  what was missed is added one poll later, so that ``increase()`` sees it;
- XID errors, refused values and ``gpu_up`` are our own and stay while the card is known: a card that falls off the bus
  says so with an XID, which must outlive its other series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ufwatch import gpu_metrics
from ufwatch.config import TargetConfig
from ufwatch.decode.gpu import CardId, CardSnapshot, GpuSnapshot, Xid
from ufwatch.gpu_metrics import FIELDS, XidClass, xid_class
from ufwatch.model import Labels, Quality, Reading, Reason, Sample
from ufwatch.spec import Kind

KEPT_POLLS = 3
"""How many polls without a value a counter outlives."""

_SM = "sm_utilization_ratio"
_BUSY = "gpu_busy_ratio"
_QUALITY = {
    # Every cycle of every SM is counted between our own two samples: measured within 0.1 points of the truth.
    "gpm": Quality.EXACT,
    # The same counter, but over the exporter's interval (30 s by default) and not ours, and multiplexed with other
    # profiling fields where a card cannot count them all at once.
    "dcgm": Quality.ESTIMATE,
}


@dataclass(frozen=True, slots=True)
class Total:
    """One counter of one card: the driver's last total, ours, and for how many polls it was not read."""

    raw: float
    grown: float = 0.0
    missed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardState:
    """What is remembered of a card between polls."""

    totals: Mapping[str, Total] = field(default_factory=dict)
    xids: Mapping[XidClass, int] = field(default_factory=lambda: dict.fromkeys(XidClass, 0))
    rejected: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """All cards that are known; begin with ``GpuState()``."""

    cards: Mapping[CardId, CardState] = field(default_factory=dict)


def step(state: GpuState, snapshot: GpuSnapshot) -> tuple[GpuState, tuple[Reading, ...], tuple[Sample, ...]]:
    """Folds one poll into the state; the readings and the whole GPU part of the page after it."""
    seen = {card.card: card for card in snapshot.cards}
    # A poll that failed as a whole lists no or few cards; what it does not list is not gone, only not seen.
    known = dict.fromkeys((*state.cards, *seen)) if not snapshot.health.up else dict.fromkeys(seen)
    cards: dict[CardId, CardState] = {}
    readings: list[Reading] = []
    samples: list[Sample] = []
    for card in known:
        shown = seen.get(card) or CardSnapshot(card=card, health=snapshot.health)
        after = _count(state.cards.get(card, CardState()), shown, snapshot.xids)
        cards[card] = after
        readings += _readings(shown)
        samples += _samples(after, shown)
    if not known:
        reason = snapshot.health.reason or Reason.NO_SOURCE
        readings = [
            Reading(signal=signal, labels=(), value=None, reason=reason) for signal in ("sm_utilization", "gpu_busy")
        ]
    return GpuState(cards=cards), tuple(readings), tuple(samples)


def card_labels(card: CardId) -> Labels:
    """The three labels of every GPU series."""
    return (("gpu", card.gpu), ("uuid", card.uuid), ("mig", card.mig))


def _count(before: CardState, shown: CardSnapshot, xids: Iterable[Xid]) -> CardState:
    totals: dict[str, Total] = {}
    for name, spec in FIELDS.items():
        if spec.metric is None or spec.metric.kind is not Kind.COUNTER:
            continue
        old, raw = before.totals.get(name), shown.values.get(name)
        new = _grow(old, raw if shown.health.up else None)
        if new is not None:
            totals[name] = new
    counted = dict(before.xids)
    for xid in xids:
        if xid.card == shown.card:
            counted[xid_class(xid.number)] += 1
    return CardState(totals=totals, xids=counted, rejected=before.rejected + shown.rejected)


def _grow(old: Total | None, raw: float | None) -> Total | None:
    if raw is None:
        return None if old is None else replace(old, missed=old.missed + 1)
    if old is None:
        return Total(raw)
    if old.missed > KEPT_POLLS:
        return replace(old, missed=0)  # back at the value it had; the growth over the gap comes with the next poll
    return Total(raw, old.grown + max(0.0, raw - old.raw))


def _readings(shown: CardSnapshot) -> list[Reading]:
    labels = card_labels(shown.card)
    source = shown.source_of.get(_SM, "gpm")
    found = []
    for signal, name, where, quality in (
        ("sm_utilization", _SM, source, _QUALITY.get(source, Quality.ESTIMATE)),
        ("gpu_busy", _BUSY, "nvml", Quality.PROXY),
    ):
        value = shown.values.get(name) if shown.health.up else None
        if value is None:
            reason = shown.health.reason or shown.missing.get(name, Reason.NO_SOURCE)
            found.append(Reading(signal=signal, labels=labels, value=None, reason=reason))
        else:
            found.append(Reading(signal=signal, labels=labels, value=value, source=where, quality=quality))
    return found


def _samples(state: CardState, shown: CardSnapshot) -> list[Sample]:
    labels = card_labels(shown.card)
    samples = [Sample(gpu_metrics.UP.name, labels, float(shown.health.up))]
    if shown.health.up:
        for name, value in shown.values.items():
            spec = FIELDS[name]
            if spec.metric is not None and spec.metric.kind is Kind.GAUGE:
                extra = (("source", shown.source_of.get(name, "gpm")),) if name == _SM else spec.labels
                samples.append(Sample(spec.metric.name, (*labels, *extra), value))
    for name, total in state.totals.items():
        spec = FIELDS[name]
        if spec.metric is not None and total.missed <= KEPT_POLLS:
            samples.append(Sample(spec.metric.name, (*labels, *spec.labels), total.grown))
    for kind, count in state.xids.items():
        samples.append(Sample(gpu_metrics.XID_ERRORS.name, (*labels, ("class", kind.value)), float(count)))
    samples.append(Sample(gpu_metrics.REJECTED.name, labels, float(state.rejected)))
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetGpus:
    """The cards of one target. ``reason`` is set when there are none; ``unknown`` names entries that match no card."""

    cards: tuple[CardId, ...] = ()
    reason: Reason | None = None
    unknown: tuple[str, ...] = ()


def mapping(targets: Sequence[TargetConfig], cards: Sequence[CardId]) -> Mapping[str, TargetGpus]:
    """Which cards each target uses: those it names, or, for the only target, the only card there is.

    A card cut into instances runs nothing itself, so its only instance counts as the only card. Nothing is guessed
    beyond that: a target mapped to the wrong card would blame the wrong server.
    """
    return {target.name: _cards_of(target, cards, alone=len(targets) == 1) for target in targets}


def _cards_of(target: TargetConfig, cards: Sequence[CardId], *, alone: bool) -> TargetGpus:
    if target.gpus is None:
        whole = [card for card in cards if not card.mig]
        parts = [card for card in cards if card.mig]
        only = parts or whole
        if alone and len(whole) <= 1 and len(only) == 1:
            return TargetGpus(cards=(only[0],))
        return TargetGpus(reason=Reason.NOT_MAPPED)
    found: dict[CardId, None] = {}
    unknown = []
    for entry in target.gpus:
        card = next((card for card in cards if _is(entry, card)), None)
        if card is None:
            unknown.append(entry)
        else:
            found[card] = None
    return TargetGpus(cards=tuple(found), reason=None if found else Reason.NOT_MAPPED, unknown=tuple(unknown))


def _is(entry: str, card: CardId) -> bool:
    """An index or a UUID names a whole card, a MIG UUID an instance; UUIDs are told apart without regard to case."""
    wanted = entry.strip().lower()
    if card.mig:
        return wanted == card.mig.lower()
    return wanted in (card.gpu, card.uuid.lower()) and bool(wanted)


def attributable(mapped: Mapping[str, TargetGpus], models: Mapping[CardId, str]) -> Mapping[str, Reason | None]:
    """Whether a target's step times speak of its cards, and why not; ``models`` are the names of the cards known.

    They do where the target has its cards to itself, and all are of one model: a step takes as long as on the slowest.
    """
    users = Counter(card for gpus in mapped.values() for card in gpus.cards)
    return {target: _unattributable(gpus, users, models) for target, gpus in mapped.items()}


def _unattributable(gpus: TargetGpus, users: Mapping[CardId, int], models: Mapping[CardId, str]) -> Reason | None:
    if not gpus.cards:
        return gpus.reason or Reason.NOT_MAPPED
    if any(card.mig for card in gpus.cards):
        return Reason.MIG
    if any(users[card] > 1 for card in gpus.cards) or len({models.get(card) for card in gpus.cards}) > 1:
        return Reason.NOT_ATTRIBUTABLE
    return None


def mapping_samples(mapped: Mapping[str, TargetGpus]) -> tuple[Sample, ...]:
    """The info series that joins card series to targets."""
    return tuple(
        Sample(gpu_metrics.TARGET_INFO.name, (("target", target), *card_labels(card)), 1.0)
        for target, gpus in mapped.items()
        for card in gpus.cards
    )
