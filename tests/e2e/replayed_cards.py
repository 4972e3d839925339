"""``ufwatch`` with replayed cards in NVML's place: ``python -m tests.e2e.replayed_cards CARDS.json run --config …``.

Every card plays the recorded H200 of :mod:`ufwatch.sources.replay`. The file says which cards there are, how busy each
is against the recording, and which values differ; it is read at every poll, so that whoever writes it moves the cards.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ufwatch import assemble
from ufwatch.cardwatch import Gpus
from ufwatch.cli.main import main
from ufwatch.clock import Clock
from ufwatch.config import Config
from ufwatch.decode.gpu import CardId, CardSnapshot, GpuSnapshot
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.replay import GpuReplay

MEMORY_BYTES = 150_754_820_096
"""Of the recorded card."""
_RESERVED, _IDLE = 0.93, 0.004
"""Shares of a card's memory: what a vLLM takes beforehand at its defaults, and what a driver alone takes."""
_REQUESTS_AT_FULL_PACE = 3
"""In flight at once where the card is as busy as in the recording."""
_ACTIVITY = ("sm_utilization_ratio", "gpu_busy_ratio")


@dataclass(frozen=True)
class Card:
    """One card. ``load`` scales the recorded activity; ``values`` replace recorded ones."""

    gpu: str
    load: float = 0.0
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def uuid(self) -> str:
        return f"GPU-replayed-{self.gpu}"


def filled(share: float) -> dict[str, float]:
    """The values of a card of whose memory this share is used."""
    return {"memory_used_bytes": round(share * MEMORY_BYTES)}


def write_cards(file: Path, cards: Iterable[Card]) -> None:
    """Replaces the file at once, so that no poll sees half of it."""
    beside = file.with_suffix(".tmp")
    beside.write_text(json.dumps([asdict(card) for card in cards]), encoding="utf-8")
    os.replace(beside, file)


def server_and_idle(in_flight: int) -> tuple[Card, Card]:
    """A card that a vLLM fills and uses as its requests come, and one that nobody uses."""
    used = Card("0", load=in_flight / _REQUESTS_AT_FULL_PACE, values=filled(_RESERVED))
    return used, Card("1", values=filled(_IDLE))


async def follow(file: Path, in_flight: Callable[[], int]) -> None:
    """Moves both cards with the load, once a second, until cancelled."""
    while True:
        write_cards(file, server_and_idle(in_flight()))
        await asyncio.sleep(1.0)


class ReplayedCards:
    """Stands in for the NVML source."""

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file, self._recording = file, GpuReplay(clock)

    async def poll(self, deadline_seconds: float) -> GpuSnapshot:
        """The cards of the file now."""
        recorded = await self._recording.poll(deadline_seconds)
        (card,) = recorded.cards
        wanted = [Card(**one) for one in json.loads(self._file.read_text(encoding="utf-8"))]
        return replace(recorded, cards=tuple(_played(card, one) for one in wanted))

    async def close(self) -> None:
        await self._recording.close()


def _played(recorded: CardSnapshot, card: Card) -> CardSnapshot:
    activity = {name: min(1.0, recorded.values[name] * card.load) for name in _ACTIVITY}
    return replace(
        recorded,
        card=CardId(gpu=card.gpu, uuid=card.uuid),
        name=f"NVIDIA H200 (recorded) {card.gpu}",
        values={**recorded.values, **activity, **card.values},
    )


def _main(file: Path, words: list[str]) -> int:
    def gpus(config: Config, clock: Clock, fetcher: Fetcher) -> Gpus | None:  # noqa: ARG001
        return ReplayedCards(file, clock)

    assemble.gpus = gpus
    return main(words)


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2:]))
