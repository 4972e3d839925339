"""A report of one page: the verdict, a waterfall as a picture, and the medians. Pure; no script, nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import ufwatch
from ufwatch.trace.model import Exchange
from ufwatch.trace.summary import Summary
from ufwatch.trace.verdict import Verdict
from ufwatch.trace.waterfall import Bar, bars, failures, milliseconds, verdict_text

_ROW, _LEFT, _WIDTH, _RIGHT = 24, 190, 640, 90
_TICKS = 4
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>ufwatch trace</title><style>
:root { color-scheme: light dark; --line: color-mix(in srgb, CanvasText 18%, Canvas); }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; } pre { white-space: pre-wrap; font: inherit; margin: .3rem 0; }
table { border-collapse: collapse; } .scroll { overflow-x: auto; }
td, th { text-align: right; padding: .25rem 0 .25rem 1.5rem; border-bottom: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; padding-left: 0; }
td { font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { width: 100%; min-width: 34rem; height: auto; } svg text { fill: CanvasText; font-size: 13px; }
svg line { stroke: var(--line); } .client { fill: #3b82f6; } .server { fill: #d97706; } .failed { fill: #dc2626; }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; } footer { opacity: .65; }
</style></head><body>
"""


def report_html(exchanges: Sequence[Exchange], cold: Summary | None, warm: Summary | None, found: Verdict) -> str:
    """The page. What comes from a server is escaped; no prompt and no answer is in it."""
    parts = [_HEAD, "<h1>Where the time of a request goes</h1>"]
    parts.append(
        f"<p>{escape(exchanges[0].operation)} of {escape(exchanges[0].model)} at {escape(exchanges[0].url)}</p>"
    )
    main = next((each for each in (cold, warm) if each is not None and each.requests > each.failed), None)
    if main is not None:
        parts.append(f"<pre>{escape(verdict_text(found, main))}</pre>")
    parts.append(f"<pre>{escape(failures(exchanges))}</pre>")
    for title, reused in (("A request over a new connection", False), ("A request over a kept connection", True)):
        of_kind = [each for each in exchanges if each.reused is reused]
        if of_kind:
            middle = sorted(of_kind, key=lambda each: (each.failure is not None, each.total))[(len(of_kind) - 1) // 2]
            parts += [f"<h2>{title}</h2>", f'<div class="scroll">{picture(middle)}</div>']
    parts.append(
        '<p class="key"><span style="background:#3b82f6"></span>measured by the client'
        '<span style="background:#d97706"></span>durations of the server, put where they fit'
        '<span style="background:#dc2626"></span>failed here</p>'
    )
    for title, of in (("New connections", cold), ("Kept connections", warm)):
        if of is not None and of.layers:
            parts += [f"<h2>{title}, {of.requests} requests, {of.failed} failed</h2>", _table(of)]
    parts.append(f"<footer><p>ufwatch {escape(ufwatch.__version__)}</p></footer>")
    return "\n".join(parts) + "</body></html>\n"


def picture(exchange: Exchange) -> str:
    """One request as SVG, a row for each phase, under a scale in milliseconds."""
    rows, total = bars(exchange), max(exchange.total, 1e-9)
    height = _ROW * (len(rows) + 1) + 4
    label = escape(f"Waterfall of one request of {milliseconds(exchange.total)}", quote=True)
    width = _LEFT + _WIDTH + _RIGHT
    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">']
    for tick in range(_TICKS + 1):
        x = _LEFT + _WIDTH * tick / _TICKS
        parts.append(f'<line x1="{x:.1f}" y1="{_ROW}" x2="{x:.1f}" y2="{height}"/>')
        anchor = "start" if tick == 0 else "middle"
        text = milliseconds(total * tick / _TICKS)
        parts.append(f'<text x="{x:.1f}" y="{_ROW - 8}" text-anchor="{anchor}">{text}</text>')
    parts += [_row(bar, place, total) for place, bar in enumerate(rows, 1)]
    return "".join(parts) + "</svg>"


def _row(bar: Bar, place: int, total: float) -> str:
    y = _ROW * place
    start = _LEFT + _WIDTH * bar.start / total
    width = max(1.5, _WIDTH * (bar.end - bar.start) / total)
    after = start + width + 6
    return (
        f'<text x="{16 * bar.depth}" y="{y + 16}">{escape(bar.name)}</text>'
        f'<rect class="{bar.side}" x="{start:.1f}" y="{y + 5}" width="{width:.1f}" height="{_ROW - 10}" rx="2"/>'
        f'<text x="{after:.1f}" y="{y + 16}">{milliseconds(bar.end - bar.start)}</text>'
    )


def _table(of: Summary) -> str:
    lines = [
        "<tr><th>layer</th><th>median</th><th>p90</th><th>least</th><th>most</th><th>share of first token</th></tr>"
    ]
    for layer in of.layers:
        share = "" if layer.share is None else f"{100 * layer.share:.0f} %"
        numbers = (layer.spread.median, layer.spread.p90, layer.spread.low, layer.spread.high)
        cells = "".join(f"<td>{milliseconds(number)}</td>" for number in numbers)
        name = escape(layer.name) + (" (estimate)" if layer.estimate else "")
        lines.append(f"<tr><td>{name}</td>{cells}<td>{share}</td></tr>")
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'
