"""The index page: what is watched, in which state, and the seven signals of each target. Pure text, no assets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ufwatch
from ufwatch import catalogue
from ufwatch.render.table import value_text

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>ufwatch</title><style>
:root { color-scheme: light dark; --line: color-mix(in srgb, CanvasText 18%, Canvas); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
td, th { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; } .why { opacity: .65; }
h2 { font-size: 1.05rem; margin-bottom: 0; } div { overflow-x: auto; }
</style></head><body>
"""


def index_html(targets: Sequence[Mapping[str, Any]]) -> str:
    """The page for the targets of ``once``'s JSON; everything that comes from outside is escaped."""
    links = '<a href="/metrics">metrics</a> · <a href="/api/v1/readings">readings</a> · <a href="/-/ready">ready</a>'
    parts = [_HEAD, f"<h1>ufwatch {escape(ufwatch.__version__)}</h1><p>{links}</p>"]
    if not targets:
        parts.append("<p>No target is configured or discovered.</p>")
    for target in targets:
        state = f"{'up' if target['up'] else 'down'}, {target['state'] or 'state unknown'}"
        why = f" ({target['reason']})" if target["reason"] else ""
        parts.append(f"<h2>{escape(target['target'])}</h2><p>{escape(state + why)}</p><div><table>")
        parts.append("<tr><th>signal</th><th></th><th>value</th><th>source</th></tr>")
        parts += [_row(entry) for entry in target["signals"] if entry["signal"] in catalogue.SEVEN]
        parts.append("</table></div>")
    return "\n".join(parts) + "</body></html>\n"


def _row(entry: Mapping[str, Any]) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in entry["labels"].items())
    origin = " from ".join(part for part in (entry["quality"], entry["source"]) if part)
    if entry["reason"]:
        origin = f"{origin} {entry['reason']}".strip()
    cells = (entry["signal"], labels)
    text = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    return f'<tr>{text}<td class="n">{escape(value_text(entry))}</td><td class="why">{escape(origin)}</td></tr>'
