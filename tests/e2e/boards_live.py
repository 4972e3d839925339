"""Every query of every board against a real Prometheus that scrapes the demo: ``python -m tests.e2e.boards_live``.

Prints one JSON document: per board, how many queries found series, which optional ones did not and why they may not,
and which are dead. Also what a person would stumble over: two series of one panel with one name, a variable without a
choice, a choice of one target that shows another. The rules of ``alerts/`` are loaded, so that the marks on the boards
have something to mark. Exit code 1 when anything is wrong. Takes a minute and a half.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.prometheus_server import Prometheus
from tests.processes import COMMAND, Running
from tests.sources.loopback import free_port
from ufwatch.render.board import Board, BoardSettings, Panel, PanelKind, Query
from ufwatch.render.board_parts import FIRING
from ufwatch.render.boards import BOARDS

SECONDS = 75
"""How long the demo has run when it is asked: its window of 15 s is full, and objectives have ten bad events."""
EVERYTHING = {"job": ".+", "instance": ".+", "target": ".*", "model": ".*", "slo": ".+", "gpu": ".+"}
CHOSEN = "steady"
_ALERTS = Path(__file__).parents[2] / "alerts"


def filled(expression: str, **chosen: str) -> str:
    """The expression as Grafana would send it, with everything chosen except where said otherwise."""
    values = {**EVERYTHING, **chosen}
    text = expression.replace("$__rate_interval", "10s")
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], text)


def named(legend: str, labels: dict[str, str]) -> str:
    """A series' name as Grafana writes it: a label that is missing leaves nothing."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend)


def looked_at(board: Board, prometheus: Prometheus) -> dict[str, Any]:
    """What the board's queries found, and what is wrong."""
    alive, empty, dead, wrong = 0, {}, [], []
    for panel, query in _queries(board):
        where = f"{panel.title}: {query.legend}" if query.legend else panel.title
        found = prometheus.now(filled(query.expr))
        if found:
            alive += 1
        elif query.optional:
            empty[where] = query.optional
        else:
            dead.append(where)
        if any(value != value for _, value in found):
            wrong.append(f"{where}: NaN")
        names = [named(query.legend, labels) for labels, _ in found]
        if panel.kind is not PanelKind.TABLE and len(set(names)) < len(names):
            wrong.append(f"{where}: several series have one name")
        if "$target" in query.expr:
            narrowed = {labels.get("target", "") for labels, _ in prometheus.now(filled(query.expr, target=CHOSEN))}
            if narrowed - {CHOSEN, ""}:
                wrong.append(f"{where}: choosing {CHOSEN} shows {sorted(narrowed)}")
    choices = {one.name: _choices(one.expr, one.label, prometheus) for one in board.variables}
    return {
        "panels": sum(1 for _ in board.panels()),
        "queries": alive + len(empty) + len(dead),
        "alive": alive,
        "optional_and_empty": empty,
        "dead": dead,
        "wrong": wrong,
        "variables": {name: len(found) for name, found in choices.items()},
    }


def _queries(board: Board) -> Iterator[tuple[Panel, Query]]:
    for panel in board.panels():
        for query in panel.queries:
            yield panel, query


def _choices(expression: str, label: str, prometheus: Prometheus) -> list[str]:
    found: list[str] = prometheus.api(f"label/{label}/values", match=filled(expression))
    return found


def main() -> int:
    """Returns 0 when no query is dead and nothing is wrong."""
    with tempfile.TemporaryDirectory() as work:
        demo = (*COMMAND, "demo", "--seconds", str(SECONDS + 60))
        port = free_port()
        with Running(command=demo, port=port) as agent, _prometheus(Path(work), port) as prometheus:
            agent.serves_at(f"http://127.0.0.1:{port}")
            time.sleep(SECONDS)
            boards = {name: looked_at(make(BoardSettings()), prometheus) for name, make in BOARDS.items()}
            firing = sorted({labels["alertname"] for labels, _ in prometheus.now(FIRING)})
    dead = sum(len(board["dead"]) + len(board["wrong"]) for board in boards.values())
    queries = sum(board["queries"] for board in boards.values())
    alive = sum(board["alive"] for board in boards.values())
    summary = {"queries": queries, "alive": alive, "dead_or_wrong": dead, "alerts_marked": firing}
    print(json.dumps({"boards": boards, **summary}, indent=2))
    return int(bool(dead or not firing))


def _prometheus(work: Path, port: int) -> Prometheus:
    return Prometheus(work, f"127.0.0.1:{port}", [_ALERTS / "recording.yml", _ALERTS / "alerts.yml"])


if __name__ == "__main__":
    sys.exit(main())
