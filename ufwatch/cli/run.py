"""``ufwatch run``: watches until stopped. SIGTERM ends it, SIGHUP reads the configuration again."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import Coroutine, Mapping
from typing import Any

import ufwatch
from ufwatch import assemble, catalogue
from ufwatch.agent import Agent
from ufwatch.cli.logs import setup_logging
from ufwatch.cli.options import add_log_options, add_serve_options, add_target_options, flags
from ufwatch.clock import SystemClock
from ufwatch.config import Config
from ufwatch.errors import UfwatchError
from ufwatch.precedence import Flags, log_settings, settle
from ufwatch.render.exposition import Page
from ufwatch.sinks.prometheus import PrometheusSink
from ufwatch.sources.discovery import Discovery
from ufwatch.sources.fetch import Fetcher
from ufwatch.web.app import build_app
from ufwatch.web.server import serve

_LOG = logging.getLogger("ufwatch")


def configure(parser: argparse.ArgumentParser) -> None:
    add_target_options(parser)
    add_serve_options(parser)
    add_log_options(parser)
    parser.add_argument("--check-config", action="store_true", help="check the configuration, say so and end")


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 after SIGTERM or SIGINT; a mistake in the configuration or a taken port raises a UfwatchError."""
    given = flags(args)
    logs = log_settings(env, given)
    config = settle(env, given)
    assemble.require_targets(config)
    if args.check_config:
        print(f"ufwatch: the configuration is good: {_targets_text(config)}")
        return 0
    setup_logging(logs.level, logs.format)
    return run_loop(_serve(config, env, given))


def run_loop(work: Coroutine[Any, Any, int]) -> int:
    """Runs on uvloop where that extra is installed, which saves a fifth of the agent's CPU, otherwise on asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _targets_text(config: Config) -> str:
    found = f"{len(config.targets)} target{'' if len(config.targets) == 1 else 's'}"
    return f"{found} and discovery" if config.discovery.file_sd or config.discovery.dns else found


async def _serve(config: Config, env: Mapping[str, str], given: Flags) -> int:
    clock = SystemClock()
    fetcher = Fetcher(env, clock=clock)
    sink = PrometheusSink(Page(catalogue.FAMILIES))
    agent = assemble.agent(config, clock=clock, fetcher=fetcher, sinks=(sink,))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reload_asked = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, reload_asked.set)
    server = None
    try:
        server = await serve(build_app(sink, agent, agent.readings), config.web)
        fields = {"version": ufwatch.__version__, "address": server.url, "targets": len(config.targets)}
        _LOG.info("serving", extra={"fields": fields})
        running = asyncio.create_task(agent.run(), name="agent")
        reloading = asyncio.create_task(_reload_when_asked(agent, env, given, reload_asked), name="reload")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({running, stopping, reloading}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, reloading, stopping):
            task.cancel()
        results = await asyncio.gather(running, reloading, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        _LOG.info("stopped")
        return 0
    finally:
        if server is not None:
            await server.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await agent.close()
                await fetcher.close()


async def _reload_when_asked(agent: Agent, env: Mapping[str, str], given: Flags, asked: asyncio.Event) -> None:
    """Takes over a new configuration file; a bad one is logged whole and the old one goes on (collector issue 13432).

    What we listen on and the interval are read at the start only: changing them is a restart.
    """
    while True:
        await asked.wait()
        asked.clear()
        try:
            config = await asyncio.to_thread(settle, env, given)
            assemble.require_targets(config)
        except UfwatchError as error:
            agent.reload_succeeded = False
            for line in str(error).splitlines():
                _LOG.error("configuration not reloaded, the old one goes on", extra={"fields": {"mistake": line}})
            continue
        if config.web != agent.config.web or config.interval_seconds != agent.config.interval_seconds:
            _LOG.warning("web and interval are read at the start only; restart to change them")
        agent.reload_succeeded = True
        await agent.reconfigure(config, Discovery(config.discovery, config.targets))
        _LOG.info("configuration reloaded", extra={"fields": {"targets": _targets_text(config)}})
