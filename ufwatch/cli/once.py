"""``ufwatch once``: a few samples, then the signals over the time between the first and the last."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from ufwatch import assemble
from ufwatch.cli.logs import setup_logging
from ufwatch.cli.options import add_log_options, add_output_options, add_target_options, flags
from ufwatch.cli.sampling import quiet_level, sampled
from ufwatch.errors import ConfigError
from ufwatch.precedence import log_settings, settle
from ufwatch.render.table import targets_table

DEFAULT_SAMPLES = 2


def configure(parser: argparse.ArgumentParser) -> None:
    add_target_options(parser)
    parser.add_argument(
        "--samples", metavar="N", default=str(DEFAULT_SAMPLES), help=f"how often to look; default {DEFAULT_SAMPLES}"
    )
    add_output_options(parser)
    add_log_options(parser)


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 when every target was up at the last sample, otherwise 2."""
    given = flags(args)
    logs = log_settings(env, given)
    setup_logging(quiet_level(logs, given, env), logs.format)
    config = settle(env, given)
    assemble.require_targets(config)
    documents: list[dict[str, Any]] = []
    work = sampled(
        config, env, samples=sample_count(args.samples), look=lambda agent: documents.append(agent.readings())
    )
    asyncio.run(work)
    document = documents[0]
    if given.json:
        json.dump(document, sys.stdout, indent=1)
        print()
    else:
        print(targets_table(document["targets"]), end="")
    return 0 if document["targets"] and all(target["up"] for target in document["targets"]) else 2


def sample_count(text: str) -> int:
    """A whole number from 1 to 1000. Raises ConfigError."""
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ConfigError("ufwatch", [f"--samples: {text!r} is not a whole number from 1 to 1000"])
    return int(text)
