"""Budgets as text, for people: one block per target, one line per objective. Floor 2: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ufwatch.render.table import plain

_WORDS = {"no_data": "no data", "spent": "spent", "uncertain": "may be spent", "within": "within budget"}
_SHOWN = ("5m", "1h", "6h", "3d")
"""The windows whose burn has a column; JSON has all of them."""
_HEAD = (
    "slo",
    "objective",
    "state",
    "budget left",
    *(f"burn {name}" for name in _SHOWN),
    "gone in",
    "events",
    "unknown",
)


def slo_text(document: Mapping[str, Any]) -> str:
    """The document of ``/api/v1/slo``. A pair is the least and the most that a number can be."""
    lines = []
    for target in document["targets"]:
        rows = [_HEAD, *(_row(each) for each in target["slos"])]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines.append(plain(target["target"]))
        lines += ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        if target.get("unrecovered"):
            lines.append("  Requests of a time without an agent are missing: the engine restarted.")
    if not lines:
        lines.append("no target")
    if not document["persisted"]:
        lines.append("Budgets are not saved: they are counted since the agent started (run it with --state-dir).")
    return "\n".join(lines) + "\n"


def _row(slo: Mapping[str, Any]) -> tuple[str, ...]:
    limit = slo["threshold_seconds"]
    what = slo["metric"] if limit is None else f"{slo['metric']} <= {limit:g}s"
    left = _pair((slo["remaining_low"], slo["remaining_high"]), lambda x: f"{100 * x:.1f}%")
    burns = [slo["burn"][name] for name in _SHOWN]
    return (
        plain(slo["slo"]),
        f"{what}, {100 * slo['objective']:g}% over {slo['window_days']}d",
        _WORDS[slo["state"]],
        left,
        *(_pair((None, None) if b is None else (b["low"], b["high"]), lambda x: f"{x:.2f}") for b in burns),
        _gone(slo),
        f"{slo['events']:g}",
        f"{slo['unknown']:g}",
    )


def _pair(bounds: Iterable[float | None], written: Any) -> str:
    texts = ["-" if bound is None else written(bound) for bound in bounds]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _gone(slo: Mapping[str, Any]) -> str:
    soonest, latest = slo["exhausted_soonest_seconds"], slo["exhausted_latest_seconds"]
    if slo["exhaustion_by"] is None or slo["remaining_low"] is None:
        return "-"
    texts = ["never" if seconds is None else _time(seconds) for seconds in (soonest, latest)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


def _time(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"
