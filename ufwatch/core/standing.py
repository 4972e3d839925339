"""Where an objective stands: what is left of its budget, how fast it goes, when it is gone. Floor 2: pure."""

from __future__ import annotations

from typing import Any

from ufwatch.config import Objective
from ufwatch.core.budget import WINDOWS, Account, Bounds, burn, exhaustion_seconds, remaining

_PACE = ("1h", "6h", "3d")
"""Whose burn the time to exhaustion is told by: the first window that holds an event."""


def standing(objective: Objective, account: Account, at_wall: float) -> dict[str, Any]:
    """One JSON object. Low and high bound the truth; without an event every number is null and the state ``no_data``.

    ``state`` is ``spent`` where the budget is surely gone, ``uncertain`` where it may be, else ``within``.
    """
    account.hours.advance(at_wall)
    tally = account.hours.total
    left = remaining(tally, objective.ratio)
    burns = {name: burn(account.over(seconds, at_wall), objective.ratio) for name, seconds in WINDOWS.items()}
    pace = next((name for name in _PACE if burns[name] is not None), None)
    at = burns[pace] if pace is not None else None
    soonest = latest = None
    if left is not None and at is not None:
        window = 86400.0 * objective.window_days
        soonest = exhaustion_seconds(left.low, at.high, window)
        latest = exhaustion_seconds(left.high, at.low, window)
    return {
        "slo": objective.id,
        "metric": objective.metric,
        "threshold_seconds": objective.threshold_seconds,
        "objective": objective.ratio,
        "window_days": objective.window_days,
        "state": state(left),
        "events": tally.events,
        "bad_low": tally.low,
        "bad_high": tally.high,
        "unknown": tally.unknown,
        "remaining_low": None if left is None else left.low,
        "remaining_high": None if left is None else left.high,
        "burn": {name: None if b is None else {"low": b.low, "high": b.high} for name, b in burns.items()},
        "exhausted_soonest_seconds": soonest,
        "exhausted_latest_seconds": latest,
        "exhaustion_by": pace,
    }


def state(left: Bounds | None) -> str:
    """In one word: no data is never within the budget."""
    if left is None:
        return "no_data"
    if left.high <= 0:
        return "spent"
    return "uncertain" if left.low <= 0 else "within"
