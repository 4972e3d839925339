"""ufwatch as a user has it, and everything it said: an agent from a configuration text, and ``ufwatch once``."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ufwatch import assemble, catalogue, configfile
from ufwatch.clock import SystemClock
from ufwatch.model import Exemplars, Sample
from ufwatch.render.exposition import Page
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.kv_events import KvEventsSource

TARGET = "e2e"


@dataclass(frozen=True)
class Look:
    """What was shown after one scrape: the JSON of ``once`` and the target's part of the page."""

    at_seconds: float
    target: dict[str, Any]
    samples: tuple[Sample, ...]

    @property
    def state(self) -> str | None:
        state = self.target["state"]
        return None if state is None else str(state)

    @property
    def readings(self) -> list[dict[str, Any]]:
        return list(self.target["signals"])

    def reading(self, signal: str, **labels: str) -> dict[str, Any]:
        """The one reading of a signal that has these labels among its own."""
        (found,) = (r for r in self.readings if r["signal"] == signal and labels.items() <= r["labels"].items())
        return found

    def counter(self, metric: str, **labels: str) -> float | None:
        """Sum of a family's series that have these labels; None where there is none."""
        values = [s.value for s in self.samples if s.metric == metric and labels.items() <= dict(s.labels).items()]
        return math.fsum(values) if values else None

    def faults(self) -> Iterator[str]:
        """Whatever may never be shown: NaN, infinity, a negative, bounds the wrong way, null without a reason."""
        for reading in self.readings:
            name = f"{reading['signal']} {reading['labels']}"
            numbers = [reading[key] for key in ("value", "low", "high") if reading[key] is not None]
            if reading["signal"] != "prompt_tokens_unmatched" and any(n < 0 for n in numbers):
                yield f"{name} is negative"
            if not all(math.isfinite(n) for n in numbers):
                yield f"{name} is not finite"
            if reading["value"] is None and not reading["reason"]:
                yield f"{name} is absent without a reason"
            if numbers != sorted(numbers) and len(numbers) == 3:
                low, value, high = reading["low"], reading["value"], reading["high"]
                if not low <= value <= high:
                    yield f"{name} is not within its bounds"
        for sample in self.samples:
            if not math.isfinite(sample.value) or sample.value < 0:
                yield f"{sample.metric} {sample.labels} is {sample.value}"


def state_changes(looks: Iterable[Look]) -> list[str | None]:
    """The states in order, each once until it changes."""
    states: list[str | None] = []
    for look in looks:
        if not states or states[-1] != look.state:
            states.append(look.state)
    return states


@dataclass
class Watch:
    """An agent over one target, used as ``async with``.

    With ``whole_run`` it looks when :meth:`look` is called and its window is all that lies between, as in ``once``;
    otherwise it looks by itself, as in ``run``.
    """

    config: str
    whole_run: bool = True
    looks: list[Look] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    async def __aenter__(self) -> Watch:
        clock = SystemClock()
        self._page = Page(catalogue.FAMILIES)
        self._fetcher = Fetcher({}, clock=clock)
        config = configfile.parse(self.config, "e2e")
        self.agent = assemble.agent(config, clock=clock, fetcher=self._fetcher, sinks=(self,), whole_run=self.whole_run)
        await self.agent.poll_gpus()
        await self.agent.find_targets()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.agent.close()
        await self._fetcher.close()

    def evictions_received(self) -> float:
        """What has come in over the KV-event sockets, shown yet or not."""
        source = self.agent.targets[TARGET]._kv_events
        assert isinstance(source, KvEventsSource)
        return sum(source.snapshot().evictions_by_rank.values())

    async def look(self) -> Look:
        """One scrape of the target."""
        await self.agent.cycle(self.agent.targets[TARGET])
        return self.looks[-1]

    async def look_until(self, work: asyncio.Future[Any], interval_seconds: float = 1.0) -> None:
        """Looks once an interval until ``work`` is done."""
        while not work.done():
            await asyncio.wait({work}, timeout=interval_seconds)
            await self.look()

    async def until_state(self, *states: str, deadline_seconds: float) -> float | None:
        """Seconds until the target was in one of these states; None when it never was. For an agent that runs."""
        begun = time.monotonic()
        while time.monotonic() - begun < deadline_seconds:
            if self.looks and self.looks[-1].state in states and self.looks[-1].at_seconds >= begun:
                return time.monotonic() - begun
            await asyncio.sleep(0.1)
        return None

    async def next_looks(self, n: int) -> Look:
        """The n-th look from now, for an agent that runs."""
        wanted = len(self.looks) + n
        while len(self.looks) < wanted:
            await asyncio.sleep(0.05)
        return self.looks[-1]

    def source_up(self, source: str) -> bool:
        return self.agent.targets[TARGET].lives[source].health.up

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None:
        shown = tuple(samples)
        self._page.put(owner, shown, exemplars)
        self._page.text()
        if owner == f"target:{TARGET}":
            (target,) = self.agent.readings()["targets"]
            self.looks.append(Look(time.monotonic(), target, shown))
        self.dropped = Counter({reason.value: n for reason, n in self._page.dropped.items() if n})

    def forget(self, owner: str) -> None:
        self._page.drop(owner)


async def once(config: str, work: Path, samples: int) -> dict[str, Any]:
    """The target's object as ``ufwatch once --json`` prints it. Raises RuntimeError with what it wrote otherwise."""
    file = work / "once.yaml"
    file.write_text(config)
    command = [sys.executable, "-m", "ufwatch", "once", "--json", "--config", str(file)]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--samples", str(samples), "--interval", "1"),
        env={k: v for k, v in os.environ.items() if not k.startswith("UFWATCH_")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    try:
        (target,) = json.loads(out)["targets"]
    except (ValueError, KeyError) as error:
        raise RuntimeError(f"once ended with {process.returncode}: {err.decode()}") from error
    return dict(target)
