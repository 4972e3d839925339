"""Runs the tools of this folder and keeps what they print.

``python -m tests.performance.report [NAME …] [-- OPTION …]``

Each tool's JSON line goes into ``results.json`` beside this file, from which the README's table is made
(``python -m tests.test_readme``), so that no figure there is typed by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Bar:
    """One figure of one tool, and what is asked of it."""

    tool: str
    key: str
    meaning: str
    asked: str
    met: Callable[[Any], bool]


def _at_least(limit: float) -> tuple[str, Callable[[Any], bool]]:
    return f"≥ {limit:g}", lambda value: bool(value >= limit)


def _at_most(limit: float) -> tuple[str, Callable[[Any], bool]]:
    return f"≤ {limit:g}", lambda value: bool(value <= limit)


BARS = (
    Bar("parse", "busy_x", "reading a page on which everything moved, × faster than prometheus_client", *_at_least(60)),
    Bar("parse", "idle_x", "the same on an idle page", *_at_least(120)),
    Bar("parse", "cold_x", "the same at first sight", *_at_least(2)),
    Bar("fuzz", "wrong", "values read wrong among random and adversarial pages", *_at_most(0)),
    Bar("render", "x50", "writing our page of 50 series, × faster than generate_latest", *_at_least(10)),
    Bar("render", "x500", "of 500 series", *_at_least(10)),
    Bar("render", "x5000", "of 5,000 series", *_at_least(10)),
    Bar("spread", "outside", "windows whose true deviation lay outside the bounds", *_at_most(0)),
    Bar("spread", "mean_error", "mean error of the deviation's estimate (ratio)", *_at_most(0.10)),
    Bar("spread", "us", "µs for the bounds of one window", *_at_most(20)),
    Bar("cycle", "x_naive", "whole cycle at 50 targets, × less CPU than aiohttp + prometheus_client", *_at_least(10)),
    Bar("cycle", "core_share_200", "share of a core that 200 targets at 1 s take", *_at_most(0.20)),
    Bar("cycle", "skipped", "scrapes skipped among those 200", *_at_most(0)),
    Bar("prometheus", "cpu_ratio", "CPU per scrape over Prometheus 2.42's on the same targets", *_at_most(1.0)),
    Bar("footprint", "rss_over_bare_mb", "MB over bare Python with one target", *_at_most(40)),
    Bar("footprint", "mb_per_target", "MB for each further target", *_at_most(0.25)),
    Bar("footprint", "first_scrape_cpu_s", "CPU seconds to the first scrape", *_at_most(0.5)),
    Bar("endurance", "slope_mb_per_min", "MB a minute over minutes 2–10 under 50 faulty targets", *_at_most(0.1)),
    Bar("endurance", "invented", "values invented in that time", *_at_most(0)),
)


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The bars and what was measured, as Markdown; what was not run says so."""
    lines = ["| tool | figure | asked | measured |", "|---|---|---|---|"]
    for bar in BARS:
        value = results.get(bar.tool, {}).get(bar.key)
        shown = "not run" if value is None else f"{value:g}" + ("" if bar.met(value) else " — **not met here**")
        lines.append(f"| `{bar.tool}` | {bar.meaning} | {bar.asked} | {shown} |")
    return "\n".join(lines)


def load() -> dict[str, dict[str, Any]]:
    """What was kept so far, by tool."""
    if not RESULTS.exists():
        return {}
    kept: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return kept


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The tools named, and after ``--`` the options passed on to each."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def main() -> None:
    results = load()
    names, options = _split(sys.argv[1:])
    for tool in names or sorted({bar.tool for bar in BARS}):
        command = [sys.executable, "-m", f"tests.performance.{tool}", *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        lines = done.stdout.strip().splitlines()
        if not lines or not lines[-1].startswith("{"):
            print(f"{tool}: no result, exit code {done.returncode}", flush=True)
            continue
        results[tool] = json.loads(lines[-1])
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(tool, json.dumps(results[tool]), flush=True)


if __name__ == "__main__":
    main()
