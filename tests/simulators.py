"""Simulated servers on an event loop in a thread of its own: a test may wait for a process without stopping them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Self, TypeVar

from ufwatch.sim.scenario import SCENARIOS, Scenario
from ufwatch.sim.server import SimServer

T = TypeVar("T")

BUSY = replace(SCENARIOS["steady"], arrivals_per_second=0.0, concurrency=3)
"""Never without work, so that its state is ``serving`` at every look."""
BUSY_PAIR = replace(SCENARIOS["two_engines"], arrivals_per_second=0.0, concurrency=8)


class Simulators:
    """The servers that were started here; all are stopped at the end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="simulators", daemon=True)
        self._servers: list[SimServer] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            self.run(server.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` on the servers' loop and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def start(
        self, scenario: Scenario | str, *, kv_events: str | None = None, warm_seconds: float = 5.0, port: int = 0
    ) -> SimServer:
        """A server that answers; it publishes its KV events at that endpoint, if one is given."""
        known = SCENARIOS[scenario] if isinstance(scenario, str) else scenario

        async def begin() -> SimServer:
            server = await SimServer(known, warm_seconds=warm_seconds, port=port).__aenter__()
            if kv_events is not None:
                server.publish_kv_events(kv_events)
            return server

        server = self.run(begin())
        self._servers.append(server)
        return server

    def die(self, server: SimServer) -> None:
        """From now on connections to it are refused."""
        self.run(server.stop_listening())

    def revive(self, server: SimServer) -> None:
        """It answers again, on the same port and with what it has counted meanwhile."""
        self.run(server.start_listening())
