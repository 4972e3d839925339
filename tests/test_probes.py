"""Probing as a whole: a real agent and a simulated vLLM, what comes on the page and into the objectives, the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.pages import openmetrics_families
from tests.sources.loopback import looped
from tests.trace.exchanges import exchange
from tests.trace.otlp import receiving
from ufwatch import assemble, catalogue
from ufwatch.agent import Agent
from ufwatch.clock import SystemClock
from ufwatch.config import DEFAULT_OBJECTIVES, Config, ProbeConfig, TargetConfig
from ufwatch.errors import ConfigError
from ufwatch.model import EngineState, Exemplars, Sample, Samples
from ufwatch.probes import Kit, Probes
from ufwatch.render.exposition import Page
from ufwatch.sim.scenario import SCENARIOS
from ufwatch.sim.server import SimServer
from ufwatch.sinks.memory import MemorySink
from ufwatch.sinks.prometheus import PrometheusSink
from ufwatch.slo.desk import Desk
from ufwatch.sources.discovery import Discovery
from ufwatch.sources.fetch import Fetcher
from ufwatch.trace.model import Exchange

ALONE = replace(SCENARIOS["steady"], arrivals_per_second=0.0, concurrency=0)
INTERVAL = 0.2
PROBE = ProbeConfig(target="a", interval_seconds=0.3, timeout_seconds=5.0)


class Probing:
    """An agent without cards whose probes run by themselves."""

    def __init__(
        self,
        targets: Sequence[TargetConfig],
        probes: Sequence[ProbeConfig],
        *,
        env: Mapping[str, str] | None = None,
        otlp: str | None = None,
    ) -> None:
        clock, env = SystemClock(), env or {}
        self.sink, self.page = MemorySink(), Page(catalogue.FAMILIES)
        self.fetcher = Fetcher(env)
        self.config = Config(targets=tuple(targets), interval_seconds=INTERVAL, probes=tuple(probes))
        self.desk = Desk(DEFAULT_OBJECTIVES, clock=clock, interval_seconds=INTERVAL)
        self.agent = Agent(
            self.config,
            attach=assemble.attach(self.fetcher, clock),
            gpus=None,
            sinks=(self.sink, PrometheusSink(self.page)),
            clock=clock,
            discovery=Discovery(self.config.discovery, self.config.targets),
            slo=self.desk,
            probes=assemble.probes(self.config, clock, self.fetcher, env, otlp),
        )

    async def __aenter__(self) -> Probing:
        self.running = asyncio.create_task(self.agent.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.agent.close()
        await self.fetcher.close()

    async def reconfigure(self, *probes: ProbeConfig) -> None:
        config = replace(self.config, probes=probes)
        await self.agent.reconfigure(config, Discovery(config.discovery, config.targets))

    def value(self, metric: str, owner: str = "probe:a", **labels: str) -> float | None:
        found = [
            sample.value
            for sample in self.sink.samples.get(owner, ())
            if sample.metric == metric and labels.items() <= dict(sample.labels).items()
        ]
        return found[0] if found else None

    async def until(self, metric: str, least: float, owner: str = "probe:a", **labels: str) -> None:
        async with asyncio.timeout(20):
            while (self.value(metric, owner, **labels) or 0.0) < least:
                assert not self.running.done(), self.running.result()
                await asyncio.sleep(0.01)

    def phases(self) -> dict[str, float]:
        return {
            dict(s.labels)["phase"]: s.value
            for s in self.sink.samples.get("probe:a", ())
            if s.metric == "probe_phase_seconds"
        }


def at(server: SimServer, name: str = "a") -> TargetConfig:
    return TargetConfig(name=name, url=server.url)


@looped
async def test_probes_come_on_the_page_with_their_traces() -> None:
    async with SimServer(ALONE) as server, Probing([at(server)], [PROBE]) as probing:
        await probing.until("probe_requests_total", 1)
        cold = probing.phases()
        await probing.until("probe_requests_total", 2)
        warm = probing.phases()
        page = probing.page.openmetrics().decode()
        text = probing.page.text().decode()
        model = ALONE.model_name
    assert "tcp_connect" in cold
    assert "tcp_connect" not in warm, "the second goes over a connection that was there"
    assert {"request_send", "unaccounted"} <= cold.keys() & warm.keys()
    assert {"queue", "prefill", "decode"} <= cold.keys(), "the server's own pieces, of its histograms"
    families = {family.name: family for family in openmetrics_families(page)}
    for name, least in (("ufwatch_probe_ttft_seconds", 2), ("ufwatch_probe_itl_seconds", 8)):
        (count,) = (s.value for s in families[name].samples if s.name == f"{name}_count")
        assert count >= least
        exemplars = [s.exemplar for s in families[name].samples if s.exemplar is not None]
        assert exemplars
        assert all(len(exemplar.labels["trace_id"]) == 32 for exemplar in exemplars)
        assert {s.labels["target"] for s in families[name].samples} == {"a"}
        assert {s.labels["model_name"] for s in families[name].samples} == {model}
    assert "trace_id" not in text
    assert probing.agent.targets == {}


@looped
async def test_the_other_endpoint_is_asked_too() -> None:
    async with (
        SimServer(ALONE) as server,
        Probing([at(server)], [replace(PROBE, operation="completions", fresh_connection=True)]) as probing,
    ):
        await probing.until("probe_requests_total", 2)
        assert "tcp_connect" in probing.phases()
        assert probing.value("probe_failures_total", phase="response_headers") == 0.0
        assert (probing.value("probe_itl_seconds_count") or 0) >= 7


@looped
async def test_a_dead_server_is_a_failure_with_its_phase_and_shows_no_phases(caplog: pytest.LogCaptureFixture) -> None:
    async with SimServer(ALONE) as server, Probing([at(server)], [PROBE]) as probing:
        await probing.until("probe_requests_total", 1)
        for phase in ("prepare", "dns", "tcp_connect", "stream"):
            assert probing.value("probe_failures_total", phase=phase) == 0.0
        await server.stop_listening()
        await probing.until("probe_failures_total", 2, phase="tcp_connect")
        assert probing.phases() == {}
        assert probing.value("probe_ttft_seconds_count"), "counters stay"
        (asked,) = (book.totals[0] for book in probing.desk.books.values())
        await server.start_listening()
        async with asyncio.timeout(20):
            while not probing.phases():
                await asyncio.sleep(0.01)
    told = [record.getMessage() for record in caplog.records if record.name == "ufwatch.probe"]
    assert told.count("probe failed") == 1
    assert asked.low == 0, "the page answers this objective, and availability sees the outage"


@looped
async def test_a_probe_comes_and_goes_with_the_configuration() -> None:
    async with SimServer(ALONE) as server, Probing([at(server)], []) as probing:
        async with asyncio.timeout(20):
            while "target:a" not in probing.sink.samples:
                await asyncio.sleep(0.01)
        assert "probe:a" not in probing.sink.samples
        await probing.reconfigure(PROBE)
        await probing.until("probe_requests_total", 1)
        await probing.reconfigure(PROBE)
        assert probing.value("probe_requests_total"), "one that did not change goes on"
        await probing.reconfigure(replace(PROBE, max_tokens=2))
        await probing.until("probe_requests_total", 1)
        await probing.reconfigure()
        assert "probe:a" not in probing.sink.samples
        assert b"probe_" not in probing.page.openmetrics()


@looped
async def test_a_target_that_hangs_holds_up_its_own_probe_alone_and_no_end() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    hanging = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{hanging.sockets[0].getsockname()[1]}"
    probes = [PROBE, replace(PROBE, target="b", timeout_seconds=60.0)]
    async with SimServer(ALONE) as server:
        probing = Probing([at(server), TargetConfig(name="b", url=url)], probes)
        async with probing:
            await probing.until("probe_requests_total", 4)
            assert not probing.value("probe_requests_total", "probe:b")
            begun = time.monotonic()
            await probing.end()
            assert time.monotonic() - begun < 2.0
    hanging.close()


@looped
async def test_where_the_page_is_silent_a_probe_counts_for_the_objectives() -> None:
    """As with --disable-log-stats: the page is there, and holds nothing of vLLM's."""
    async with SimServer(ALONE) as server:
        server.engine.page = lambda _version: b"process_start_time_seconds 1.0\n"  # type: ignore[method-assign,assignment]
        target = replace(at(server), model_name=ALONE.model_name)
        async with Probing([target], [PROBE]) as probing:
            await probing.until("probe_requests_total", 2)
            places = {o.id: n for n, o in enumerate(DEFAULT_OBJECTIVES)}
            totals = probing.desk.books["a"].totals
            for slo in ("ttft", "patience", "tpot", "e2e"):
                events, low, high, _ = totals[places[slo]]
                assert (events >= 2, low, high) == (True, 0.0, 0.0), slo
            report = probing.agent.targets["a"].report
            assert report is not None
            assert report.state is not EngineState.STARTING
            await server.stop_listening()
            await probing.until("probe_failures_total", 1, phase="tcp_connect")
            assert (totals[places["ttft"]].low, totals[places["e2e"]].low) == (1.0, 1.0)
            assert totals[places["tpot"]].low == 0.0


