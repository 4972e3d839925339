"""The JSON of ``once`` and of ``/api/v1/readings``: one object per target, one entry per signal and label set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ufwatch.model import EngineState, Reading, Reason


def reading_json(reading: Reading) -> dict[str, Any]:
    """One entry; an absent value is null and then ``reason`` is set."""
    return {
        "signal": reading.signal,
        "labels": dict(reading.labels),
        "value": reading.value,
        "low": reading.low,
        "high": reading.high,
        "source": reading.source,
        "quality": reading.quality.value if reading.quality is not None else None,
        "reason": reading.reason.value if reading.reason is not None else None,
    }


def target_json(
    name: str, *, up: bool, state: EngineState | None, reason: Reason | None, readings: Iterable[Reading]
) -> dict[str, Any]:
    """One target."""
    return {
        "target": name,
        "up": up,
        "state": state.value if state is not None else None,
        "reason": reason.value if reason is not None else None,
        "signals": [reading_json(reading) for reading in readings],
    }
