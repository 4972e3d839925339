"""The cards of this machine: NVML, with SM activity from dcgm-exporters where NVML has none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from ufwatch.decode.dcgm import merge
from ufwatch.decode.gpu import GpuSnapshot
from ufwatch.model import Health
from ufwatch.sources.dcgm import DcgmSource

_LOG = logging.getLogger("ufwatch.gpu")
_SM = "sm_utilization_ratio"


class Nvml(Protocol):
    async def poll(self, deadline_seconds: float) -> GpuSnapshot: ...

    async def close(self) -> None: ...


class Cards:
    """Like its NVML source, and asks the exporters only while some card has no SM utilization of its own."""

    def __init__(self, nvml: Nvml, exporters: Sequence[DcgmSource]) -> None:
        self._nvml, self._exporters = nvml, tuple(exporters)
        self._health: list[Health | None] = [None] * len(self._exporters)

    async def poll(self, deadline_seconds: float) -> GpuSnapshot:
        """One poll; an exporter that does not answer leaves the cards as NVML saw them, and is logged once."""
        snapshot = await self._nvml.poll(deadline_seconds)
        if all(_SM in card.values for card in snapshot.cards):
            return snapshot
        answers = await asyncio.gather(*(exporter.poll() for exporter in self._exporters))
        for index, (health, page) in enumerate(answers):
            if health != self._health[index]:
                self._health[index] = health
                _LOG.info("dcgm-exporter", extra={"fields": {"up": health.up, "detail": health.detail}})
            if page is not None:
                snapshot = merge(snapshot, page)
        return snapshot

    async def close(self) -> None:
        """Ends NVML's thread."""
        await self._nvml.close()
