"""The cards of this machine: what they show, which target works on which, and what that says of a target."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from ufwatch.clock import Clock
from ufwatch.config import TargetConfig
from ufwatch.core import gpu as core
from ufwatch.core.sources import Life, life_samples
from ufwatch.core.state import device_over
from ufwatch.core.target import TargetReport
from ufwatch.decode.gpu import CardId, GpuSnapshot
from ufwatch.model import Health, Reading, Reason, Sample

_LOG = logging.getLogger("ufwatch.agent")


class Gpus(Protocol):
    """Where card values come from: NVML, or a recording."""

    async def poll(self, deadline_seconds: float) -> GpuSnapshot: ...

    async def close(self) -> None: ...


class CardWatch:
    """Everything remembered of the cards. ``gpus`` is None where none is looked at."""

    def __init__(self, gpus: Gpus | None, clock: Clock) -> None:
        self.readings: tuple[Reading, ...] = ()
        self.snapshot: GpuSnapshot | None = None
        self.mapping: Mapping[str, core.TargetGpus] = {}
        self._gpus = gpus
        self._state = core.GpuState()
        self._life = Life(clock.monotonic(), Health(up=False, reason=Reason.WARMING_UP))

    @property
    def enabled(self) -> bool:
        """Whether cards are to be read at all."""
        return self._gpus is not None

    async def close(self) -> None:
        """Ends what the source holds."""
        if self._gpus is not None:
            await self._gpus.close()

    async def poll(self, deadline_seconds: float) -> tuple[list[Sample], bool]:
        """Looks once; the samples of that, and whether other cards were there than before."""
        assert self._gpus is not None
        snapshot = await self._gpus.poll(deadline_seconds)
        before, self.snapshot = self.snapshot, snapshot
        self._state, self.readings, samples = core.step(self._state, snapshot)
        if self._life.health != snapshot.health:
            reason = snapshot.health.reason.value if snapshot.health.reason is not None else None
            fields = {"up": snapshot.health.up, "reason": reason, "detail": snapshot.health.detail}
            _LOG.info("NVML", extra={"fields": fields})
        for xid in snapshot.xids:
            _LOG.error("XID error", extra={"fields": {"gpu": xid.card.gpu, "uuid": xid.card.uuid, "xid": xid.number}})
        self._life = self._life.seen(snapshot.health, snapshot.at_seconds)
        changed = before is None or [c.card for c in before.cards] != [c.card for c in snapshot.cards]
        return list(samples), changed

    def life(self, at_seconds: float) -> list[Sample]:
        """The samples that say how NVML is, and which target works on which card."""
        return [*core.mapping_samples(self.mapping), *life_samples("", {"nvml": self._life}, at_seconds)]

    def map(self, configs: Sequence[TargetConfig]) -> None:
        """Assigns cards to targets. Those known, so that a failed poll does not undo it."""
        self.mapping = core.mapping(configs, list(self._state.cards))

    def sm_readings(self, target: str) -> tuple[Reading, ...]:
        """SM utilization of each card of a target, or one reading that says why there is none."""
        if self._gpus is None or self.snapshot is None:
            reason = Reason.NO_SOURCE if self._gpus is None else Reason.WARMING_UP
            return (Reading("sm_utilization", (), None, reason=reason),)
        if not self.snapshot.health.up and not self.snapshot.cards:
            return (Reading("sm_utilization", (), None, reason=self.snapshot.health.reason),)
        cards = {core.card_labels(card) for card in self.of(target)}
        if not cards:
            return (Reading("sm_utilization", (), None, reason=Reason.NOT_MAPPED),)
        return tuple(r for r in self.readings if r.signal == "sm_utilization" and r.labels in cards)

    def sm_utilization(self, target: str) -> Reading:
        """The best of :meth:`sm_readings`, for ``signal_available``."""
        readings = self.sm_readings(target)
        known = [reading for reading in readings if reading.value is not None]
        return (known or readings or (Reading("sm_utilization", (), None, reason=Reason.NO_SOURCE),))[0]

    def over(self, target: str, report: TargetReport | None) -> bool | None:
        """The card's memory rule for a target known not to preallocate; None where that is not known."""
        if report is None or self.snapshot is None:
            return None
        shapes = [e.track.shape for e in report.engines if e.track is not None]
        if not shapes or any(not shape.cache or "gpu_memory_utilization" in shape.cache for shape in shapes):
            return None
        return device_over(self.snapshot, self.of(target))

    def of(self, target: str) -> tuple[CardId, ...]:
        """The cards a target is mapped to."""
        mapped = self.mapping.get(target)
        return mapped.cards if mapped is not None else ()

    def unknown(self, target: str) -> tuple[str, ...]:
        """Entries of the target's ``gpus`` that match no card of this machine."""
        mapped = self.mapping.get(target)
        return mapped.unknown if mapped is not None else ()

    def detail(self) -> str:
        """What NVML said when it could not be read; empty while it can."""
        return self.snapshot.health.detail if self.snapshot is not None else ""
