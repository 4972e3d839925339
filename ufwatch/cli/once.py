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
from ufwatch.clock import SystemClock
from ufwatch.config import Config
from ufwatch.errors import ConfigError
from ufwatch.precedence import log_settings, settle
from ufwatch.render.table import targets_table
from ufwatch.sources.fetch import Fetcher

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
    quiet = given.log_level is None and "UFWATCH_LOG_LEVEL" not in env
    setup_logging("error" if quiet else logs.level, logs.format)
    config = settle(env, given)
    assemble.require_targets(config)
    document = asyncio.run(sample(config, env, samples=sample_count(args.samples)))
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


async def sample(config: Config, env: Mapping[str, str], *, samples: int) -> dict[str, Any]:
    """Looks ``samples`` times, ``config.interval_seconds`` apart, and returns the contract's JSON object."""
    clock = SystemClock()
    fetcher = Fetcher(env, clock=clock)
    agent = assemble.agent(config, clock=clock, fetcher=fetcher, sinks=(), whole_run=True)
    try:
        await agent.find_targets()
        begun = clock.monotonic()
        for number in range(samples):
            await asyncio.sleep(max(0.0, begun + number * config.interval_seconds - clock.monotonic()))
            await asyncio.gather(agent.poll_gpus(), *(agent.cycle(target) for target in agent.targets.values()))
        return agent.readings()
    finally:
        await agent.close()
        await fetcher.close()
