"""A card as NVML shows it: its reader, its GPM pair, its XID events, and the MIG instances it is cut into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ufwatch.decode.gpu import CardId, CardSnapshot, Xid
from ufwatch.gpu_metrics import FIELDS
from ufwatch.model import UP, Reason
from ufwatch.sources.nvml_fields import (
    CARD_LOST,
    GETTERS,
    GPM_YIELDS,
    MIG_GETTERS,
    NO_PERMISSION,
    SESSION_LOST,
    UNKNOWN,
    UTILIZATION,
    Handle,
    Nvml,
)
from ufwatch.sources.nvml_gpm import GpmPair
from ufwatch.sources.nvml_reader import SLOW_SECONDS, DeviceReader, Reading

_XID_EVENT = 0x8
_MOST_EVENTS = 64
"""Events read from one card in one poll; an XID storm must not hold up the other cards."""
_MOST_INSTANCES = 8
_MIG_SILENT: Mapping[str, Reason] = {UTILIZATION.name: Reason.MIG}
"""NVML documents utilization as unavailable on a card in MIG mode; some drivers answer 0 (NVIDIA/dcgm-exporter#216)."""
_SM = "sm_utilization_ratio"
_GPM_FIELDS = tuple(item.field for item in GPM_YIELDS.values())


class Known(NamedTuple):
    """The labels of something that may fail."""

    id: CardId
    name: str


@dataclass(slots=True)
class Instance:
    """One MIG instance (a compute instance within a GPU instance)."""

    id: CardId
    name: str
    handle: Handle
    gpu_instance: int
    reader: DeviceReader
    gpm: GpmPair | None


@dataclass(slots=True)
class Card:
    """What is kept of a card between polls; gone with the NVML session it belongs to."""

    nvml: Nvml
    id: CardId
    name: str
    reader: DeviceReader
    handle: Handle
    gpm: GpmPair | None = None
    gpm_wanted: bool = True
    events: Any = None
    mig_on: bool = False
    mig_read_at: float | None = None
    instances: dict[str, Instance] = field(default_factory=dict)

    @classmethod
    def meet(cls, nvml: Nvml, index: int, handle: Handle, *, gpm: bool) -> Card:
        """A card seen for the first time in this session. Raises NVML's error if it cannot even be named."""
        card = cls(
            nvml=nvml,
            id=CardId(gpu=str(index), uuid=nvml.nvmlDeviceGetUUID(handle)),
            name=_text(nvml, handle),
            reader=DeviceReader(nvml, GETTERS),
            handle=handle,
            gpm_wanted=gpm,
        )
        if gpm:
            card.gpm = GpmPair(nvml, card.gpm_supported, lambda buffer: nvml.nvmlGpmSampleGet(card.handle, buffer))
        card._listen()
        return card

    def gpm_supported(self) -> bool:
        return bool(self.nvml.nvmlGpmQueryDeviceSupport(self.handle).isSupportedDevice)

    def all_ids(self) -> list[Known]:
        """The card and its instances."""
        return [Known(self.id, self.name), *(Known(part.id, part.name) for part in self.instances.values())]

    def heard(self) -> list[Xid]:
        """The XID errors since the last call; a wait of 0 ms only collects what is there.

        Each card has its own event set: an event then needs no look-up of its sender, which a lost card may refuse.
        """
        found: list[Xid] = []
        while self.events is not None and len(found) < _MOST_EVENTS:
            try:
                event = self.nvml.nvmlEventSetWait_v2(self.events, 0)
            except self.nvml.NVMLError as error:
                if error.value in SESSION_LOST and not found:
                    raise
                break  # TIMEOUT: no more; anything else will show in the other calls
            if event.eventType == _XID_EVENT:
                found.append(Xid(self.id, int(event.eventData)))
        return found

    def forget(self) -> None:
        """After a failure nothing may be averaged over the gap."""
        for pair in self._pairs():
            pair.free()

    def release(self) -> None:
        """Gives buffers and events back."""
        self.forget()
        events, self.events = self.events, None
        if events is not None:
            _quietly(self.nvml, self.nvml.nvmlEventSetFree, events)

    def refresh_instances(self, now: float) -> None:
        """Looks for MIG instances every 30 s: asking costs 0.3 ms, and an administrator may cut the card anew."""
        if self.mig_read_at is not None and now - self.mig_read_at < SLOW_SECONDS:
            return
        self.mig_read_at = now
        found = {instance.id.mig: instance for instance in self._instances()}
        for uuid in self.instances.keys() - found.keys():
            pair = self.instances[uuid].gpm
            if pair is not None:
                pair.free()
        self.instances = found

    def _pairs(self) -> list[GpmPair]:
        pairs = (self.gpm, *(instance.gpm for instance in self.instances.values()))
        return [pair for pair in pairs if pair is not None]

    def _listen(self) -> None:
        try:
            events = self.nvml.nvmlEventSetCreate()
        except (self.nvml.NVMLError, AttributeError):
            return
        try:
            self.nvml.nvmlDeviceRegisterEvents(self.handle, _XID_EVENT, events)
        except self.nvml.NVMLError:
            _quietly(self.nvml, self.nvml.nvmlEventSetFree, events)
            return
        self.events = events

    def _instances(self) -> list[Instance]:
        mode_on = False
        try:
            look = mode_on = self.nvml.nvmlDeviceGetMigMode(self.handle)[0] == 1
        except self.nvml.NVMLError as error:
            if error.value in SESSION_LOST or error.value in CARD_LOST:
                raise
            # In a pod that owns one slice, the parent refuses everything, but the slice can be found.
            look = error.value == NO_PERMISSION
        found: list[Instance] = []
        for position in range(_MOST_INSTANCES if look else 0):
            try:
                found.append(self._instance(self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, position)))
            except self.nvml.NVMLError as error:
                if error.value in SESSION_LOST or error.value in CARD_LOST:
                    raise
        self.mig_on = mode_on or bool(found)
        return found

    def _instance(self, handle: Handle) -> Instance:
        uuid = self.nvml.nvmlDeviceGetUUID(handle)
        gpu_instance = self.nvml.nvmlDeviceGetGpuInstanceId(handle)
        before = self.instances.get(uuid)
        if before is not None and before.gpu_instance == gpu_instance:
            before.handle = handle
            return before
        pair = None
        if self.gpm_wanted:
            pair = GpmPair(
                self.nvml,
                self.gpm_supported,
                lambda buffer: self.nvml.nvmlGpmMigSampleGet(self.handle, gpu_instance, buffer),
            )
        return Instance(
            id=CardId(gpu=self.id.gpu, uuid=self.id.uuid, mig=uuid),
            name=_text(self.nvml, handle),
            handle=handle,
            gpu_instance=gpu_instance,
            reader=DeviceReader(self.nvml, MIG_GETTERS),
            gpm=pair,
        )


