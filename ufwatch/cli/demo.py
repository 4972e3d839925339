"""``ufwatch demo``: the whole agent on a simulated vLLM and a recorded H200; needs neither vLLM, GPU nor Prometheus."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from ufwatch import assemble, catalogue
from ufwatch.agent import Agent
from ufwatch.cli.logs import setup_logging
from ufwatch.cli.options import add_log_options, add_serve_options, flags
from ufwatch.cli.run import run_loop, stop_asked
from ufwatch.clock import SystemClock
from ufwatch.config import Config, KvEventsConfig, TargetConfig, WebConfig
from ufwatch.errors import ConfigError, ListenError
from ufwatch.model import REASONS, Reason
from ufwatch.precedence import log_settings, settle
from ufwatch.render.exposition import Page
from ufwatch.render.table import reasons_used, side_by_side
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
WIDE = 160
"""Columns where there is no terminal to ask."""
_HISTORY_SECONDS = 30.0
_SECOND_SCREEN, _FIRST_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
_FROM_THE_TOP = "\x1b[H\x1b[J"


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
            slo=assemble.desk(config, clock),
        )
        app = build_app(sink, agent, agent.readings, agent.slos)
        try:
            served = await serve(app, web)
        except ListenError:
            # An agent may be running already; a demo that was not told a port takes another rather than refuse.
            if not any_port:
                raise
            served = await serve(app, WebConfig(host=web.host, port=0, config_file=web.config_file))
            print(f"port {web.port} is in use, so the demo serves {served.url}", file=sys.stderr)
        stack.push_async_callback(served.stop)
        running = asyncio.create_task(agent.run())
        try:
            await _show(agent, served.url, seconds, stop, out)
            return int(any(not document["up"] for document in agent.readings()["targets"]))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _show(agent: Agent, url: str, seconds: float | None, stop: asyncio.Event, out: TextIO) -> None:
    """Draws the table once a second on a terminal's second screen, and leaves the last one behind."""
    terminal = out.isatty()
    elapsed, text = 0, ""
    if terminal:
        out.write(_SECOND_SCREEN)
    try:
        while not stop.is_set() and (seconds is None or elapsed < seconds):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
            elapsed += 1
            columns, lines = shutil.get_terminal_size((WIDE, 0)) if terminal else (WIDE, 0)
            text = _text(agent.readings()["targets"], url, elapsed, columns)
            if terminal:
                fitting = text.splitlines()[: lines - 2] if lines else text.splitlines()
                out.write(_FROM_THE_TOP + "\r\n".join([*fitting, "Ctrl-C ends it."]))
                out.flush()
    finally:
        if terminal:
            out.write(_FIRST_SCREEN)
        out.write(text)
        out.flush()


def _text(targets: Sequence[Mapping[str, Any]], url: str, elapsed: int, columns: int) -> str:
    lines = [
        f"ufwatch demo: {len(targets)} simulated vLLM servers and a recorded H200, after {elapsed} s",
        f"rates over the last {WINDOW_SECONDS:.0f} s",
        "",
        side_by_side(targets, columns),
        *(f"({reason}): {REASONS[Reason(reason)]}" for reason in reasons_used(targets)),
        f"Metrics: {url}/metrics",
        f"JSON:    {url}/api/v1/readings",
    ]
    return "\n".join(line if "\n" in line else line[:columns] for line in lines) + "\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
