"""One initialisation of NVML: its cards and MIG instances, their events, and beginning again when the driver goes away.

Synchronous, and called from one thread only. Nothing raises: a driver that is missing, busy or replaced is a snapshot
whose health says so, and initialisation is tried again after 1, 2, 4 … 60 s, for ever (a service may start before the
driver, utkuozdemir/nvidia_gpu_exporter#65); until then a poll makes no NVML call at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ufwatch.clock import Clock
from ufwatch.decode.gpu import CardId, CardSnapshot, GpuSnapshot, Xid
from ufwatch.model import UP, Health, Reason
from ufwatch.sources.nvml_cards import Card, read_card
from ufwatch.sources.nvml_fields import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    RESET_REQUIRED,
    SESSION_LOST,
    UNKNOWN,
    Nvml,
    reason_of,
)

BACKOFF_CAP_SECONDS = 60.0

_DETAIL = {
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found: no NVIDIA driver here, or a container without its libraries",
    LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was updated under its library: restart this process (or the machine)",
    NO_PERMISSION: "no permission to use NVML: give this process the GPU devices",
    GPU_IS_LOST: "the card has fallen off the bus",
    RESET_REQUIRED: "the card needs a reset",
    # NVIDIA/nvidia-container-toolkit#48: a systemd reload rewrites the cgroup and takes the devices away.
    UNKNOWN: "NVML answers Unknown Error; a container has probably lost its access to the devices: recreate it",
}
_NO_CARDS = Health(
    up=False, reason=Reason.NO_SOURCE, detail="NVML sees no GPU (in a container: was it started with GPUs?)"
)
_UNLISTED = Health(up=False, reason=Reason.LOST, detail="the card is no longer listed by the driver")


@dataclass(slots=True)
class _Poll:
    """What is collected while the cards are read."""

    cards: list[CardSnapshot] = field(default_factory=list)
    unnamed: list[tuple[int, Health]] = field(default_factory=list)
    """Cards that failed before they could be asked who they are."""
    xids: list[Xid] = field(default_factory=list)


class NvmlSession:
    """Holds what NVML gave us (event sets, GPM buffers) and gives it back."""

    def __init__(self, nvml: Nvml, clock: Clock, *, gpm: bool) -> None:
        self._nvml = nvml
        self._clock = clock
        self._gpm = gpm
        self._ready = False
        self._attempts = 0
        self._retry_at = float("-inf")
        self._down = _NO_CARDS
        self._driver = ""
        self._cards: dict[int, Card] = {}
        self._known: dict[CardId, str] = {}
        """Every card and instance ever seen and not taken away on purpose, with its name."""

    def poll(self) -> GpuSnapshot:
        """Reads everything once."""
        started = self._clock.monotonic()
        if not self._ready and (started < self._retry_at or not self._start(started)):
            return self._as_down(started)
        poll = _Poll()
        try:
            count = self._nvml.nvmlDeviceGetCount()
            for index in range(count):
                self._read_index(index, started, poll)
        except self._nvml.NVMLError as error:
            return self._as_down(started, self._health(error.value, str(error)), poll.xids)
        cards = self._named(poll)
        if not cards:
            return self._as_down(started, _NO_CARDS)
        if not any(card.health.up for card in cards):
            return self._as_down(started, cards[0].health, poll.xids, cards)
        self._attempts = 0
        self._known = {card.card: card.name for card in cards if card.card.uuid}
        return self._snapshot(started, UP, tuple(cards), poll.xids)

    def close(self) -> None:
        """Gives everything back to NVML; harmless when it is gone."""
        for card in self._cards.values():
            card.release()
        self._cards.clear()
        if self._ready:
            self._ready = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return  # the driver went first

    def _start(self, now: float) -> bool:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            self._fail(now, self._health(error.value, str(error)))
            return False
        self._ready = True
        try:
            self._driver = self._nvml.nvmlSystemGetDriverVersion()
        except self._nvml.NVMLError:
            self._driver = ""
        return True

    def _fail(self, now: float, health: Health) -> None:
        self.close()
        self._down = health
        self._retry_at = now + min(BACKOFF_CAP_SECONDS, 2.0 ** min(self._attempts, 10))
        self._attempts += 1

    def _as_down(
        self,
        started: float,
        health: Health | None = None,
        xids: Iterable[Xid] = (),
        cards: Iterable[CardSnapshot] | None = None,
    ) -> GpuSnapshot:
        """A snapshot without values; with ``health``, a new failure that ends this initialisation."""
        if health is not None:
            self._fail(started, health)
        if cards is None:
            cards = (CardSnapshot(card=card, health=self._down, name=name) for card, name in self._known.items())
        return self._snapshot(started, self._down, tuple(cards), xids)

    def _snapshot(
        self, started: float, health: Health, cards: tuple[CardSnapshot, ...], xids: Iterable[Xid]
    ) -> GpuSnapshot:
        now = self._clock.monotonic()
        return GpuSnapshot(
            at_seconds=now,
            health=health,
            driver_version=self._driver,
            cards=cards,
            poll_seconds=now - started,
            xids=tuple(xids),
        )

    def _read_index(self, index: int, now: float, poll: _Poll) -> None:
        card = self._cards.get(index)
        if card is not None:
            # Before the handle: a card that falls off the bus says so (XID 79) and then fails every other call.
            poll.xids += card.heard()
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            if card is None:
                card = Card.meet(self._nvml, index, handle, gpm=self._gpm)
                self._cards[index] = card
            poll.cards += read_card(card, handle, now)
        except self._nvml.NVMLError as error:
            if error.value in SESSION_LOST:
                raise
            health = self._health(error.value, str(error))
            if card is None:
                poll.unnamed.append((index, health))
            else:
                card.forget()
                poll.cards += [CardSnapshot(card=known.id, health=health, name=known.name) for known in card.all_ids()]

    def _named(self, poll: _Poll) -> list[CardSnapshot]:
        """Gives failed and vanished cards the labels they had, so that their series end and do not change."""
        cards = list(poll.cards)
        seen = {card.card.uuid for card in cards}
        gone = {card.uuid: card for card in self._known if not card.mig and card.uuid not in seen}
        for index, health in poll.unnamed:
            card = next((card for card in gone.values() if card.gpu == str(index)), None)
            if card is None:
                cards.append(CardSnapshot(card=CardId(gpu=str(index), uuid=""), health=health))
            else:
                cards += self._known_as_down(gone.pop(card.uuid), health)
        for card in gone.values():
            cards += self._known_as_down(card, _UNLISTED)
        return cards

    def _known_as_down(self, parent: CardId, health: Health) -> list[CardSnapshot]:
        """A card and its instances, under the labels they had."""
        return [
            CardSnapshot(card=card, health=health, name=name)
            for card, name in self._known.items()
            if card.uuid == parent.uuid
        ]

    @staticmethod
    def _health(code: int, text: str) -> Health:
        return Health(up=False, reason=reason_of(code), detail=_DETAIL.get(code, f"NVML: {text}"))
