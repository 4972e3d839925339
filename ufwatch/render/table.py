"""The signals as a table for a terminal: one line per signal, its value with its bounds, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_UNITS = {
    "sm_utilization": "percent",
    "page_table_miss": "percent",
    "pinned_alloc_success": "percent",
    "kv_usage": "percent",
    "graph_compile": "seconds",
    "token_jitter": "seconds",
}


def targets_table(targets: Sequence[Mapping[str, Any]]) -> str:
    """Text of the targets of ``once``'s JSON, ended by a newline."""
    blocks = []
    for target in targets:
        state = target["state"] or "unknown"
        why = f" ({target['reason']})" if target["reason"] else ""
        rows = [_row(entry) for entry in target["signals"]]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        lines = [f"{target['target']}  {'up' if target['up'] else 'down'}, {state}{why}"]
        for row in rows:
            padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            lines.append(f"  {padded}  {row[3]}".rstrip())
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _row(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    labels = ",".join(f"{key}={value}" for key, value in entry["labels"].items())
    return entry["signal"], labels, value_text(entry), _origin(entry)


def value_text(entry: Mapping[str, Any]) -> str:
    """The value with its unit, and its bounds in brackets; a dash when it is not known."""
    unit = _UNITS.get(entry["signal"]) or ("seconds" if entry["signal"].endswith(("_mean", "_p99")) else "")
    low, high = entry["low"], entry["high"]
    bounds = ""
    if low is not None and high is not None:
        bounds = f" [{number_text(low, unit)} .. {number_text(high, unit)}]"
    elif high is not None:
        bounds = f" [at most {number_text(high, unit)}]"
    elif low is not None:
        bounds = f" [at least {number_text(low, unit)}]"
    return ("-" if entry["value"] is None else number_text(entry["value"], unit)) + bounds


def number_text(value: float, unit: str) -> str:
    """A number a person can read at a glance: three or four significant digits."""
    if unit == "percent":
        return f"{100 * value:.1f} %"
    if unit == "seconds":
        return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.4g} s"
    return f"{value:.4g}"


def _origin(entry: Mapping[str, Any]) -> str:
    parts = [part for part in (entry["quality"], entry["source"]) if part]
    text = " from ".join(parts) if entry["value"] is not None or entry["quality"] else ""
    return f"{text}  {entry['reason']}".strip() if entry["reason"] else text


_DEMO_ROWS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("SM utilization", "sm_utilization", {}),
    ("page-table miss rate", "page_table_miss", {"unit": "token"}),
    ("graph compile, capture", "graph_compile", {"phase": "capture"}),
    ("graph compile, torch.compile", "graph_compile", {"phase": "compile"}),
    ("pinned-alloc success", "pinned_alloc_success", {}),
    ("token jitter", "token_jitter", {}),
    ("prefill/decode by tokens", "prefill_decode", {"by": "tokens"}),
    ("KV evictions per second", "kv_evictions", {}),
    ("time to first token, mean", "ttft_mean", {}),
    ("tokens per second", "generation_tokens_rate", {}),
    ("requests running", "running", {}),
)


def demo_table(targets: Sequence[Mapping[str, Any]]) -> str:
    """The seven signals of several targets side by side: value, or in brackets why there is none."""
    head = ("", *(target["target"] for target in targets))
    rows = [head, ("state", *(target["state"] or "unknown" for target in targets))]
    for title, signal, labels in _DEMO_ROWS:
        rows.append((title, *(_cell(target, signal, labels) for target in targets)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) + "\n"


def _cell(target: Mapping[str, Any], signal: str, labels: Mapping[str, str]) -> str:
    found = [
        entry
        for entry in target["signals"]
        if entry["signal"] == signal and all(entry["labels"].get(key) == value for key, value in labels.items())
    ]
    for entry in found:
        if entry["value"] is not None:
            return value_text(entry)
    reason = next((entry["reason"] for entry in found if entry["reason"]), None)
    if reason is None:
        reason = next((e["reason"] for e in target["signals"] if e["signal"] == signal and e["reason"]), "no_source")
    return f"({reason})"
