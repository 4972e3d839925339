"""The simulated vLLM on a loopback socket and a real clock.

async with SimServer(SCENARIOS["jittery"], version="0.32.0") as server:
    ...  # GET {server.url}/metrics, POST {server.url}/v1/completions, server.engine.truth(…)
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Literal, Self

from ufwatch.clock import Clock, SystemClock
from ufwatch.sim.connection import Connection
from ufwatch.sim.engine import SimEngine
from ufwatch.sim.scenario import Scenario

if TYPE_CHECKING:
    from ufwatch.sim.kv_events import KvEventPublisher

Fault = Literal["cut_body", "hang", "status_500", "reset"]
"""What ``/metrics`` suffers: cut within a number without a length, no answer, an error, a connection reset."""

_CATCH_UP_SECONDS = 0.5
"""How often the synthetic load is worked off when nobody is waiting for a token: a long gap would come as one block."""


@dataclass(frozen=True, slots=True)
class StreamFault:
    """What a streamed answer suffers after so many tokens: a reset, or a clean end without ``[DONE]``."""

    kind: Literal["reset", "eof"]
    after_tokens: int


class SimServer:
    """Serves one scenario. ``engine`` runs on the clock, from ``warm_seconds`` of history on.

    ``fault`` and ``stream_fault`` may be set at any time; ``scrapes`` counts the requests for ``/metrics``.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        version: str = "0.32.0",
        host: str = "127.0.0.1",
        port: int = 0,
        warm_seconds: float = 0.0,
        keep_alive_seconds: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._begin = self._clock.monotonic() - warm_seconds
        self.engine = SimEngine(scenario, wall_start=self._clock.wall() - warm_seconds)
        self.version = version
        self.keep_alive_seconds = keep_alive_seconds
        self.fault: Fault | None = None
        self.stream_fault: StreamFault | None = None
        self.scrapes = 0
        self.live = 0
        """Completions being answered."""
        self.connections: set[Connection] = set()
        self._host = host
        self._port = port
        self._numbers = count(1)
        self._listener: asyncio.Server | None = None
        self._driver: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._process_start = self.engine.process_start_seconds
        self._kv_events: KvEventPublisher | None = None

    @property
    def url(self) -> str:
        """The base address, without a slash at the end."""
        return f"http://{self._host}:{self._port}"

    async def __aenter__(self) -> Self:
        # An unknown version fails here, not in an answer.
        self.engine.page(self.version)
        self.catch_up()
        await self.start_listening()
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
        await self.stop_listening()
        if self._kv_events is not None:
            self._kv_events.close()

    def publish_kv_events(self, endpoint: str, replay: str | None = None) -> KvEventPublisher:
        """Publishes KV events from now on, as ``--kv-events-config`` does; SourceError without pyzmq and msgspec."""
        # Imported here because the extra may be missing.
        from ufwatch.sim.kv_events import KvEventPublisher

        self._kv_events = KvEventPublisher(self.engine, endpoint, version=self.version, replay=replay)
        return self._kv_events

    async def start_listening(self) -> None:
        """Listens, on the same port as before if there was one. OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: Connection(self), self._host, self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Refuses new connections and drops the open ones."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await asyncio.gather(*[connection.finish() for connection in list(self.connections)])

    def restart(self, down_seconds: float = 0.0) -> None:
        """The process dies now, with its connections, and is back after ``down_seconds`` with counters at 0."""
        self.catch_up()
        self.engine.restart(down_seconds)
        self.catch_up()

    def catch_up(self) -> None:
        """Brings the engine to the present; connections to a process that died meanwhile are dropped."""
        self.engine.advance(max(self.engine.now, self._clock.monotonic() - self._begin))
        if self.engine.process_start_seconds != self._process_start:
            self._process_start = self.engine.process_start_seconds
            for connection in list(self.connections):
                connection.drop()
        if self._kv_events is not None:
            self._kv_events.flush()

    def wake(self) -> None:
        """Tells the driver that somebody waits for a token."""
        self._wake.set()

    def next_number(self) -> int:
        return next(self._numbers)

    def wall_seconds(self) -> int:
        """Unix time, for the ``created`` of an answer."""
        return int(self._clock.wall())

    async def _drive(self) -> None:
        while True:
            self._wake.clear()
            self.catch_up()
            wait = _CATCH_UP_SECONDS
            if self.live and math.isfinite(self.engine.next_step_end):
                wait = min(wait, max(0.0, self.engine.next_step_end - (self._clock.monotonic() - self._begin)))
            try:
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            except TimeoutError:
                continue
