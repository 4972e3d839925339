"""An NVML session over a fake driver, polled on a clock of its own."""

from __future__ import annotations

import math

from tests.sources.fake_nvml import FakeDevice, FakeNvml
from tests.sources.h200 import Calls
from ufwatch.clock import ManualClock
from ufwatch.decode.gpu import CardSnapshot, GpuSnapshot
from ufwatch.sources.nvml_session import NvmlSession

PLAIN: Calls = {
    "utilization_gpu": [50],
    "memory_used": [10],
    "memory_total": [100],
    "memory_reserved": [5],
    "power_mw": [300000],
    "temperature_c": [55],
}


class Bench:
    """A session over a fake driver, and a clock that moves five seconds per poll."""

    def __init__(self, nvml: FakeNvml, *, gpm: bool = True) -> None:
        self.nvml = nvml
        self.clock = ManualClock()
        self.session = NvmlSession(nvml, self.clock, gpm=gpm)

    def poll(self, seconds: float = 5.0) -> GpuSnapshot:
        snapshot = self.session.poll()
        self.clock.advance(seconds)
        self.nvml.poll += 1
        for card in snapshot.cards:
            assert not card.values.keys() & card.missing.keys()
            assert not any(math.isnan(value) or value < 0 for value in card.values.values())
            assert card.health.up or not card.values
        return snapshot

    def card(self, seconds: float = 5.0) -> CardSnapshot:
        (card,) = self.poll(seconds).cards
        return card


def run(*devices: FakeDevice, gpm: bool = True) -> Bench:
    return Bench(FakeNvml(devices), gpm=gpm)
