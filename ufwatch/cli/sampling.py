"""A few rounds of the whole agent without serving anything: what ``once``, ``signals`` and ``doctor`` stand on."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from ufwatch import assemble
from ufwatch.agent import Agent
from ufwatch.cli.logs import setup_logging
from ufwatch.cli.options import add_log_options, add_output_options, add_target_options
from ufwatch.clock import Clock, SystemClock
from ufwatch.config import Config
from ufwatch.errors import UfwatchError
from ufwatch.precedence import Flags, log_settings, settle
from ufwatch.sources.fetch import Fetcher

T = TypeVar("T")

PUBLISHER_WAIT_SECONDS = 1.0
"""vLLM tries to reach an endpoint we bind ten times a second; a first sample without it would have no window."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags that these verbs share."""
    add_target_options(parser)
    add_output_options(parser)
    add_log_options(parser)


def look_at(given: Flags, env: Mapping[str, str], *, samples: int, look: Callable[[Agent], T]) -> T:
    """Looks at the configured targets ``samples`` times and returns what ``look`` makes of the agent.

    Raises ConfigError. Only errors are logged unless a level was asked for: the verb's own text says the rest.
    """
    logs = log_settings(env, given)
    asked = given.log_level is not None or "UFWATCH_LOG_LEVEL" in env
    setup_logging(logs.level if asked else "error", logs.format)
    config = settle(env, given)
    assemble.require_targets(config)
    return asyncio.run(_sampled(config, env, samples, look))


def print_json(document: object) -> None:
    """One document, indented for people who read it too."""
    try:
        text = json.dumps(document, indent=1, allow_nan=False)
    except ValueError:
        raise UfwatchError("a value is NaN or infinite, which JSON cannot hold; this is a bug in ufwatch") from None
    print(text)


async def _sampled(config: Config, env: Mapping[str, str], samples: int, look: Callable[[Agent], T]) -> T:
    clock = SystemClock()
    fetcher = Fetcher(env, clock=clock)
    agent = assemble.agent(config, clock=clock, fetcher=fetcher, sinks=(), whole_run=True)
    try:
        await agent.find_targets()
        await _publishers(agent, clock)
        begun = clock.monotonic()
        for number in range(samples):
            await asyncio.sleep(max(0.0, begun + number * config.interval_seconds - clock.monotonic()))
            await asyncio.gather(agent.poll_gpus(), *(agent.cycle(target) for target in agent.targets.values()))
        return look(agent)
    finally:
        await agent.close()
        await fetcher.close()


async def _publishers(agent: Agent, clock: Clock) -> None:
    """Waits until the publishers of KV events are there, or too long in coming."""
    begun = clock.monotonic()
    while any(target.awaits_publisher() for target in agent.targets.values()):
        if clock.monotonic() - begun >= PUBLISHER_WAIT_SECONDS:
            return
        await asyncio.sleep(0.02)
