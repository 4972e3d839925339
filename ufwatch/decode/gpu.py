"""What a poll of the GPUs yields, whoever made it (NVML, a dcgm-exporter, a replay)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ufwatch.model import Health, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CardId:
    """The identity of a card or a MIG instance: the three labels of every GPU series."""

    gpu: str
    """NVML index of the (parent) card, as text."""
    uuid: str
    mig: str = ""
    """UUID of the MIG instance, empty for a whole card."""


class Xid(NamedTuple):
    """One XID error of the driver, as it was read; MIG instances report theirs through the parent card."""

    card: CardId
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSnapshot:
    """One card at one poll: its values, and for each value it lacks, why.

    ``values`` is keyed by field name (see :mod:`ufwatch.gpu_metrics`), in base units: bytes, seconds, hertz, watts,
    joules, celsius, ratios 0–1. A field is in ``values`` or in ``missing``, never in both.
    ``rejected`` counts the sentinel and impossible values refused at this poll.
    """

    card: CardId
    health: Health
    name: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, Reason] = field(default_factory=dict)
    source_of: Mapping[str, str] = field(default_factory=dict)
    """Where a field came from when not plain NVML: ``gpm`` or ``dcgm``."""
    age_seconds: Mapping[str, float] = field(default_factory=dict)
    """How old a value is that was not read at this poll (its getter is slow and runs less often)."""
    rejected: int = 0
    gpu_instance: int | None = None
    """The GPU instance a MIG instance lies in: what a dcgm-exporter calls ``GPU_I_ID``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSnapshot:
    """All cards at one poll. Health is NVML's own; a lost card harms only its own snapshot."""

    at_seconds: float
    """Monotonic time of the poll's end."""
    health: Health
    driver_version: str = ""
    cards: tuple[CardSnapshot, ...] = ()
    poll_seconds: float = 0.0
    xids: tuple[Xid, ...] = ()
    """Each XID error exactly once, those of a poll that came too late included."""
