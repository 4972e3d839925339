"""What a whole cycle costs: fetch, parse, derive, publish, one page a second. ``python -m tests.performance.cycle``.

The targets are another process with prebuilt busy pages, so that only the agent's own CPU is counted; it is read from
full windows on (the first minute is not measured). ufwatch and the naive agent (:mod:`.naive`) run in turn, each time
in a fresh process: A B A B. Objectives are off: the naive agent has none. Of each, the run that was disturbed least
counts: neighbours only ever add to CPU time, by emptying the caches between two scrapes. The last line is JSON:

- ``x_naive``: CPU per scrape of the naive agent over ufwatch's, 50 targets at 1 s, both on plain asyncio (≥ 10);
- ``x_naive_uvloop``: the same naive agent over ufwatch on uvloop, an optional extra (stretch: 15);
- ``core_share_200``: ratio of one core that 200 targets at 1 s take, on plain asyncio (≤ 0.20);
- ``skipped``: with those 200, scrapes due minus scrapes made in the measured window (0);
- ``us``: CPU microseconds per scrape of each.

Arguments: ``--rounds``, ``--seconds`` measured per run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from tests.performance.targets import busy_targets
from ufwatch import assemble, catalogue
from ufwatch.cli.run import spare_the_collector
from ufwatch.clock import SystemClock
from ufwatch.config import Config, GpuConfig, TargetConfig
from ufwatch.model import Exemplars, Sample
from ufwatch.render.exposition import Page
from ufwatch.sources.fetch import Fetcher

WARM_SECONDS = {"ours": 63, "naive": 5}
"""Ours costs least while its windows fill, so that time is left out; the naive agent derives all from the start."""


@dataclass(frozen=True)
class Cost:
    """What one run took in its measured window."""

    cpu_seconds: float
    wall_seconds: float
    scrapes: int
    skipped: int

    @property
    def us(self) -> float:
        return self.cpu_seconds / self.scrapes * 1e6


class Sink:
    """The page, and how often targets came onto it."""

    def __init__(self) -> None:
        self.page = Page(catalogue.FAMILIES)
        self.scrapes = self.skipped = 0
        self._last: dict[str, float] = {}

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None:
        if owner.startswith("target:"):
            now = time.monotonic()
            self.scrapes += 1
            self.skipped += max(0, round(now - self._last.get(owner, now)) - 1)
            self._last[owner] = now
        self.page.put(owner, list(samples), exemplars)

    def forget(self, owner: str) -> None:
        self.page.drop(owner)


async def measured(read_page: Callable[[], bytes], counts: Callable[[], tuple[int, int]], warm: int, n: int) -> Cost:
    """Reads the page once a second; the cost of the ``n`` seconds after ``warm``."""
    due = time.monotonic()

    async def seconds(number: int) -> None:
        nonlocal due
        for _ in range(number):
            due += 1.0
            await asyncio.sleep(due - time.monotonic())
            read_page()

    await seconds(warm)
    scrapes, skipped = counts()
    wall, cpu = time.monotonic(), time.process_time()
    await seconds(n)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    after = counts()
    return Cost(cpu, wall, after[0] - scrapes, after[1] - skipped)


async def ours(urls: Sequence[str], seconds: int) -> Cost:
    spare_the_collector()  # as `ufwatch run` does
    clock = SystemClock()
    sink = Sink()
    fetcher = Fetcher({}, clock=clock)
    targets = tuple(TargetConfig(name=f"10.0.0.{at}:8000", url=url) for at, url in enumerate(urls))
    config = Config(targets=targets, interval_seconds=1.0, gpu=GpuConfig(enabled=False), slos=())
    agent = assemble.agent(config, clock=clock, fetcher=fetcher, sinks=(sink,))
    running = asyncio.create_task(agent.run())
    cost = await measured(sink.page.text, lambda: (sink.scrapes, sink.skipped), WARM_SECONDS["ours"], seconds)
    page = sink.page.text()
    if page.count(b"\nufwatch_token_jitter_seconds{") != len(urls) or b'reason="timeout"} 1' in page:
        raise SystemExit("a target has no full window, or was not answered in time")
    running.cancel()
    await asyncio.wait({running})
    await agent.close()
    await fetcher.close()
    return cost


async def naive(urls: Sequence[str], seconds: int) -> Cost:
    from tests.performance.naive import NaiveAgent

    agent = NaiveAgent(urls)
    running = asyncio.create_task(agent.run())
    cost = await measured(agent.render, lambda: (agent.scrapes, 0), WARM_SECONDS["naive"], seconds)
    running.cancel()
    await asyncio.wait({running})
    return cost


def run(agent: str, loop: str, targets: int, seconds: int) -> Cost:
    """One run in a fresh process, over fresh targets."""
    with busy_targets(targets, pages=WARM_SECONDS[agent] + seconds + 10) as served:
        command = [sys.executable, "-m", "tests.performance.cycle", "--worker", agent, loop, str(seconds), *served.urls]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    cost = Cost(**json.loads(done.stdout))
    share = cost.cpu_seconds / cost.wall_seconds
    print(f"{agent} on {loop}, {targets} targets: {cost.us:.0f} µs a scrape, {share:.1%} of a core", flush=True)
    return cost


def work(agent: str, loop: str, seconds: str, *urls: str) -> None:
    """Inside the fresh process."""
    cost = {"ours": ours, "naive": naive}[agent](urls, int(seconds))
    if loop == "uvloop":
        import uvloop

        found = uvloop.run(cost)
    else:
        found = asyncio.run(cost)
    print(json.dumps(asdict(found)))


def main(rounds: int, seconds: int) -> None:
    runs = {
        "ours": ("ours", "asyncio", 50),
        "naive": ("naive", "asyncio", 50),
        "ours_uvloop": ("ours", "uvloop", 50),
        "ours_200": ("ours", "asyncio", 200),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (agent, loop, targets) in runs.items():
            costs[name].append(run(agent, loop, targets, seconds))
    best = {name: min(each, key=lambda cost: cost.us) for name, each in costs.items()}
    many = best["ours_200"]
    print(
        json.dumps(
            {
                "x_naive": round(best["naive"].us / best["ours"].us, 1),
                "x_naive_uvloop": round(best["naive"].us / best["ours_uvloop"].us, 1),
                "core_share_200": round(many.cpu_seconds / many.wall_seconds, 3),
                "skipped": many.skipped,
                "us": {name: round(cost.us) for name, cost in best.items()},
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description="What a whole cycle costs.")
        parser.add_argument("--rounds", type=int, default=2)
        parser.add_argument("--seconds", type=int, default=15)
        given = parser.parse_args()
        main(given.rounds, given.seconds)
