"""The README's tables, from the catalogue."""

from __future__ import annotations

from ufwatch import catalogue
from ufwatch.model import REASONS


def signals_table() -> str:
    """The seven signals as Markdown: what each means, its metric, and its sources from best to worst."""
    lines = ["| signal | meaning | metric | sources, best first |", "|---|---|---|---|"]
    for signal in catalogue.SIGNALS:
        if not signal.one_of_seven:
            continue
        name = signal.id + "".join(f", {key}={value}" for key, value in signal.extra if key == "by")
        sources = ", ".join(f"{provider.source} ({provider.quality.value})" for provider in signal.providers)
        lines.append(f"| `{name}` | {signal.meaning} | `ufwatch_{signal.gauge}` | {sources} |")
    return "\n".join(lines)


def reasons_table() -> str:
    """Why a value may be absent, as Markdown."""
    rows = (f"| `{reason.value}` | {text} |" for reason, text in REASONS.items())
    return "\n".join(("| reason | what it says |", "|---|---|", *rows))
