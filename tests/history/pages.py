"""An agent over one target on one card, whose pages and cards the test writes, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.pages import engine_page
from ufwatch.agent import Agent, Attached
from ufwatch.clock import ManualClock
from ufwatch.config import Config, TargetConfig
from ufwatch.decode.gpu import CardId, CardSnapshot, GpuSnapshot
from ufwatch.history.desk import History
from ufwatch.history.store import Store
from ufwatch.model import UP
from ufwatch.sinks.memory import MemorySink
from ufwatch.sources.discovery import Discovery
from ufwatch.sources.fetch import Fetched

LOOK_SECONDS = 20.0
INTERVAL = 5.0
CARD = CardId(gpu="0", uuid="GPU-1")
OTHER = CardId(gpu="1", uuid="GPU-2")


def done(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


class Machine:
    """An engine that is there all the time, whoever looks: its counters, and its card."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.began = clock.now
        self.slower = 0.0
        self.started = 100.0
        self.version: str | None = "0.28.0"
        self.flags = 'block_size="16"'
        self.miss = 0.4
        self.lookups_per_second = 5.0
        self.engines = 1
        self.cards: tuple[CardId, ...] = (CARD,)
        self.models = {CARD: "H200", OTHER: "H200"}
        self.asked = 0
        self._chance = random.Random(1)
        self._at = clock.now
        self._totals = dict.fromkeys(("seconds", "intervals", "steps", "prompt", "hits"), 0.0)
        self.running = 30.0

    def work(self) -> None:
        """What was done since the last look: three levels of load in turn, so that there are cells to compare."""
        seconds, self._at = self.clock.now - self._at, self.clock.now
        if seconds <= 0:
            return
        self.running = (20.0, 30.0, 45.0)[int(self._at // 300) % 3] * (1 + 0.02 * self._chance.gauss(0, 1))
        each = (5e-3 + 3e-5 * self.running) * (1 + self.slower) * math.exp(self._chance.gauss(0, 0.003))
        steps = min(seconds, 60.0) / each
        prompt = self.lookups_per_second * seconds
        grown = {
            "seconds": steps * self.running * each,
            "intervals": steps * self.running,
            "steps": steps,
            "prompt": prompt,
            "hits": prompt * (1 - self.miss),
        }
        for name, value in grown.items():
            self._totals[name] += value

    def restart(self, version: str | None = None) -> None:
        self._totals = dict.fromkeys(self._totals, 0.0)
        self.started += 1000.0
        self.version = version or self.version

    def page(self) -> bytes:
        total = self._totals
        engines = []
        for number in range(self.engines):
            labels = f'engine="{number}",model_name="m"'
            more = [
                f"vllm:iteration_tokens_total_count{{{labels}}} {total['steps']}",
                f"vllm:prefix_cache_queries_total{{{labels}}} {total['prompt']}",
                f"vllm:prefix_cache_hits_total{{{labels}}} {total['hits']}",
                f"vllm:cache_config_info{{{labels},{self.flags}}} 1",
            ]
            engines.append(
                engine_page(
                    generation=total["intervals"],
                    prompt=total["prompt"],
                    running=self.running,
                    usage=self.running / 100,
                    buckets={"0.01": total["intervals"], "+Inf": total["intervals"]},
                    interval_sum=total["seconds"],
                    start=self.started if number == 0 else None,
                    engine=str(number),
                    more="\n".join(more),
                )
            )
        return b"".join(engines)

    # What the agent asks of it.

    async def poll(self, deadline_seconds: float) -> Fetched:
        del deadline_seconds
        body = self.page()
        return Fetched(at_seconds=self.clock.monotonic(), health=UP, body=body, seconds=0, wire_bytes=len(body))

    async def identify(self, target: TargetConfig) -> str | None:
        del target
        self.asked += 1
        return self.version


class Cards:
    """The machine's cards, as NVML would tell of them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.up = True

    async def poll(self, deadline_seconds: float) -> GpuSnapshot:
        del deadline_seconds
        values = {"temperature_celsius": 61.0, "sm_clock_hertz": 1.93e9, "power_capped": 0.0}
        machine = self._machine
        cards = [CardSnapshot(card=c, health=UP, name=machine.models[c], values=values) for c in machine.cards]
        return GpuSnapshot(at_seconds=machine.clock.monotonic(), health=UP, cards=tuple(cards))

    async def close(self) -> None:
        pass


class Running:
    """One life of an agent."""

    def __init__(
        self,
        machine: Machine,
        directory: Path | None = None,
        *targets: TargetConfig,
    ) -> None:
        self.machine, self.clock, self.sink = machine, machine.clock, MemorySink()
        store = Store(directory) if directory is not None else None
        self.history = History(clock=self.clock, identify=machine.identify, store=store)
        config = Config(
            targets=targets or (TargetConfig(name="a", url="http://a", gpus=tuple(c.gpu for c in machine.cards)),),
            interval_seconds=INTERVAL,
        )
        self.agent = Agent(
            config,
            attach=lambda _: Attached(machine),
            gpus=Cards(machine),
            sinks=(self.sink,),
            clock=self.clock,
            discovery=Discovery(config.discovery, config.targets),
            follow=False,
            history=self.history,
        )
        done(self._begin())

    async def _begin(self) -> None:
        await self.history.start()
        await self.agent.find_targets()
        await self.agent.poll_gpus()

    def run(self, seconds: float, *, every: float = LOOK_SECONDS) -> list[float | None]:
        """Looks for so long; the drifts on the page, one for each minute."""
        return list(done(self._run(seconds, every)))

    async def _run(self, seconds: float, every: float) -> list[float | None]:
        found = []
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance(every)
            self.machine.work()
            await self.agent.poll_gpus()
            for target in self.agent.targets.values():
                await self.agent.cycle(target)
            await self.history.tend()
            if int(self.clock.now) % 60 < every:
                found.append(self.drift())
        return found

    def save(self) -> None:
        done(self.history.save())

    def end(self) -> None:
        done(self.agent.close())

    def killed(self) -> None:
        """Nothing more is written; the lock falls with the process."""
        assert self.history._store is not None
        self.history._store.close()

    def drift(self, uuid: str = CARD.uuid) -> float | None:
        samples = self.sink.samples.get("gpu", ())
        found = [s.value for s in samples if s.metric == "gpu_ageing_drift_ratio" and ("uuid", uuid) in s.labels]
        return found[0] if found else None

    def baseline(self, target: str = "a") -> float | None:
        samples = self.sink.samples.get(f"target:{target}", ())
        found = [(s.labels, s.value) for s in samples if s.metric == "page_table_miss_baseline_ratio"]
        assert [labels for labels, _ in found] in ([], [(("target", target), ("model_name", "m"))])
        return found[0][1] if found else None

    def reading(self, signal: str, target: str = "a") -> dict[str, Any]:
        (document,) = (each for each in self.agent.readings()["targets"] if each["target"] == target)
        found: dict[str, Any] = next(each for each in document["signals"] if each["signal"] == signal)
        return found
