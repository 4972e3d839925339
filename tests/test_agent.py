"""The agent with everything at once: readers, slow and broken targets, failing sinks, targets that come and go."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, ParamSpec

import aiohttp
import pytest

from tests.pages import engine_page
from tests.simulators import BUSY
from ufwatch import assemble, catalogue
from ufwatch.agent import Agent, Attached
from ufwatch.clock import Clock, ManualClock, SystemClock
from ufwatch.config import Config, DiscoveryConfig, TargetConfig, WebConfig
from ufwatch.errors import SourceError
from ufwatch.model import UP, Exemplars, Sample
from ufwatch.pipeline import Page as PageOf
from ufwatch.render.exposition import Page
from ufwatch.sim.server import SimServer
from ufwatch.sinks.memory import MemorySink
from ufwatch.sinks.prometheus import PrometheusSink
from ufwatch.sources.discovery import Discovery
from ufwatch.sources.fetch import Fetched, Fetcher
from ufwatch.sources.replay import GpuReplay
from ufwatch.web.app import build_app
from ufwatch.web.server import serve

P = ParamSpec("P")
INTERVAL = 0.1


def looped(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


class Following:
    """An agent over real sources that runs by itself for as long as a test looks at it."""

    def __init__(
        self, *targets: TargetConfig, sinks: Iterable[Any] = (), discovery: DiscoveryConfig | None = None
    ) -> None:
        self.sink = MemorySink()
        self.fetcher = Fetcher({})
        clock = SystemClock()
        config = Config(targets=targets, interval_seconds=INTERVAL, discovery=discovery or DiscoveryConfig())
        self.agent = Agent(
            config,
            attach=assemble.attach(self.fetcher, clock),
            gpus=None,
            sinks=(*sinks, self.sink),
            clock=clock,
            discovery=Discovery(config.discovery, config.targets),
        )

    async def __aenter__(self) -> Following:
        self.running = asyncio.create_task(self.agent.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.agent.close()
        await self.fetcher.close()

    def state(self, target: str) -> str | None:
        report = self.agent.targets[target].report if target in self.agent.targets else None
        return report.state.value if report is not None and report.state is not None else None


def _at(server: SimServer, name: str) -> TargetConfig:
    return TargetConfig(name=name, url=server.url)


@looped
async def test_a_target_is_asked_once_per_interval_however_many_read_the_page() -> None:
    async with SimServer(BUSY) as server:
        page = PrometheusSink(Page(catalogue.FAMILIES))
        async with Following(_at(server, "a"), sinks=(page,)) as following, aiohttp.ClientSession() as session:
            agent = following.agent
            served = await serve(build_app(page, agent, agent.readings), WebConfig(port=0))
            begun, read = time.monotonic(), 0

            async def reader(path: str) -> None:
                nonlocal read
                while server.scrapes < 10:
                    async with session.get(served.url + path) as answer:
                        assert answer.status == 200
                        read += len(await answer.read()) > 0

            await asyncio.gather(*(reader(path) for path in ("/metrics", "/api/v1/readings", "/", "/health") * 3))
            elapsed = time.monotonic() - begun
            await served.stop()
    assert read > 50
    assert 10 <= server.scrapes <= elapsed / INTERVAL + 2


@looped
async def test_a_target_that_hangs_delays_nobody() -> None:
    async with SimServer(BUSY) as good, SimServer(BUSY) as bad:
        bad.fault = "hang"
        async with Following(_at(bad, "bad"), _at(good, "good")) as following:
            await until(lambda: good.scrapes)
            begun = time.monotonic()
            await until(lambda: good.scrapes >= 21)
            elapsed = time.monotonic() - begun
            assert following.state("good") == "serving"
            health = following.agent.targets["bad"].lives["vllm"].health
            assert (health.up, health.reason) == (False, "timeout")
    # Twenty rounds; were they made one after the other, each would wait nine tenths of an interval for the other.
    assert elapsed < 1.5 * 20 * INTERVAL
    assert bad.scrapes >= 15


class Broken:
    """A sink that fails at everything."""

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None:
        raise RuntimeError(f"cannot take {owner} with {samples} and {exemplars}")

    def forget(self, owner: str) -> None:
        raise RuntimeError(f"cannot forget {owner}")


@looped
async def test_a_sink_that_fails_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with SimServer(BUSY) as server, Following(_at(server, "a"), sinks=(Broken(),)) as following:
        await until(lambda: "target:a" in following.sink.samples and "agent" in following.sink.samples)
        await following.agent.reconfigure(Config(), Discovery(DiscoveryConfig(), ()))
        assert "target:a" not in following.sink.samples
        assert not following.running.done()
    told = {vars(record)["fields"]["owner"] for record in caplog.records if record.getMessage() == "a sink failed"}
    assert told == {"target:a", "agent"}


class Pages:
    """Pages of one engine; every ``fails`` set makes the next poll a bug."""

    def __init__(self, clock: Clock, *, more: str = "") -> None:
        self.clock, self.more = clock, more
        self.fails = False
        self.polls = 0

    async def poll(self, deadline_seconds: float) -> Fetched:
        del deadline_seconds
        self.polls += 1
        if self.fails:
            raise RuntimeError("a bug")
        body = engine_page(generation=10.0 * self.polls, running=1, usage=0.001 * self.polls, more=self.more)
        return Fetched(at_seconds=self.clock.monotonic(), health=UP, body=body, seconds=0, wire_bytes=len(body))


def _over(
    page: PageOf, sink: MemorySink, clock: Clock, *, target: TargetConfig | None = None, gpus: GpuReplay | None = None
) -> Agent:
    config = Config(targets=(target or TargetConfig(name="a", url="http://a"),), interval_seconds=INTERVAL)
    return Agent(
        config,
        attach=lambda _: Attached(page),
        gpus=gpus,
        sinks=(sink,),
        clock=clock,
        discovery=Discovery(config.discovery, config.targets),
        follow=gpus is None,
    )


@looped
async def test_a_round_that_fails_is_logged_shows_nothing_old_and_the_next_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    page, sink = Pages(SystemClock()), MemorySink()
    agent = _over(page, sink, SystemClock())
    running = asyncio.create_task(agent.run())
    await until(lambda: "target:a" in sink.samples)
    page.fails = True
    await until(lambda: "target:a" not in sink.samples)
    failed = page.polls
    await until(lambda: page.polls > failed + 1)
    page.fails = False
    await until(lambda: "target:a" in sink.samples)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    records = [r for r in caplog.records if r.getMessage().startswith("a round failed; this is a bug")]
    assert len(records) >= 2
    assert records[0].exc_info is not None


@looped
async def test_targets_of_a_file_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"

    def name(*servers: SimServer) -> None:
        beside = tmp_path / "beside"
        beside.write_text(json.dumps([{"targets": [server.url.removeprefix("http://") for server in servers]}]))
        beside.replace(file)

    async with SimServer(BUSY) as one, SimServer(BUSY) as two:
        name(one)
        discovery = DiscoveryConfig(file_sd=(str(file),), refresh_seconds=0.05)
        async with Following(discovery=discovery) as following:
            at = {server: f"target:{server.url.removeprefix('http://')}" for server in (one, two)}
            await until(lambda: at[one] in following.sink.samples)
            name(one, two)
            await until(lambda: at[two] in following.sink.samples)
            name(two)
            await until(lambda: at[one] not in following.sink.samples)
            before = one.scrapes, two.scrapes
            await until(lambda: two.scrapes >= before[1] + 3)
            assert one.scrapes <= before[0] + 1
            assert at[two] in following.sink.samples


class Gated(Discovery):
    """A look that ends when it is told to."""

    def __init__(self, *targets: TargetConfig) -> None:
        super().__init__(DiscoveryConfig(), targets)
        self.entered, self.gate = asyncio.Event(), asyncio.Event()

    async def poll(self) -> tuple[TargetConfig, ...]:
        found = await super().poll()
        self.entered.set()
        await self.gate.wait()
        return found


def _idle_agent(discovery: Discovery, attach: Callable[[TargetConfig], Attached] | None = None) -> Agent:
    clock = ManualClock()
    return Agent(
        Config(interval_seconds=INTERVAL),
        attach=attach or (lambda _: Attached(Pages(clock))),
        gpus=None,
        sinks=(MemorySink(),),
        clock=clock,
        discovery=discovery,
        follow=False,
    )


@looped
async def test_a_look_under_way_does_not_undo_a_reload() -> None:
    old, new = TargetConfig(name="old", url="http://old"), TargetConfig(name="new", url="http://new")
    slow = Gated(old)
    agent = _idle_agent(slow)
    looking = asyncio.create_task(agent.find_targets())
    await slow.entered.wait()
    reload = asyncio.create_task(agent.reconfigure(Config(targets=(new,)), Discovery(DiscoveryConfig(), (new,))))
    await asyncio.sleep(0)
    slow.gate.set()
    await asyncio.gather(looking, reload)
    assert list(agent.targets) == ["new"]


@looped
async def test_a_reload_whose_sources_cannot_be_made_changes_nothing() -> None:
    def attach(config: TargetConfig) -> Attached:
        if config.name == "bad":
            raise SourceError("an extra is missing")
        return Attached(Pages(ManualClock()))

    old, changed = TargetConfig(name="a", url="http://a"), TargetConfig(name="a", url="http://changed")
    bad = TargetConfig(name="bad", url="http://bad")
    agent = _idle_agent(Discovery(DiscoveryConfig(), (old,)), attach)
    await agent.find_targets()
    before = agent.targets["a"]
    with pytest.raises(SourceError):
        await agent.reconfigure(Config(targets=(changed, bad)), Discovery(DiscoveryConfig(), (changed, bad)))
    await agent.find_targets()
    assert agent.targets == {"a": before}
    await agent.reconfigure(Config(targets=(changed,), interval_seconds=60), Discovery(DiscoveryConfig(), (changed,)))
    assert agent.targets["a"].config == changed
    assert agent.config.interval_seconds == INTERVAL


NO_PREALLOCATION = 'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000"} 1'
PREALLOCATION = NO_PREALLOCATION.replace("engine", 'gpu_memory_utilization="0.92",engine')


@pytest.mark.parametrize(
    ("more", "gpus", "decided"),
    [
        (NO_PREALLOCATION, ("0",), True),
        (PREALLOCATION, ("0",), False),
        ("", ("0",), False),
        (NO_PREALLOCATION, ("7",), False),
    ],
    ids=["known not to preallocate", "preallocates", "not known", "not mapped"],
)
@looped
async def test_the_device_breaker_is_for_cards_of_servers_known_not_to_preallocate(
    more: str, gpus: tuple[str, ...], decided: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ufwatch.target")
    clock, sink = ManualClock(), MemorySink()
    target = TargetConfig(name="a", url="http://a", gpus=gpus)
    agent = _over(Pages(clock, more=more), sink, clock, target=target, gpus=GpuReplay(clock))
    await agent.find_targets()

    async def look() -> tuple[float | None, float | None, float]:
        await agent.poll_gpus()
        await agent.cycle(agent.targets["a"])
        found = {s.metric: s.value for s in sink.samples["target:a"] if ("kind", "device") in s.labels}
        (known,) = (s.value for s in sink.samples["target:a"] if ("signal", "memory_breaker_device") in s.labels)
        clock.advance(1.0)
        return found.get("memory_breaker_open"), found.get("memory_breaker_trips_total"), known

    # The recorded card is at 92.5 %, and the server must first be seen to do work.
    seen = [await look() for _ in range(12)]
    assert [open_ for open_, _, _ in seen].count(1.0) == (6 if decided else 0)
    # What was never decided is not shown as a breaker that is closed.
    assert seen[-1] == ((1.0, 1.0, 1.0) if decided else (None, None, 0.0))
    opened = [vars(r)["fields"] for r in caplog.records if r.getMessage() == "memory breaker opened"]
    assert opened == ([{"target": "a", "kind": "device"}] if decided else [])
    await agent.close()
