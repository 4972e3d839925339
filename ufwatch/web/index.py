"""The index page: what is watched, in which state, and the seven signals of each target. Pure text, no assets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import ufwatch
from ufwatch import catalogue
from ufwatch.model import REASONS, Reason
from ufwatch.render.table import state_text, value_text

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>ufwatch</title><style>
:root { color-scheme: light dark; --line: color-mix(in srgb, CanvasText 18%, Canvas); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
td, th { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); }
td.n { font-variant-numeric: tabular-nums; white-space: nowrap; } .why { opacity: .65; }
h2 { font-size: 1.05rem; margin-bottom: 0; } p { margin: .2rem 0; }
th:nth-child(1) { width: 24%; } th:nth-child(2) { width: 20%; } th:nth-child(3) { width: 26%; }
@media (max-width: 40rem) {
  th { display: none; } td { display: inline-block; border: 0; padding: 0 .75rem 0 0; }
  td.n { display: block; font-weight: 600; }
  tr { display: block; border-bottom: 1px solid var(--line); padding: .4rem 0; }
}
</style></head><body>
"""

_SHOWN = (*catalogue.SEVEN, "ttft_mean", "running", "waiting", "kv_usage")


def index_html(targets: Sequence[Mapping[str, Any]]) -> str:
    """The page for the targets of ``once``'s JSON; everything that comes from outside is escaped."""
    doors = (("/metrics", "metrics"), ("/api/v1/readings", "readings"), ("/health", "health"), ("/-/ready", "ready"))
    links = " · ".join(f'<a href="{path}">{name}</a>' for path, name in doors)
    parts = [_HEAD, f"<h1>ufwatch {escape(ufwatch.__version__)}</h1><p>{links}</p>"]
    if not targets:
        parts.append("<p>No target is configured or discovered.</p>")
    for target in targets:
        parts.append(f"<h2>{escape(target['target'])}</h2><p>{escape(state_text(target))}</p><table>")
        parts.append("<tr><th>signal</th><th>labels</th><th>value</th><th>source, or why there is none</th></tr>")
        parts += [_row(entry) for entry in target["signals"] if entry["signal"] in _SHOWN]
        parts.append("</table>")
    return "\n".join(parts) + "</body></html>\n"


def _row(entry: Mapping[str, Any]) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in entry["labels"].items() if value)
    origin = " from ".join(part for part in (entry["quality"], entry["source"]) if part)
    text = "".join(f"<td>{escape(str(cell))}</td>" for cell in (entry["signal"], labels))
    why = ""
    if entry["reason"]:
        origin = f"{origin} {entry['reason']}".strip()
        why = f' title="{escape(REASONS[Reason(entry["reason"])])}"'
    return f'<tr>{text}<td class="n">{escape(value_text(entry))}</td><td class="why"{why}>{escape(origin)}</td></tr>'
