"""``ufwatch run``: watches until stopped. SIGTERM ends it, SIGHUP reads the configuration again."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any

import ufwatch
from ufwatch import assemble, catalogue
from ufwatch.agent import Agent
from ufwatch.cli.logs import setup_logging
from ufwatch.cli.options import (
    add_log_options,
    add_probe_options,
    add_serve_options,
    add_state_options,
    add_target_options,
    flags,
)
from ufwatch.clock import SystemClock
from ufwatch.config import Config
from ufwatch.errors import UfwatchError
from ufwatch.precedence import Flags, log_settings, settle
from ufwatch.render.exposition import Page
from ufwatch.sinks.prometheus import PrometheusSink
from ufwatch.sources.discovery import Discovery
from ufwatch.sources.fetch import Fetcher
from ufwatch.trace.endpoint import endpoint_from
from ufwatch.web import toolkit
from ufwatch.web.app import build_app
from ufwatch.web.server import serve

_LOG = logging.getLogger("ufwatch")
_COLLECT_SECONDS = 60.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_target_options(parser)
    add_serve_options(parser)
    add_log_options(parser)
    add_state_options(parser)
    add_probe_options(parser)
    parser.add_argument("--check-config", action="store_true", help="check the configuration, say so and end")


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 after SIGTERM or SIGINT; a mistake in the configuration or a taken port raises a UfwatchError."""
    given = flags(args)
    logs = log_settings(env, given)
    config = settle(env, given)
    assemble.require_targets(config)
    if config.probes or config.otlp_receive or given.otlp is not None:
        # Made when the first probe is; a mistake in it is told before anything is served.
        endpoint_from(env, given.otlp, file=config.otlp_endpoint)
    if args.check_config:
        if config.web.config_file is not None:
            toolkit.load(config.web.config_file)
        print(f"ufwatch: the configuration is good: {_targets_text(config)}")
        return 0
    setup_logging(logs.level, logs.format)
    spare_the_collector()
    return run_loop(_serve(config, env, given))


def spare_the_collector() -> None:
    """Lets the cyclic collector look less often, and never again at what has been imported.

    At its defaults it takes a twelfth of the agent's CPU. What lived long and died in a cycle, such as a connection, is
    left to :func:`_collect`: the collector's own full rounds come at no certain time, and memory would creep.
    """
    gc.freeze()
    gc.set_threshold(3_000, 10, 1_000)


async def _collect() -> None:
    """Frees what holds itself, once a minute; some 10 ms for fifty targets."""
    while True:
        await asyncio.sleep(_COLLECT_SECONDS)
        gc.collect()


def run_loop(work: Coroutine[Any, Any, int]) -> int:
    """Runs on uvloop where that extra is installed, which saves a fifth of the agent's CPU, otherwise on asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


@contextlib.contextmanager
def stop_asked() -> Iterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set. Once it is set, both are ignored until the process is gone.

    Not ``add_signal_handler``: a closing loop puts the default actions back, and a second SIGTERM that comes while the
    interpreter winds up would turn the clean end into a death by signal.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def asked(_number: int, _frame: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stop.is_set() else handler)


def _targets_text(config: Config) -> str:
    found = f"{len(config.targets)} target{'' if len(config.targets) == 1 else 's'}"
    return f"{found} and discovery" if config.discovery.file_sd or config.discovery.dns else found


async def _serve(config: Config, env: Mapping[str, str], given: Flags) -> int:
    clock = SystemClock()
    fetcher = Fetcher(env, clock=clock)
    sink = PrometheusSink(Page(catalogue.FAMILIES))
    probes = assemble.probes(config, clock, fetcher, env, given.otlp)
    receiving = assemble.receiving(config, clock, env, given.otlp)
    agent = assemble.agent(config, clock=clock, fetcher=fetcher, sinks=(sink,), probes=probes, receiving=receiving)
    reload_asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_asked.set)
    server = None
    with stop_asked() as stop:
        try:
            server = await serve(build_app(sink, agent, agent.readings, agent.slos), config.web)
            if receiving is not None:
                await receiving.start()
            fields = {"version": ufwatch.__version__, "address": server.url, "targets": len(config.targets)}
            _LOG.info("serving", extra={"fields": fields})
            running = asyncio.create_task(agent.run(), name="agent")
            reloading = asyncio.create_task(_reload_when_asked(agent, env, given, reload_asked), name="reload")
            stopping = asyncio.create_task(stop.wait(), name="stop")
            collecting = asyncio.create_task(_collect(), name="collect")
            await asyncio.wait({running, stopping, reloading}, return_when=asyncio.FIRST_COMPLETED)
            for task in (running, reloading, stopping, collecting):
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
                    await asyncio.gather(agent.close(), *([receiving.stop()] if receiving is not None else []))
                    await fetcher.close()


async def _reload_when_asked(agent: Agent, env: Mapping[str, str], given: Flags, asked: asyncio.Event) -> None:
    """Takes over a new configuration file; a bad one is logged whole and the old one goes on (collector issue 13432).

    What :func:`_settled_once` names is read at the start only: changing it is a restart.
    """
    while True:
        await asked.wait()
        asked.clear()
        before = agent.config
        try:
            config = await asyncio.to_thread(settle, env, given)
            assemble.require_targets(config)
            await agent.reconfigure(config, Discovery(config.discovery, config.targets))
        except UfwatchError as error:
            agent.reload_succeeded = False
            for line in str(error).splitlines():
                _LOG.error("configuration not reloaded, the old one goes on", extra={"fields": {"mistake": line}})
            continue
        if _settled_once(config) != _settled_once(before):
            _LOG.warning(
                "interval, web, gpu, dcgm, slos, state_dir, otlp and discovery.refresh are read at the start only; "
                "restart for them"
            )
        agent.reload_succeeded = True
        _LOG.info("configuration reloaded", extra={"fields": {"targets": _targets_text(config)}})


def _settled_once(config: Config) -> tuple[object, ...]:
    exporters = {target.dcgm for target in config.targets}
    return (
        config.interval_seconds,
        config.web,
        config.gpu,
        config.discovery.refresh_seconds,
        exporters,
        config.slos,
        config.state_dir,
        config.otlp_endpoint,
        config.otlp_receive,
    )
