"""Fifty simulated vLLM servers of all kinds, every second of which suffers: for :mod:`tests.performance.endurance`.

``python -m tests.performance.faulty_fleet SEED`` prints the addresses, then answers each line of questions with a line
of truths until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace

from ufwatch.sim.journal import Truth
from ufwatch.sim.scenario import SCENARIOS
from ufwatch.sim.server import Fault, SimServer

TARGETS = 50
FAULTS: tuple[Fault, ...] = ("cut_body", "hang", "status_500", "reset")
TRUTHS = (
    *("prefill_tokens_computed", "prefill_tokens_cached", "decode_tokens", "interval_count", "interval_sum"),
    *("interval_square_sum", "prefill_seconds", "decode_seconds", "recycles", "preemptions"),
)

Figures = dict[str, float]


async def simulate(seed: int) -> None:
    """What this module says."""
    rnd = random.Random(seed)
    names = list(SCENARIOS)
    async with AsyncExitStack() as stack:
        servers = []
        for at in range(TARGETS):
            # Two neighbours have the same scenario: one is left alone, the other is not.
            scenario = replace(SCENARIOS[names[at // 2 % len(names)]], seed=seed + at)
            servers.append(await stack.enter_async_context(SimServer(scenario, warm_seconds=30.0)))
        told = [{"url": server.url, "alone": _alone(at, server)} for at, server in enumerate(servers)]
        print(json.dumps(told), flush=True)
        vexing = [asyncio.create_task(vex(server, random.Random(rnd.random()))) for server in servers[1::2]]
        sums = Sums(servers)
        while line := await asyncio.to_thread(sys.stdin.readline):
            answer = [sums.window(*question) for question in json.loads(line)]
            print(json.dumps({"since_start": await sums.since_start(), "windows": answer}), flush=True)
        for task in vexing:
            task.cancel()


def _alone(at: int, server: SimServer) -> bool:
    return at % 2 == 0 and server.engine.scenario.restart_every_seconds is None


async def vex(server: SimServer, rnd: random.Random) -> None:
    """One fault after the other, with some time to recover."""
    while True:
        await asyncio.sleep(rnd.uniform(5.0, 40.0))
        kind = rnd.choice((*FAULTS, None))
        if kind is None:
            server.restart(down_seconds=rnd.uniform(0.0, 6.0))
        else:
            server.fault = kind
            await asyncio.sleep(rnd.uniform(0.5, 8.0))
            server.fault = None


class Sums:
    """The truth of every engine: of windows, and of all time since the first question."""

    def __init__(self, servers: list[SimServer]) -> None:
        self._servers = servers
        # The simulators' time is the monotonic clock's less a constant.
        self._began = [time.monotonic() - _present(server) for server in servers]
        self._since = [server.engine.now for server in servers]
        self._sums = [[dict.fromkeys(TRUTHS, 0.0) for _ in range(server.engine.scenario.engines)] for server in servers]

    def window(self, at: int, engine: int, start: float, stop: float) -> Figures:
        """Of one engine between two monotonic times."""
        server, began = self._servers[at], self._began[at]
        now = _present(server)
        return _figures(server.engine.truth(max(0.0, start - began), min(now, max(start, stop) - began), engine))

    async def since_start(self) -> list[list[Figures]]:
        for at, server in enumerate(self._servers):
            before, self._since[at] = self._since[at], _present(server)
            for engine, sums in enumerate(self._sums[at]):
                for name, value in _figures(server.engine.truth(before, self._since[at], engine)).items():
                    sums[name] += value
            await asyncio.sleep(0)  # the servers must go on answering
        return self._sums


def _present(server: SimServer) -> float:
    server.catch_up()
    return server.engine.now


def _figures(truth: Truth) -> Figures:
    return {name: float(getattr(truth, name)) for name in TRUTHS}


if __name__ == "__main__":
    asyncio.run(simulate(int(sys.argv[1])))
