"""``ufwatch trace``: where the time of a request goes, layer by layer, and which layer is at fault."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ufwatch.address import http_url
from ufwatch.cli.generated import write
from ufwatch.cli.sampling import print_json
from ufwatch.cli.tracing import Plan, Traced, traced
from ufwatch.config import HttpAccess
from ufwatch.errors import ConfigError
from ufwatch.trace.document import baseline_of, document
from ufwatch.trace.model import Exchange
from ufwatch.trace.report import report_html
from ufwatch.trace.request import Operation
from ufwatch.trace.summary import Summary, summary
from ufwatch.trace.verdict import Verdict, round_trip, verdict
from ufwatch.trace.waterfall import failures, medians, verdict_text, waterfall

_MOST_REQUESTS = 10_000
_MOST_DIGITS = 18


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the server, such as http://127.0.0.1:8000")
    parser.add_argument(
        "--n", metavar="N", default="4", help="requests, half over new connections, after one not counted; default 4"
    )
    parser.add_argument("--model", metavar="NAME", help="default: the only one that the server's metrics name")
    parser.add_argument("--prompt", metavar="TEXT", help="default: a short one that is new each time, so never cached")
    parser.add_argument("--completions", action="store_true", help="ask /v1/completions instead of chat")
    parser.add_argument("--max-tokens", metavar="N", default="32", help="tokens of each answer; default 32")
    parser.add_argument("--timeout", metavar="SECONDS", default="60", help="of each request; default 60")
    parser.add_argument("--otlp", metavar="ENDPOINT", help="send the traces there (else OTEL_EXPORTER_OTLP_ENDPOINT)")
    parser.add_argument(
        "--receive",
        action="store_true",
        help="take the server's own spans on 127.0.0.1:14317 (gRPC) and :14318 (HTTP), and pass them on to --otlp",
    )
    parser.add_argument("--baseline", metavar="FILE", help="what an earlier --json printed, to compare the layers with")
    parser.add_argument("--html", metavar="FILE", help="write a report of one page")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to verify an https server by")
    parser.add_argument("--insecure", action="store_true", help="verify no certificate")
    parser.add_argument("--api-key-file", metavar="FILE", help="file that holds the API key to send")


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0; 1 when a request failed or a layer is worse than the baseline; 2 when no request succeeded, or
    the baseline has none of the layers."""
    plan = _plan(args)
    baseline = None if args.baseline is None else _baseline(Path(args.baseline))
    file = None if args.html is None else _report_file(args.html)
    shows = sys.stderr.isatty() and not args.json
    done = asyncio.run(traced(plan, env, tell=(lambda text: print(text, file=sys.stderr)) if shows else None))
    exchanges = done.exchanges
    cold, warm = (_summary([e for e in exchanges if e.reused is reused]) for reused in (False, True))
    main = cold if cold is not None and cold.requests > cold.failed else warm
    found, kind = Verdict((), ()), "cold" if main is cold else "warm"
    if main is not None:
        found = verdict(main, round_trip(tuple(exchanges)), None if baseline is None else baseline[kind])
    if args.json:
        print_json({**document(exchanges, cold, warm, found), "spans": done.spans})
    else:
        _print(exchanges, cold, warm, found, done)
    if file is not None:
        _write(file, report_html(exchanges, cold, warm, found))
    if baseline is not None and main is not None:
        there = {layer.name for layer in main.layers}
        alone = [name for name in (layer.name for layer in main.layers) if name not in baseline[kind]]
        if alone:
            print(f"ufwatch: not in the baseline, so not compared: {', '.join(alone)}", file=sys.stderr)
        if not there & baseline[kind].keys():
            return 2
    return exit_code(exchanges, found)


def exit_code(exchanges: list[Exchange], found: Verdict) -> int:
    """0, 1 or 2 as :func:`execute` says."""
    failed = sum(each.failure is not None for each in exchanges)
    if failed == len(exchanges):
        return 2
    return 1 if failed or any(finding.against_baseline for finding in found.findings) else 0


def shown(exchanges: list[Exchange]) -> Exchange:
    """The request whose waterfall tells most: of those over a new connection that went well, the middle one."""
    good = [each for each in exchanges if each.failure is None]
    chosen = [each for each in good if not each.reused] or good or exchanges
    return sorted(chosen, key=lambda each: each.total)[(len(chosen) - 1) // 2]


def _summary(exchanges: list[Exchange]) -> Summary | None:
    return summary(exchanges) if exchanges else None


def _print(exchanges: list[Exchange], cold: Summary | None, warm: Summary | None, found: Verdict, done: Traced) -> None:
    width = shutil.get_terminal_size((100, 24)).columns
    print(waterfall(shown(exchanges), width=width, colour=sys.stdout.isatty()), end="")
    good = [each for each in (cold, warm) if each is not None and each.requests > each.failed]
    if len(exchanges) > 1 and good:
        print()
        print(medians(cold if cold in good else None, warm if warm in good else None), end="")
    print()
    print(failures(exchanges), end="")
    if good:
        print(verdict_text(found, good[0]), end="")
    for line in done.lines:
        print(line)


def _plan(args: argparse.Namespace) -> Plan:
    try:
        url = http_url(args.url)
    except ValueError as error:
        raise ConfigError("ufwatch", [f"URL: {error}"]) from None
    if args.prompt is not None and not args.prompt:
        raise ConfigError("ufwatch", ["--prompt: is empty"])
    for flag, given in (("--model", args.model), ("--prompt", args.prompt)):
        if given is not None and not given.isprintable() and given != given.encode(errors="ignore").decode():
            raise ConfigError("ufwatch", [f"{flag}: is not UTF-8"])
    return Plan(
        url=url,
        requests=_whole(args.n, "--n", _MOST_REQUESTS),
        model=args.model,
        prompt=args.prompt,
        operation=Operation.COMPLETION if args.completions else Operation.CHAT,
        max_tokens=_whole(args.max_tokens, "--max-tokens", 1_000_000),
        timeout_seconds=float(_whole(args.timeout, "--timeout", 86_400)),
        access=HttpAccess(
            ca_file=Path(args.ca_file) if args.ca_file else None,
            insecure=args.insecure,
            api_key_file=Path(args.api_key_file) if args.api_key_file else None,
        ),
        otlp=args.otlp,
        receive=args.receive,
    )


def _whole(text: str, flag: str, most: int) -> int:
    # No digits without end: Python reads no more than 4,300.
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and 1 <= int(text) <= most:
        return int(text)
    raise ConfigError("ufwatch", [f"{flag}: {text[:60]!r} is not a whole number from 1 to {most}"])


def _baseline(path: Path) -> Mapping[str, Mapping[str, float]]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), [error.strerror or str(error)]) from None
    except (ValueError, RecursionError):
        raise ConfigError(str(path), ["not JSON; make one with ufwatch trace --json"]) from None
    return baseline_of(content, str(path))


def _report_file(text: str) -> Path:
    """Where the report goes, looked at before anything is asked. ConfigError for what a file must not take the place
    of: a folder, a device, a pipe."""
    path = Path(text)
    if not path.name or "\0" in text or (path.exists() and not path.is_file()):
        raise ConfigError("ufwatch", [f"--html: {text!r} is not the name of a file"])
    return path


def _write(file: Path, html: str) -> None:
    try:
        write(file.parent, {file.name: html})
    except ConfigError as error:
        raise ConfigError("--html", error.mistakes) from error