def read_card(card: Card, handle: Handle, now: float) -> list[CardSnapshot]:
    """The card and its instances at this poll. Raises NVML's error where the card or the driver is gone."""
    card.handle = handle
    card.refresh_instances(now)
    reading = card.reader.read(handle, now, _MIG_SILENT if card.mig_on else {})
    if reading.unknown and not reading.answered:
        raise card.nvml.NVMLError(UNKNOWN)
    _read_gpm(card.gpm, now, reading)
    cards = [_snapshot(card.id, card.name, reading)]
    shares = Counter(instance.gpu_instance for instance in card.instances.values())
    for instance in card.instances.values():
        part = instance.reader.read(instance.handle, now, {})
        if shares[instance.gpu_instance] > 1:
            # GPM measures a whole GPU instance; how its compute instances share it cannot be told.
            part.lack(_GPM_FIELDS, Reason.MIG)
        else:
            _read_gpm(instance.gpm, now, part)
        part.lack(tuple(FIELDS), Reason.MIG)
        cards.append(_snapshot(instance.id, instance.name, part, instance.gpu_instance))
    return cards


def _read_gpm(pair: GpmPair | None, now: float, reading: Reading) -> None:
    if pair is None:
        reading.lack(_GPM_FIELDS, Reason.NO_SOURCE)
        return
    metrics, reason, age = pair.read(now)
    if metrics is None:
        reading.lack(_GPM_FIELDS, reason)
        return
    part = Reading()
    for metric, answer in metrics.items():
        part.take(GPM_YIELDS[metric], answer, "gpm")
    reading.carry(part, age)
    reading.rejected += part.rejected if age == 0.0 else 0


def _snapshot(card: CardId, name: str, reading: Reading, gpu_instance: int | None = None) -> CardSnapshot:
    return CardSnapshot(
        card=card,
        health=UP,
        name=name,
        values=reading.values,
        missing=reading.missing,
        source_of=reading.source_of,
        age_seconds=reading.age_seconds,
        rejected=reading.rejected,
        gpu_instance=gpu_instance,
    )


def _text(nvml: Nvml, handle: Handle) -> str:
    try:
        return str(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        return ""


def _quietly(nvml: Nvml, call: Any, argument: Any) -> None:
    try:
        call(argument)
    except nvml.NVMLError:
        return
