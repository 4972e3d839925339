"""``ufwatch dashboards``: lists, writes or checks the Grafana boards; as files or as ConfigMaps for Kubernetes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from ufwatch.cli import generated
from ufwatch.cli.options import add_output_options
from ufwatch.errors import ConfigError
from ufwatch.render.board import DEFAULT_INTERVAL_SECONDS, BoardSettings
from ufwatch.render.board_lint import faults
from ufwatch.render.boards import BOARDS, configmaps, files
from ufwatch.rule_settings import settle

HERE = "dashboards"
"""The folder that is checked where none is named."""


def configure(parser: argparse.ArgumentParser) -> None:
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", metavar="DIR", help="write the files into DIR")
    action.add_argument(
        "--check",
        metavar="DIR",
        nargs="?",
        const=HERE,
        help=f"compare the files in DIR (default {HERE}) with what would be written, and lint them",
    )
    parser.add_argument(
        "--configmaps", action="store_true", help="ConfigMaps that Grafana's sidecar finds; alone, print them"
    )
    parser.add_argument("--job", metavar="NAME", help="offer only this job; default every job that ufwatch runs under")
    parser.add_argument(
        "--interval",
        metavar="DURATION",
        help=f"Prometheus' scrape interval of ufwatch, 1s to 60s; default {DEFAULT_INTERVAL_SECONDS:g}s",
    )
    parser.add_argument("--grafana-url", metavar="URL", help="make links between boards absolute, at this Grafana")
    parser.add_argument("--runbook-url", metavar="URL", help="link firing alerts to URL/ALERTNAME.md")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a threshold as given to `ufwatch alerts`, such as jitter=80ms; repeatable",
    )
    add_output_options(parser)


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0; 1 when ``--check`` finds a file that differs or a fault."""
    del env
    settings = _settings(args)
    made = configmaps(settings) if args.configmaps else files(settings)
    if args.write is not None:
        folder = Path(args.write)
        changed = generated.write(folder, made)
        print(f"{folder}: {len(changed)} of {len(made)} files written, the others were as they should be")
        return 0
    if args.check is not None:
        return _check(Path(args.check), made, settings)
    if args.configmaps:
        print("---\n".join(made.values()), end="")
    else:
        _list(settings, as_json=args.json)
    return 0


def _settings(args: argparse.Namespace) -> BoardSettings:
    """What was typed. ConfigError with every mistake; the same words mean the same to ``ufwatch alerts``."""
    try:
        typed = settle(
            job=args.job,
            interval=args.interval,
            grafana_url=args.grafana_url,
            runbook_url=args.runbook_url,
            sets=args.set,
        )
    except ConfigError as error:
        raise ConfigError("ufwatch dashboards", error.mistakes) from error
    return BoardSettings(
        job=typed.job if args.job is not None else None,
        interval_seconds=typed.interval_seconds,
        grafana_url=typed.grafana_url if args.grafana_url is not None else "",
        runbook_url=typed.runbook_url if args.runbook_url is not None else "",
        thresholds=typed.thresholds,
    )


def _check(folder: Path, made: Mapping[str, str], settings: BoardSettings) -> int:
    found = [f"{folder / name}: differs from what would be written" for name in generated.differing(folder, made)]
    for name, text in files(settings).items():
        board = BOARDS[name.removesuffix(".json")](settings)
        fixed = [panel.title for panel in board.panels() if panel.fixed_windows]
        found += [f"{name}: {fault}" for fault in faults(json.loads(text), fixed)]
    print("\n".join(found) if found else f"{folder}: {len(made)} files are as they would be written, without a fault")
    return int(bool(found))


def _list(settings: BoardSettings, *, as_json: bool) -> None:
    boards = [make(settings) for make in BOARDS.values()]
    rows = [
        {
            "file": f"{board.name}.json",
            "uid": board.uid,
            "title": board.title,
            "panels": sum(1 for _ in board.panels()),
            "queries": sum(len(panel.queries) for panel in board.panels()),
            "answers": board.description,
        }
        for board in boards
    ]
    if as_json:
        print(json.dumps({"dashboards": rows}, indent=2))
        return
    for row in rows:
        counts = f"{row['panels']:>3} panels {row['queries']:>3} queries"
        print(f"{row['file']:<16}{row['uid']:<20}{counts}\n    {row['answers']}")
