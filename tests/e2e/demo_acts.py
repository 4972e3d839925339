"""What goes wrong with each simulated server of ``alerts_demo_live``, at the sources that an agent reads.

A server goes wrong by being replaced, on its own port, by one of another scenario, as after a bad roll-out; a text file
by what it says, or by being written no more; a card by its values.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tests.e2e.replayed_cards import Card, filled, write_cards
from tests.simulators import Simulators
from ufwatch.sim.engine import SimEngine
from ufwatch.sim.scenario import SCENARIOS, Scenario
from ufwatch.sim.schedule import Steady, WithStalls
from ufwatch.sim.server import SimServer

_TICK_SECONDS = 0.5
_OLD_SECONDS = 7300.0
"""The age of the engine that compiles long after its start."""
_GOOD = replace(SCENARIOS["steady"], arrivals_per_second=0.0, concurrency=2)
_QUIET = SCENARIOS["idle"]
_MANY_GOOD = Scenario(
    name="many_good", arrivals_per_second=40.0, prefix_tokens=0, prompt_tokens=(16, 32), output_tokens=(1, 2)
)
"""So many that the long windows forget the bad ones within minutes."""
_LATE_ANSWERS = Scenario(
    name="late_answers",
    engines=8,
    concurrency=8,
    prefix_groups=0,
    prefix_tokens=0,
    prompt_tokens=(600, 800),
    output_tokens=(60, 100),
    prefill_seconds_per_token=2e-3,
)
_SHARED_PROMPTS = Scenario(
    name="shared_prompts", concurrency=4, prefix_groups=1, prefix_tokens=640, prompt_tokens=(16, 64)
)


@dataclass(frozen=True)
class Act:
    """One server: while all is well, gone wrong, and once it is well again."""

    good: Scenario = _GOOD
    bad: Scenario | None = None
    healed: Scenario | None = None
    gpus: str = ""
    textfile: bool = False
    expected_miss: float | None = None


ACTS: Mapping[str, Act] = {
    "jitter": Act(bad=replace(_GOOD, concurrency=4, schedule=WithStalls(Steady(0.03), every=20, stall_seconds=0.6))),
    "miss": Act(good=_SHARED_PROMPTS, bad=_LATE_ANSWERS, healed=_MANY_GOOD, expected_miss=0.1),
    # A pool that six requests now and then outgrow, so that some are redone though none waits for long.
    "thrash": Act(
        bad=Scenario(
            name="outgrown",
            concurrency=6,
            prefix_groups=0,
            prefix_tokens=0,
            prompt_tokens=(100, 300),
            output_tokens=(40, 120),
            max_model_len=1024,
            num_gpu_blocks=101,
            kv_cache_metrics=True,
            schedule=Steady(0.02),
        )
    ),
    "full": Act(bad=SCENARIOS["preempting"]),
    "pinned": Act(good=_QUIET, textfile=True),
    "compile": Act(good=_QUIET, textfile=True),
    "silent": Act(good=_QUIET, textfile=True),
    "stalled": Act(bad=replace(SCENARIOS["stalled"], stall_at_seconds=6.0)),
    # Four at a time at a tenth of the pace, and the rest waits, while its card does nothing.
    "slack": Act(
        good=replace(_GOOD, concurrency=4),
        bad=replace(_GOOD, concurrency=12, max_num_seqs=4, schedule=Steady(0.3)),
        gpus="[0]",
    ),
    "prefill": Act(bad=replace(_LATE_ANSWERS, output_tokens=(2, 4)), healed=_MANY_GOOD),
    "fast": Act(bad=_LATE_ANSWERS, healed=_MANY_GOOD),
    # A fifth of the prompts is too long for its prefill to end in a second.
    "slow": Act(
        bad=replace(_LATE_ANSWERS, prompt_tokens=(16, 600), output_tokens=(4, 8)),
        healed=_MANY_GOOD,
    ),
    "breaker": Act(good=_QUIET, gpus="[1]"),
    "outage": Act(),
}


class _Frugal(SimEngine):
    """Says nothing of memory taken beforehand, so that it is known not to."""

    def page(self, version: str) -> bytes:
        return re.sub(rb',?gpu_memory_utilization="[^"]*"', b"", super().page(version))


class Stage:
    """All servers, text files and cards; ``bad`` holds what has gone wrong (``card`` is the card that is nobody's)."""

    def __init__(self, work: Path) -> None:
        self.bad: set[str] = set()
        self.cards = work / "cards.json"
        self._work, self._simulators, self._stop = work, Simulators(), threading.Event()
        self._servers: dict[str, SimServer] = {}
        self._counted: dict[str, float] = {}
        self._began = time.time()
        self._mover = threading.Thread(target=self._move, name="stage")

    def __enter__(self) -> Self:
        self._simulators.__enter__()
        for name, act in ACTS.items():
            self._servers[name] = self._served(name, act.good, 0)
            (self._work / name).mkdir()
        self._write(0.0)
        self._mover.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._mover.join()
        for server in self._servers.values():
            self._simulators.run(server.__aexit__())
        self._simulators.__exit__()

    def config(self) -> str:
        """The agent's configuration for all of them."""
        lines = ["interval: 1s", "slos: ['ttft < 800ms, 95%', 'availability, 99.9%']", "targets:"]
        for name, act in ACTS.items():
            parts = [f"name: {name}", f"url: '{self._servers[name].url}'"]
            parts += [f"gpus: {act.gpus or '[]'}"]
            parts += [f"textfile: {self._work / name}"] * act.textfile
            parts += [f"expected_miss: {act.expected_miss}"] if act.expected_miss is not None else []
            lines.append(f"  - {{{', '.join(parts)}}}")
        return "\n".join(lines) + "\n"

    def provoke(self, name: str) -> None:
        self.bad.add(name)
        act = ACTS.get(name)
        if act is not None and act.bad is not None:
            self._swap(name, act.bad)
        elif name == "outage":
            self._simulators.die(self._servers[name])

    def heal(self, name: str) -> None:
        self.bad.discard(name)
        act = ACTS.get(name)
        if act is not None and act.bad is not None:
            self._swap(name, act.healed or act.good)
        elif name == "outage":
            self._simulators.revive(self._servers[name])

    def _swap(self, name: str, scenario: Scenario) -> None:
        before = self._servers[name]
        port = int(before.url.rpartition(":")[2])
        self._simulators.run(before.__aexit__())
        self._servers[name] = self._served(name, scenario, port)

    def _served(self, name: str, scenario: Scenario, port: int) -> SimServer:
        warm = _OLD_SECONDS if name == "compile" else 5.0

        async def begin() -> SimServer:
            server = SimServer(replace(scenario, model_name=f"sim/{name}"), warm_seconds=warm, port=port)
            if name == "breaker":
                server.engine = _Frugal(server.engine.scenario, wall_start=server.engine.wall(0.0))
            return await server.__aenter__()

        return self._simulators.run(begin())

    def _move(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(_TICK_SECONDS):
            now = time.monotonic()
            self._write(now - last)
            last = now

    def _write(self, seconds: float) -> None:
        bad = set(self.bad)
        write_cards(
            self.cards,
            (
                Card("0", load=0.05 if "slack" in bad else 1.0),
                Card("1", load=1.0, values=filled(0.95 if "breaker" in bad else 0.6)),
                Card("2", values={"row_remap_pending": float("card" in bad)}),
            ),
        )
        rates = {
            "pinned_alloc_attempts_total": 10.0,
            'pinned_alloc_failures_total{code="out_of_memory"}': 2.0 * ("pinned" in bad),
            'graph_compile_seconds_total{phase="compile",cache="cold"}': 10.0 * ("compile" in bad),
        }
        for name, rate in rates.items():
            self._counted[name] = self._counted.get(name, 0.0) + rate * seconds
        for name in (name for name, act in ACTS.items() if act.textfile and not (name == "silent" and name in bad)):
            kept = {"pinned": "pinned", "compile": "graph"}.get(name, "pinned_alloc_attempts")
            self._textfile(name, [f"ufwatch_{key} {v}" for key, v in self._counted.items() if key.startswith(kept)])

    def _textfile(self, name: str, lines: list[str]) -> None:
        file, beside = self._work / name / "worker-1.prom", self._work / name / "worker-1.tmp"
        text = "\n".join((f"# ufwatch {time.time():.3f} {self._began:.3f}", *lines)) + "\n"
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, file)
