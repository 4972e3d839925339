"""A card under a day's load: how long an engine's steps take, look by look, from a model that is written down here."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from ufwatch.core.ageing import Ageing, Drift, Sample
from ufwatch.core.steps import STRETCH_SECONDS, Stretch
from ufwatch.core.track import COLUMN, EngineTrack

LOOK_SECONDS = 10.0
DAY = 86400.0
BEGAN = 1_700_000_000.0
CAPACITY_TOKENS = 400_000.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a day's requests are like. ``batch`` swings by ``swing`` over the day, ``shift`` hours later."""

    batch: float = 45.0
    swing: float = 0.6
    shift: float = 0.0
    tokens: float = 1800.0
    """KV tokens that a running request holds; the mix of prompts changes it by a fifth over the day."""
    prefill: float = 1.5
    """Prompt tokens computed for each token decoded."""
    ambient: float = 25.0
    busy: float = 1.0
    """Share of the time in which there is work at all."""


def step_seconds(batch: float, usage: float, prefill: float, temperature: float, clock_mhz: float) -> float:
    """The truth: weights, requests, their KV cache, prompt tokens in the step, leakage, and the clock."""
    cold = 5e-3 + 25e-6 * batch + 5e-9 * usage * CAPACITY_TOKENS + 8e-6 * prefill * batch
    return cold * (1 + 4e-4 * (temperature - 50)) * math.pow(1980 / clock_mhz, 0.6)


class Shown:
    """As much of an engine's track as a stretch looks at."""

    def __init__(self) -> None:
        self.totals = array("d", bytes(8 * len(COLUMN)))
        self.gauges = {"running": 0.0, "kv_usage": 0.0}
        self.capacity_tokens = float(CAPACITY_TOKENS)
        self.shape = self

    def cache_number(self, key: str) -> float | None:
        return self.capacity_tokens / 16 if key == "num_gpu_blocks" else None

    def gauge(self, raw_id: str) -> float | None:
        return self.gauges[raw_id]

    def grow(self, **columns: float) -> None:
        for name, value in columns.items():
            self.totals[COLUMN[name]] += value


class Card:
    """One engine on one card, and what the agent makes of it. ``slower`` is how much longer every step takes,
    ``noise`` how much a minute scatters."""

    def __init__(self, seed: int = 1, noise: float = 0.01) -> None:
        self.at, self.load, self.slower, self.group = BEGAN, Load(), 0.0, "v1"
        self.ageing = Ageing()
        self.drifts: list[tuple[float, Drift]] = []
        self._chance, self._noise = random.Random(seed), noise
        self._mood = 0.0
        self._shown = Shown()
        self._stretch: Stretch | None = None

    def run(self, days: float) -> list[float | None]:
        """Every drift of so many days, a minute apart."""
        before = len(self.drifts)
        for sample in self._minutes(self.at + days * DAY):
            self.ageing.add(sample)
            self.drifts.append((self.at, self.ageing.evaluate(self.at)))
        return [drift.ratio for _, drift in self.drifts[before:]]

    def restarted(self, capacity: float) -> None:
        """The engine has started again and found room for so many times the blocks."""
        self._shown.capacity_tokens *= capacity
        self._stretch = None

    def change(self, **load: float) -> None:
        self.load = replace(self.load, **load)

    def _minutes(self, until: float) -> Iterator[Sample]:
        track = cast(EngineTrack, self._shown)
        while self.at < until:
            self._look()
            if self._stretch is None:
                self._stretch = Stretch(track, self.at)
                continue
            self._stretch.climate.polled([self._climate])
            if self._stretch.step(track, self.at):
                step = self._stretch.end(track)
                self._stretch = Stretch(track, self.at)
                if step is not None:
                    yield Sample(self.at, self.group, *step)

    def _look(self) -> None:
        """Ten seconds of steps; the gauge is what one of them had."""
        load, chance = self.load, self._chance
        self.at += LOOK_SECONDS
        hour = (self.at % DAY) / 3600
        self._mood = 0.995 * self._mood + 0.02 * chance.gauss(0, 1)
        mean = load.batch * (1 + load.swing * math.sin((hour - load.shift) * math.pi / 12)) * math.exp(self._mood)
        tokens = load.tokens * (1 + 0.2 * math.sin((hour - 5) * math.pi / 12))
        capped = mean > 55
        clock = (1980 - 3 * (mean - 55) if capped else 1980) + chance.gauss(0, 5)
        temperature = load.ambient + 3 * math.sin((hour - 9) * math.pi / 12) + 20 + 0.3 * mean + chance.gauss(0, 0.3)
        noise = math.exp(chance.gauss(0, self._noise * math.sqrt(STRETCH_SECONDS / LOOK_SECONDS)))
        grown = [0.0, 0.0, 0.0, 0.0]
        seen: tuple[float, float] | None = None
        for _ in range(3):
            batch = max(1.0, round(chance.gauss(mean, math.sqrt(mean))))
            usage = min(1.0, batch * tokens / self._shown.capacity_tokens)
            prefill = load.prefill * math.exp(chance.gauss(0, 0.1))
            held = usage * self._shown.capacity_tokens / CAPACITY_TOKENS
            each = step_seconds(batch, held, prefill, temperature, clock) * (1 + self.slower) * noise
            steps = load.busy * LOOK_SECONDS / 3 / each
            grown[0] += steps * batch * each
            grown[1] += steps * batch
            grown[2] += steps * batch * prefill
            grown[3] += steps
            if chance.random() < load.busy:
                seen = batch, usage
        self._shown.grow(itl_sum=grown[0], itl_count=grown[1], prefill_tokens_total=grown[2], engine_steps=grown[3])
        self._shown.gauges = dict(zip(("running", "kv_usage"), seen or (0.0, 0.0), strict=True))
        self._climate = {
            "temperature_celsius": temperature,
            "sm_clock_hertz": 1e6 * clock,
            "power_capped": float(capped),
        }


assert STRETCH_SECONDS % LOOK_SECONDS == 0