@looped
async def test_traces_reach_a_backend_and_what_is_lost_is_counted() -> None:
    async with SimServer(ALONE) as server, receiving() as receiver:
        probing = Probing([at(server)], [PROBE], otlp=f"http://127.0.0.1:{receiver.http_port}")
        async with probing:
            await probing.until("probe_requests_total", 1)
            await probing.until("otlp_spans_exported_total", 5, "agent")
            assert probing.value("otlp_spans_dropped_total", "agent", reason="failed") == 0.0
            traces = {e.trace_id for e in probing.sink.exemplars["probe:a"].values()}
        assert receiver.received.spans >= 5
    assert traces
    async with SimServer(ALONE) as server:
        dead = Probing([at(server)], [PROBE], env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
        async with dead:
            await dead.until("probe_requests_total", 2)
            begun = time.monotonic()
            await dead.end()
            assert time.monotonic() - begun < 2.0


@looped
async def test_what_cannot_be_exported_is_a_mistake_at_the_start() -> None:
    async with SimServer(ALONE) as server:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_SAMPLER": "nonsense"}
        probing = Probing([at(server)], [PROBE], env=env)
        with pytest.raises(ConfigError, match="OTEL_TRACES_SAMPLER"):
            await probing.agent.run()
        await probing.agent.close()
        await probing.fetcher.close()


@looped
async def test_a_probe_without_a_target_waits_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with SimServer(ALONE) as server, Probing([at(server)], [replace(PROBE, target="gone")]) as probing:
        async with asyncio.timeout(20):
            while "agent" not in probing.sink.samples:
                await asyncio.sleep(0.01)
        await probing.agent.find_targets()
    told: list[Any] = [vars(r)["fields"] for r in caplog.records if r.getMessage() == "a probe has no target"]
    assert told == [{"target": "gone"}]


class Around:
    """An agent as its probes see it: one target, and what was put on the page."""

    def __init__(self) -> None:
        self.model: str | None = "m"
        self.sleeps = False
        self.shown: dict[str, int] = {}
        self.heard: list[str] = []

    def model_of(self, target: str) -> str | None:
        del target
        return self.model

    def asleep(self, target: str) -> bool:
        del target
        return self.sleeps

    def asked(self, target: str, exchange: Exchange) -> None:
        self.heard.append(f"{target} {exchange.trace_id}")

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None:
        del exemplars
        self.shown[owner] = len(list(samples))

    def forget(self, owner: str) -> None:
        self.shown.pop(owner, None)


class MadeUp:
    """A probe whose requests the test ends, and all there is of a kit."""

    def __init__(self) -> None:
        self.config, self.target = PROBE, TargetConfig(name="a", url="http://a")
        self.begun = self.under_way = 0
        self.most = 0
        self.bug = False
        self.end = asyncio.Event()

    def probe(self, config: ProbeConfig, target: TargetConfig) -> MadeUp:
        self.config, self.target = config, target
        return self

    async def once(self, model: str) -> Exchange:
        assert model == "m"
        self.begun += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.end.wait()
            if self.bug:
                raise RuntimeError("a bug")
            return exchange()
        finally:
            self.under_way -= 1

    def samples(self, model_name: str = "") -> Samples:
        del model_name
        return Samples()

    def exemplars(self, model_name: str) -> Exemplars:
        del model_name
        return {}

    def export(self, exchange: Exchange) -> None:
        pass

    async def close(self) -> None:
        pass


async def holds(what: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.005)


def made_up() -> tuple[MadeUp, Around, Probes]:
    kit, around = MadeUp(), Around()

    async def open_kit() -> Kit:
        return kit

    return kit, around, Probes(open_kit, clock=SystemClock(), interval_seconds=0.02)


@looped
async def test_one_probe_never_asks_twice_at_a_time_and_a_bug_in_it_ends_nothing() -> None:
    kit, around, probes = made_up()
    config, clock = replace(PROBE, interval_seconds=0.02), SystemClock()
    await probes.prepare([config])
    await probes.settle([config], {"a": kit.target}, around, clock.monotonic())
    await holds(lambda: kit.begun == 1)
    begun = clock.monotonic()
    await holds(lambda: clock.monotonic() > begun + 5 * config.interval_seconds)
    assert kit.begun == 1, "the next waits for the one that hangs"
    kit.bug = True
    kit.end.set()
    await holds(lambda: kit.begun >= 3)
    kit.bug = False
    await holds(lambda: around.heard)
    assert kit.most == 1
    await probes.close(around)
    assert (kit.under_way, around.shown) == (0, {})


@looped
async def test_nobody_is_asked_who_sleeps_or_was_never_looked_at() -> None:
    kit, around, probes = made_up()
    config = replace(PROBE, interval_seconds=0.02)
    around.model = None
    kit.end.set()
    await probes.prepare([config])
    await probes.settle([config], {"a": kit.target}, around, 0.0)
    probes.publish(around)
    assert around.shown == {}
    around.model, around.sleeps = "m", True
    await holds(lambda: "probe:a" in around.shown)
    assert kit.begun == 0
    around.sleeps = False
    await holds(lambda: kit.begun)
    await probes.close(around)
