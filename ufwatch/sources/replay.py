"""Sources that play back what was recorded: a GPU for machines without one, and pages of a server."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

from ufwatch.clock import Clock
from ufwatch.decode.gpu import CardId, CardSnapshot, GpuSnapshot
from ufwatch.model import UP, Reason

NAME = "NVIDIA H200 (recorded)"
UUID = "GPU-recorded-h200"
_ROW_SECONDS = 1.0
_NOT_RECORDED = ("pcie_rx_bytes_per_second", "pcie_tx_bytes_per_second")


class GpuReplay:
    """An H200 under a real vLLM's load, recorded once a second and played in a loop; its name and uuid say so.

    It stands in for the NVML source. Energy is the recorded power over the time played, so that the counter moves.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin = clock.monotonic()
        record: Any = json.loads(files("ufwatch.sim").joinpath("data", "h200.json").read_text(encoding="utf-8"))
        self._driver_version: str = record["driver_version"]
        self._steady: Mapping[str, float] = {name: float(value) for name, value in record["steady"].items()}
        self._energy: float = record["energy_joules"]
        self._rows: list[tuple[float, float]] = [(sm, busy) for sm, busy in record["rows"]]

    async def poll(self, deadline_seconds: float) -> GpuSnapshot:  # noqa: ARG002
        """The card now. Never fails and never waits."""
        now = self._clock.monotonic()
        played = now - self._begin
        sm_utilization, busy = self._rows[int(played / _ROW_SECONDS) % len(self._rows)]
        values = {
            "sm_utilization_ratio": sm_utilization,
            "gpu_busy_ratio": busy,
            "energy_joules": self._energy + self._steady["power_watts"] * played,
            **self._steady,
        }
        card = CardSnapshot(
            card=CardId(gpu="0", uuid=UUID),
            health=UP,
            name=NAME,
            values=values,
            missing=dict.fromkeys(_NOT_RECORDED, Reason.NO_SOURCE),
            source_of={"sm_utilization_ratio": "gpm"},
        )
        return GpuSnapshot(at_seconds=now, health=UP, driver_version=self._driver_version, cards=(card,))

    async def close(self) -> None:
        """Nothing is held."""


class PageReplay:
    """Recorded pages with the times they were taken at, in seconds on any clock. ValueError unless times rise."""

    def __init__(self, pages: Iterable[tuple[float, bytes]]) -> None:
        self._pages = tuple(pages)
        self._times = [at for at, _ in self._pages]
        if any(later <= earlier for earlier, later in zip(self._times, self._times[1:], strict=False)):
            raise ValueError("recorded pages must be in order of time")
        self._next = 0

    @property
    def remaining(self) -> int:
        """Pages not yet handed out."""
        return len(self._pages) - self._next

    def take(self) -> tuple[float, bytes] | None:
        """The next page with its time; None after the last."""
        if not self.remaining:
            return None
        page = self._pages[self._next]
        self._next += 1
        return page

    def at(self, seconds: float) -> bytes | None:
        """The page in force at a time: the newest not taken after it; None before the first."""
        position = bisect_right(self._times, seconds)
        return self._pages[position - 1][1] if position else None
