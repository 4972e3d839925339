"""What the tests of the web share: an application that listens for the length of a test, and doubles behind it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from ufwatch.config import WebConfig
from ufwatch.model import Sample
from ufwatch.render.exposition import Page
from ufwatch.sinks.prometheus import PrometheusSink
from ufwatch.spec import Kind, MetricSpec
from ufwatch.web.app import build_app
from ufwatch.web.server import Served, serve

SPEC = MetricSpec(name="things_total", kind=Kind.COUNTER, labels=("target",), help="Things.")


def entry(signal: str, **changes: Any) -> dict[str, Any]:
    """One signal of the readings, known and exact unless told otherwise."""
    known = {"labels": {}, "value": 0.5, "low": None, "high": None, "source": "counters", "quality": "exact"}
    return {"signal": signal, **known, "reason": None, **changes}


def readings(name: str = "chat-a") -> dict[str, Any]:
    """The object of ``once --json`` for one target."""
    signals = [
        entry("page_table_miss", value=0.25),
        entry("token_jitter", value=None, quality=None, source=None, reason="idle"),
        entry("sm_utilization", labels={"gpu": "0"}),
        entry("ttft_mean", value=1.5),
    ]
    return {"targets": [{"target": name, "up": True, "state": "serving", "reason": None, "signals": signals}]}


@dataclass(slots=True)
class Agent:
    """Stands in for the agent; each part may be made to fail."""

    why_not: str = ""
    document: Any = field(default_factory=readings)
    failure: Exception | None = None

    def ready(self) -> tuple[bool, str]:
        return not self.why_not, self.why_not

    def readings(self) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        document: dict[str, Any] = self.document
        return document


def sink() -> PrometheusSink:
    """A page with one series."""
    made = PrometheusSink(Page((SPEC,)))
    made.publish("target:a", [Sample("things_total", (("target", "a"),), 1.0)])
    return made


def exchange(
    work: Callable[[aiohttp.ClientSession, Served], Awaitable[None]],
    *,
    agent: Agent | None = None,
    page: Any = None,
    config_file: Path | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serves, runs ``work`` with a client whose base address is the server, and stops."""

    async def main() -> None:
        known = agent or Agent()
        app = build_app(page or sink(), known, known.readings)
        served = await serve(app, WebConfig(port=0, config_file=config_file))
        # The loop's slow-callback times do not matter here; a stuck server must not hang the tests.
        limit = aiohttp.ClientTimeout(total=10)
        connector = aiohttp.TCPConnector(ssl=tls if tls is not None else True, force_close=True)
        try:
            async with aiohttp.ClientSession(
                served.url, connector=connector, timeout=limit, auto_decompress=False
            ) as client:
                await work(client, served)
        finally:
            await served.stop()

    asyncio.run(main())
