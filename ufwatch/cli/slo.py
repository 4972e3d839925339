"""``ufwatch slo``: what is left of each error budget, by a running agent or by what it has saved."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ufwatch import objectivefile
from ufwatch.address import http_url
from ufwatch.cli.sampling import print_json
from ufwatch.clock import SystemClock
from ufwatch.config import DEFAULT_OBJECTIVES, DEFAULT_PORT, HttpAccess, Objective
from ufwatch.core import openslo
from ufwatch.core.objectives import native_line
from ufwatch.errors import ConfigError, SourceError
from ufwatch.render.slos import slo_text
from ufwatch.slo import offline
from ufwatch.sources.agent_door import read_json

_URL = f"http://127.0.0.1:{DEFAULT_PORT}"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="show [FILE]", help="print objectives as OpenSLO; without FILE the default ones"
    )
    parser.add_argument("--check", metavar="FILE", help="check a file of objectives, list them and end")
    parser.add_argument("--url", metavar="URL", help=f"the running agent; default {_URL}")
    parser.add_argument("--state-dir", metavar="DIR", help="read what an agent has saved there instead")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--ca-file", metavar="FILE", help="certificates to verify an https agent by")
    parser.add_argument("--insecure", action="store_true", help="verify no certificate")
    parser.add_argument("--basic-auth-file", metavar="FILE", help="file that holds one line user:password")


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 1 when a budget is surely spent, 2 when nothing has data, otherwise 0; 0 for a file that is good."""
    del env
    if args.check is not None or args.words:
        return _of_file(args)
    if args.url is not None and args.state_dir is not None:
        raise ConfigError("ufwatch", ["--state-dir: --url is given too; drop one of them"])
    if args.state_dir is not None:
        document = offline.report(Path(args.state_dir), SystemClock().wall())
    else:
        document = read_json(f"{_checked(args.url or _URL)}/api/v1/slo", _access(args))
    try:
        text, code = slo_text(document), exit_code(document)
    except (LookupError, TypeError, ValueError, AttributeError):
        # Something else answers there; its page must not end as "a budget is spent".
        raise SourceError(f"{args.url or _URL}: the answer is not an agent's; check the address") from None
    if args.json:
        print_json(document)
    else:
        print(text, end="")
    return code


def exit_code(document: Mapping[str, Any]) -> int:
    """0, 1 or 2 as :func:`execute` says."""
    states = {slo["state"] for target in document["targets"] for slo in target["slos"]}
    if "spent" in states:
        return 1
    return 0 if states & {"within", "uncertain"} else 2


def _of_file(args: argparse.Namespace) -> int:
    words: Sequence[str] = args.words
    if args.check is not None:
        if words:
            raise ConfigError("ufwatch", ["--check: show is given too; drop one of them"])
        found = objectivefile.load(Path(args.check))
        print_found(found, as_json=args.json)
        return 0
    if words[0] != "show" or len(words) > 2:
        raise ConfigError("ufwatch", [f"slo: {' '.join(words)!r} is not known; write show, or show FILE"])
    objectives = objectivefile.load(Path(words[1])) if len(words) == 2 else DEFAULT_OBJECTIVES
    documents = [openslo.document(each) for each in objectives]
    if args.json:
        print_json(documents)
    else:
        print(yaml.safe_dump_all(documents, sort_keys=False), end="")
    return 0


def print_found(found: Sequence[Objective], *, as_json: bool) -> None:
    """The objectives of a file that is good, in the one-line form."""
    lines = [native_line(each) for each in found]
    if as_json:
        print_json({"objectives": lines})
    else:
        print("\n".join(lines))


def _checked(url: str) -> str:
    try:
        return http_url(url)
    except ValueError as error:
        raise ConfigError("ufwatch", [f"--url: {error}"]) from None


def _access(args: argparse.Namespace) -> HttpAccess:
    return HttpAccess(
        ca_file=Path(args.ca_file) if args.ca_file else None,
        insecure=args.insecure,
        basic_auth_file=Path(args.basic_auth_file) if args.basic_auth_file else None,
    )
