"""Where objectives stand by what an agent has saved, whether it is running or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ufwatch.config import Objective
from ufwatch.core.budget import Account
from ufwatch.core.standing import standing
from ufwatch.errors import SourceError
from ufwatch.slo.store import FINE, Row, Saved, read_only
from ufwatch.statefile import StoreError


def report(directory: Path, at_wall: float) -> dict[str, Any]:
    """The JSON object of ``/api/v1/slo``, read from ``directory`` as of ``at_wall``. Raises SourceError."""
    rows: list[Row] = []
    try:
        loaded = read_only(directory, rows.append)
    except StoreError as error:
        raise SourceError(str(error)) from None
    objectives = [_objective(saved) for saved in loaded.objectives]
    accounts: dict[str, dict[str, Account]] = {}
    days = {each.id: each.window_days for each in objectives}
    for name in sorted({*loaded.last, *(row.target for row in rows)}):
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


def _objective(saved: Saved) -> Objective:
    metric, _, limit = saved.definition.partition("<=")
    return Objective(
        id=saved.slo,
        metric=metric,
        threshold_seconds=float(limit) if limit else None,
        ratio=saved.ratio,
        window_days=saved.days,
    )
