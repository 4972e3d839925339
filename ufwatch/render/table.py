"""The signals as a table for a terminal: one line per signal, its value with its bounds, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_UNITS = {
    "sm_utilization": "percent",
    "page_table_miss": "percent",
    "page_table_miss_baseline": "percent",
    "gpu_ageing_drift": "percent",
    "pinned_alloc_success": "percent",
    "kv_usage": "percent",
    "graph_compile": "seconds",
    "token_jitter": "seconds",
    "kv_evictions": "/s",
    "preemptions_rate": "/s",
    "prompt_tokens_rate": "tokens/s",
    "generation_tokens_rate": "tokens/s",
    "prompt_tokens_unmatched": "tokens",
}


def plain(text: str) -> str:
    """``text`` with everything that is no visible character escaped: names and labels come from elsewhere.

    A terminal obeys what is printed on it, and one line must stay one line.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def targets_table(targets: Sequence[Mapping[str, Any]]) -> str:
    """Text of the targets of ``once``'s JSON, ended by a newline."""
    blocks = []
    for target in targets:
        # Of a target that could not be read, only what came from elsewhere is worth a line.
        entries = [entry for entry in target["signals"] if target["up"] or entry["value"] is not None]
        rows = [_row(entry) for entry in entries]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        name = plain(target["target"])
        lines = [f"{name}  {state_text(target)}"]
        if not target["up"]:
            lines.append(f"  ufwatch doctor --target {name} says more")
        for row in rows:
            padded = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            lines.append(f"  {padded}  {row[3]}".rstrip())
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def state_text(target: Mapping[str, Any]) -> str:
    """Whether the target answers, what it is doing, and why not: each word once."""
    words = ["up" if target["up"] else "down", target["state"] or "state unknown"]
    why = f" ({target['reason']})" if target["reason"] not in (None, *words) else ""
    return ", ".join(dict.fromkeys(words)) + why


def _row(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    labels = ",".join(f"{key}={value}" for key, value in entry["labels"].items())
    return entry["signal"], plain(labels), value_text(entry), _origin(entry)


def value_text(entry: Mapping[str, Any]) -> str:
    """The value with its unit, and its bounds in brackets; a dash when it is not known."""
    unit = _unit(entry["signal"])
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
    return f"{value:.4g} {unit}".rstrip()


def _origin(entry: Mapping[str, Any]) -> str:
    parts = [part for part in (entry["quality"], entry["source"]) if part]
    text = " from ".join(parts) if entry["value"] is not None or entry["quality"] else ""
    return f"{text}  {entry['reason']}".strip() if entry["reason"] else text


_DEMO_ROWS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("SM utilization", "sm_utilization", {}),
    ("page-table misses", "page_table_miss", {"unit": "token"}),
    ("graph capture", "graph_compile", {"phase": "capture"}),
    ("torch.compile", "graph_compile", {"phase": "compile"}),
    ("pinned-alloc success", "pinned_alloc_success", {}),
    ("token jitter", "token_jitter", {}),
    ("prefill/decode tokens", "prefill_decode", {"by": "tokens"}),
    ("prefill/decode time", "prefill_decode", {"by": "time"}),
    ("KV evictions", "kv_evictions", {}),
    ("time to first token", "ttft_mean", {}),
    ("tokens generated", "generation_tokens_rate", {}),
    ("requests running", "running", {}),
)


def side_by_side(targets: Sequence[Mapping[str, Any]], width: int) -> str:
    """The signals of several targets in columns: value, or in brackets the reason why there is none.

    At most ``width`` characters a line: bounds are left out where they do not fit, then lines are cut.
    """
    for bounds in (True, False):
        lines = _columns(targets, bounds=bounds)
        if max(map(len, lines)) <= width:
            break
    return "\n".join(line[:width].rstrip() for line in lines) + "\n"


def _columns(targets: Sequence[Mapping[str, Any]], *, bounds: bool) -> list[str]:
    rows = [("", *(plain(target["target"]) for target in targets))]
    rows.append(("state", *(target["state"] or "unknown" for target in targets)))
    for title, signal, labels in _DEMO_ROWS:
        rows.append((title, *(_cell(target, signal, labels, bounds=bounds) for target in targets)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def reasons_used(targets: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reasons that the columns show, in order of first appearance."""
    cells = (_cell(target, signal, labels, bounds=False) for _, signal, labels in _DEMO_ROWS for target in targets)
    return list(dict.fromkeys(cell[1:-1] for cell in cells if cell.startswith("(")))


def _cell(target: Mapping[str, Any], signal: str, labels: Mapping[str, str], *, bounds: bool) -> str:
    entries = [entry for entry in target["signals"] if entry["signal"] == signal]
    found = [entry for entry in entries if labels.items() <= entry["labels"].items()]
    for entry in found:
        if entry["value"] is not None:
            return value_text(entry) if bounds else number_text(entry["value"], _unit(signal))
    return f"({next((entry['reason'] for entry in (*found, *entries) if entry['reason']), 'no_source')})"


def _unit(signal: str) -> str:
    return _UNITS.get(signal) or ("seconds" if signal.endswith(("_mean", "_p99")) else "")
