"""``ufwatch demo``: the whole agent on a simulated vLLM and a recorded H200; needs neither vLLM, GPU nor Prometheus."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ufwatch import assemble, catalogue
from ufwatch.agent import Agent
from ufwatch.cli.logs import setup_logging
from ufwatch.cli.options import add_log_options, add_serve_options, flags
from ufwatch.cli.run import run_loop, stop_asked
from ufwatch.clock import SystemClock
from ufwatch.config import Config, KvEventsConfig, TargetConfig, WebConfig
from ufwatch.errors import ConfigError, ListenError
from ufwatch.precedence import log_settings, settle
from ufwatch.render.exposition import Page
from ufwatch.render.table import demo_table
from ufwatch.sim.exporter import keep_alive
from ufwatch.sim.scenario import SCENARIOS
from ufwatch.sim.server import SimServer
from ufwatch.sinks.prometheus import PrometheusSink
from ufwatch.sources.discovery import Discovery
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.replay import GpuReplay
from ufwatch.web.app import build_app
from ufwatch.web.server import serve

SHOWN = ("steady", "jittery", "prefix_thrashing", "preempting")
INTERVAL_SECONDS = 1.0
WINDOW_SECONDS = 15.0
DEFAULT_SECONDS = 20
"""How long it runs where nobody watches it on a terminal."""
_HISTORY_SECONDS = 30.0


def configure(parser: argparse.ArgumentParser) -> None:
    add_serve_options(parser)
    add_log_options(parser)
    parser.add_argument(
        "--seconds",
        metavar="N",
        help=f"end after N seconds; default: on a terminal until Ctrl-C, otherwise {DEFAULT_SECONDS}",
    )


def execute(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Returns 0 when every simulated target was up at the end, otherwise 1."""
    given = flags(args)
    logs = log_settings(env, given)
    setup_logging(logs.level if given.log_level is not None else "error", logs.format)
    web = settle(env, given).web
    seconds = None if args.seconds is None and sys.stdout.isatty() else _seconds(args.seconds)
    port_given = given.port is not None or "UFWATCH_PORT" in env
    return run_loop(_demo(web, env, seconds, sys.stdout, any_port=not port_given))


def _seconds(text: str | None) -> float:
    if text is None:
        return float(DEFAULT_SECONDS)
    if not text.isdecimal() or not 1 <= int(text) <= 86400:
        raise ConfigError("ufwatch", [f"--seconds: {text!r} is not a whole number from 1 to 86400"])
    return float(text)


async def _demo(web: WebConfig, env: Mapping[str, str], seconds: float | None, out: TextIO, *, any_port: bool) -> int:
    clock = SystemClock()
    events = bool(importlib.util.find_spec("zmq")) and bool(importlib.util.find_spec("msgspec"))
    async with contextlib.AsyncExitStack() as stack:
        stop = stack.enter_context(stop_asked())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ufwatch-demo-")))
        exporter = asyncio.create_task(keep_alive(folder, clock))
        stack.callback(exporter.cancel)
        targets = []
        for name in SHOWN:
            server = await stack.enter_async_context(
                SimServer(SCENARIOS[name], warm_seconds=_HISTORY_SECONDS, clock=clock)
            )
            kv_events = KvEventsConfig(bind=f"tcp://127.0.0.1:{_free_port()}") if events else None
            if kv_events is not None and kv_events.bind is not None:
                server.publish_kv_events(kv_events.bind)
            card = ("0",) if name == SHOWN[0] else ()
            targets.append(
                TargetConfig(
                    name=name, url=server.url, gpus=card, textfile=folder if card else None, kv_events=kv_events
                )
            )
        config = Config(targets=tuple(targets), interval_seconds=INTERVAL_SECONDS, web=web)
        fetcher = Fetcher(env, clock=clock)
        stack.push_async_callback(fetcher.close)
        sink = PrometheusSink(Page(catalogue.FAMILIES))
        agent = Agent(
            config,
            attach=assemble.attach(fetcher, clock),
            gpus=GpuReplay(clock),
            sinks=(sink,),
            clock=clock,
            discovery=Discovery(config.discovery, config.targets),
            window_seconds=WINDOW_SECONDS,
        )
        app = build_app(sink, agent, agent.readings)
        try:
            served = await serve(app, web)
        except ListenError:
            # An agent may be running already; a demo that was not told a port takes another rather than refuse.
            if not any_port:
                raise
            served = await serve(app, WebConfig(host=web.host, port=0, config_file=web.config_file))
        stack.push_async_callback(served.stop)
        running = asyncio.create_task(agent.run())
        try:
            await _show(agent, served.url, seconds, stop, out)
            return int(any(not document["up"] for document in agent.readings()["targets"]))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _show(agent: Agent, url: str, seconds: float | None, stop: asyncio.Event, out: TextIO) -> None:
    """Draws the table once a second on a terminal; elsewhere once, at the end."""
    terminal = out.isatty()
    elapsed, drawn = 0.0, 0
    while not stop.is_set() and (seconds is None or elapsed < seconds):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
        elapsed += 1.0
        if terminal:
            text = _text(agent, url, elapsed, "Ctrl-C ends it.")
            out.write(f"\x1b[{drawn}F\x1b[J" if drawn else "")
            out.write(text)
            out.flush()
            drawn = text.count("\n")
    if not terminal:
        out.write(_text(agent, url, elapsed, ""))
        out.flush()


def _text(agent: Agent, url: str, elapsed: float, hint: str) -> str:
    head = (
        f"ufwatch demo: {len(SHOWN)} simulated vLLM servers and a recorded H200, looked at every second for "
        f"{elapsed:.0f} s; rates over the last {WINDOW_SECONDS:.0f} s.\n\n"
    )
    foot = f"\nMetrics for Prometheus: {url}/metrics   the same as JSON: {url}/api/v1/readings   {hint}".rstrip()
    return head + demo_table(agent.readings()["targets"]) + foot + "\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
