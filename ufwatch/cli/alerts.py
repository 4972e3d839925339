"""``ufwatch alerts``: lists the twelve alerts, writes or checks their rule files, and lints people's own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from ufwatch import configfile
from ufwatch.alerts_catalogue import alerts
from ufwatch.cli import generated, sampling
from ufwatch.cli.options import add_output_options
from ufwatch.config import DEFAULT_OBJECTIVES
from ufwatch.errors import ConfigError
from ufwatch.render.rules import rule_files
from ufwatch.rule_forms import RuleOptions, duration
from ufwatch.rule_settings import settle
from ufwatch.rules_lint import Finding, lint_file

HERE = "alerts"
"""The folder that is checked where none is named."""

_SILENT = {
    "ttft": "UfwatchPageTableMissHigh by tokens, and UfwatchMemoryBreakerOpen of the KV cache but for preemptions,",
    "availability": "what tells an outage before UfwatchTelemetryStale",
}
"""What waits for an SLO of each metric to burn."""


def configure(parser: argparse.ArgumentParser) -> None:
    default = RuleOptions()
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--print", metavar="FILE", dest="shown", help="print one generated file, such as alerts.yml")
    what.add_argument("--lint", nargs="+", metavar="FILE", help="say what is wrong with rule files of your own")
    what.add_argument("--write", metavar="DIR", help="write the generated files into DIR")
    what.add_argument(
        "--check",
        metavar="DIR",
        nargs="?",
        const=HERE,
        help=f"compare the files in DIR (default {HERE}) with what would be written; exit 1 when one differs",
    )
    group = parser.add_argument_group("the rules")
    group.add_argument("--job", help=f"Prometheus job that scrapes the agents; default {default.job}")
    group.add_argument(
        "--interval",
        metavar="DURATION",
        help=f"that job's scrape interval, 1s to 60s, or the agent's own where that is longer; "
        f"default {duration(default.interval_seconds)}",
    )
    group.add_argument("--runbook-url", metavar="URL", help="where the folder of runbooks is served")
    group.add_argument("--grafana-url", metavar="URL", help=f"where Grafana is; default {default.grafana_url}")
    group.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a threshold, such as jitter=80ms; repeatable"
    )
    group.add_argument(
        "--objective",
        action="append",
        default=[],
        metavar="SLO=PERCENT",
        help="an SLO that the burn factors must be able to reach; default: those of --config",
    )
    group.add_argument("--config", metavar="FILE", help="the agent's configuration: its SLOs and interval")
    add_output_options(parser)


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0, or 1 when files differ or the lint finds faults, or 2 for bad input."""
    del env
    if args.lint:
        return _lint([Path(name) for name in args.lint], as_json=args.json)
    options = _options(args)
    for metric, silent in _SILENT.items():
        if not any(of == metric for _, of in options.slos):
            print(f"ufwatch alerts: no SLO judges {metric}, so {silent} stays silent", file=sys.stderr)
    files = rule_files(options)
    if args.shown is not None:
        if args.shown not in files:
            raise ConfigError("ufwatch alerts", [f"--print: no such file; choose from {', '.join(files)}"])
        print(files[args.shown], end="")
        return 0
    if args.check is not None:
        return _check(Path(args.check), files)
    if args.write is not None:
        changed = generated.write(Path(args.write), files)
        print(f"{args.write}: {len(changed)} of {len(files)} files written, the others were as they should be")
        return 0
    _list(options, as_json=args.json)
    return 0


def _options(args: argparse.Namespace) -> RuleOptions:
    config = configfile.load(Path(args.config)) if args.config else None
    return settle(
        job=args.job,
        interval=args.interval,
        runbook_url=args.runbook_url,
        grafana_url=args.grafana_url,
        sets=args.set,
        slos=config.slos if config is not None else DEFAULT_OBJECTIVES,
        objectives=args.objective,
        looks_every=config.interval_seconds if config is not None else 0.0,
    )


def _check(folder: Path, files: Mapping[str, str]) -> int:
    wrong = generated.differing(folder, files)
    for name in wrong:
        print(f"{folder / name}: differs from what would be written; write it again with the same flags")
    if not wrong:
        print(f"{folder}: {len(files)} files are as they would be written")
    return int(bool(wrong))


def _lint(paths: list[Path], *, as_json: bool) -> int:
    found: list[tuple[Path, Finding]] = []
    mistakes: list[str] = []
    for path in paths:
        try:
            found += [(path, finding) for finding in lint_file(path)]
        except ConfigError as error:
            mistakes += str(error).splitlines()
    if as_json:
        sampling.print_json({"findings": [{"file": str(path), **finding._asdict()} for path, finding in found]})
    else:
        for path, finding in found:
            where = f"{path}:{finding.line}" if finding.line else str(path)
            print(f"{where}: {finding.rule}: {finding.fault}; {finding.advice}")
    for line in mistakes:
        print(line, file=sys.stderr)
    if not found and not mistakes and not as_json:
        print("no findings")
    return 2 if mistakes else int(bool(found))


def _list(options: RuleOptions, *, as_json: bool) -> None:
    twelve = alerts(options)
    if as_json:
        rows = [
            {
                "alert": alert.name,
                "severity": alert.severity,
                "for_seconds": alert.hold,
                "keep_firing_for_seconds": alert.keep,
                "when": alert.when,
            }
            for alert in twelve
        ]
        sampling.print_json({"alerts": rows})
        return
    for alert in twelve:
        print(f"{alert.name:<31}{alert.severity:<10}{alert.when}")
