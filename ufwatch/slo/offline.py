"""Where objectives stand by what an agent has saved, whether it is running or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ufwatch.config import Objective
from ufwatch.core.budget import Account
from ufwatch.core.standing import standing
from ufwatch.errors import SourceError
from ufwatch.slo.store import FINE, Loaded, Row, Saved, read_only
from ufwatch.statefile import StoreError

_GONE_SECONDS = 60.0
"""Every target that is looked at is saved with the others, so that their times are equal."""


def report(directory: Path, at_wall: float) -> dict[str, Any]:
    """The JSON object of ``/api/v1/slo``, read from ``directory`` as of ``at_wall``. Raises SourceError."""
    rows: list[Row] = []
    try:
        loaded = read_only(directory, rows.append)
    except StoreError as error:
        raise SourceError(str(error)) from None
    objectives = [_objective(saved) for saved in loaded.objectives if saved.days]
    gone = _gone(loaded)
    rows = [row for row in rows if row.target not in gone]
    accounts: dict[str, dict[str, Account]] = {}
    days = {each.id: each.window_days for each in objectives}
    for name in sorted({*loaded.last, *(row.target for row in rows)} - gone):
        accounts[name] = {slo: Account(window) for slo, window in days.items()}
    for row in rows:
        if row.slo in days:
            account = accounts[row.target][row.slo]
            (account.fine if row.tier == FINE else account.hours).add(row.start, row.tally)
    targets = [
        {
            "target": name,
            "saved_at": loaded.last[name].wall if name in loaded.last else None,
            "slos": [standing(each, of[each.id], at_wall) for each in objectives],
        }
        for name, of in accounts.items()
    ]
    return {"at": at_wall, "persisted": True, "targets": targets}


def _gone(loaded: Loaded) -> frozenset[str]:
    """Targets that the agent had ceased to look at when it saved last: its configuration names them no more."""
    newest = max((last.wall for last in loaded.last.values()), default=0.0)
    return frozenset(name for name, last in loaded.last.items() if newest - last.wall > _GONE_SECONDS)


def _objective(saved: Saved) -> Objective:
    metric, _, limit = saved.definition.partition("<=")
    return Objective(
        id=saved.slo,
        metric=metric,
        threshold_seconds=float(limit) if limit else None,
        ratio=saved.ratio,
        window_days=saved.days,
    )
