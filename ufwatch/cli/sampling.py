"""A few rounds of the whole agent without serving anything: what ``once``, ``signals`` and ``doctor`` stand on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ufwatch import assemble
from ufwatch.agent import Agent
from ufwatch.clock import Clock, SystemClock
from ufwatch.config import Config
from ufwatch.precedence import Flags, LogSettings
from ufwatch.sources.fetch import Fetcher

PUBLISHER_WAIT_SECONDS = 1.0
"""vLLM tries to reach an endpoint we bind ten times a second; a first sample without it would have no window."""


async def sampled(config: Config, env: Mapping[str, str], *, samples: int, look: Callable[[Agent], None]) -> None:
    """Looks ``samples`` times, ``config.interval_seconds`` apart, then hands the agent to ``look``."""
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
        look(agent)
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


def quiet_level(logs: LogSettings, given: Flags, env: Mapping[str, str]) -> str:
    """Only errors, unless a level was asked for: the table says the rest."""
    return logs.level if given.log_level is not None or "UFWATCH_LOG_LEVEL" in env else "error"
