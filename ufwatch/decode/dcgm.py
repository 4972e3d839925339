"""SM activity from the page of a dcgm-exporter, for cards that have no GPM (before Hopper).

Pure. Only ``DCGM_FI_PROF_SM_ACTIVE`` is read: everything else NVML says better. The exporter does not serve it unless
its operator adds it to the counters file (NVIDIA/dcgm-exporter#352), and consumer cards have no profiling fields at all
(NVIDIA/dcgm-exporter#152).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ufwatch.decode.gpu import CardSnapshot, GpuSnapshot
from ufwatch.gpu_metrics import accept
from ufwatch.model import Reason

_FIELD = "sm_utilization_ratio"
_LINE = re.compile(
    rb'^DCGM_FI_PROF_SM_ACTIVE\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\}[ \t]++([^ \t\r\n]++)'
    rb"(?:[ \t]++-?\d++)?+[ \t]*+\r?$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]*+)\s*+=\s*+"((?:[^"\\]++|\\.)*+)"')
"""Possessive throughout, and no name begins within another: a line of rubbish must not cost its length squared."""
_STEADY = frozenset({Reason.NOT_SUPPORTED, Reason.NO_SOURCE, Reason.PERMISSION, Reason.MIG})
"""Why GPM has nothing and will not have it at the next poll either. A pair that warms up, or a moment's failure, is
left alone: each change of source starts a new series."""


class DcgmKey(NamedTuple):
    """A card, or a GPU instance of it (``GPU_I_ID``); UUIDs in lower case."""

    uuid: str
    gpu_instance: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmPage:
    """SM activity by card, as a ratio."""

    sm_active: Mapping[DcgmKey, float] = field(default_factory=dict)
    rejected: int = 0
    """Blanks (kept after an XID, NVIDIA/DCGM#202), impossible values and lines without a UUID."""


def decode(body: bytes) -> DcgmPage:
    """Tolerant: what is not understood is not there. The first of several equal keys (one per pod) is taken."""
    found: dict[DcgmKey, float] = {}
    rejected = 0
    for match in _LINE.finditer(body):
        labels = dict(_LABEL.findall(match[1].decode("utf-8", "replace")))
        uuid = labels.get("UUID") or labels.get("uuid")
        instance = labels.get("GPU_I_ID", "")
        value = _ratio(match[2])
        if not uuid or value is None or (instance and not instance.isdecimal()):
            rejected += 1
            continue
        found.setdefault(DcgmKey(uuid.lower(), int(instance) if instance else None), value)
    return DcgmPage(sm_active=found, rejected=rejected)


def _ratio(text: bytes) -> float | None:
    try:
        return accept(_FIELD, float(text))
    except ValueError:
        return None


def merge(snapshot: GpuSnapshot, page: DcgmPage) -> GpuSnapshot:
    """Fills in SM utilization where NVML has none and will have none; a lost card stays lost."""
    return replace(snapshot, cards=tuple(_fill(card, page) for card in snapshot.cards))


def _fill(card: CardSnapshot, page: DcgmPage) -> CardSnapshot:
    if not card.health.up or card.missing.get(_FIELD) not in _STEADY:
        return card
    value = page.sm_active.get(DcgmKey(card.card.uuid.lower(), card.gpu_instance))
    if value is None:
        return card
    return replace(
        card,
        values={**card.values, _FIELD: value},
        missing={name: reason for name, reason in card.missing.items() if name != _FIELD},
        source_of={**card.source_of, _FIELD: "dcgm"},
    )
