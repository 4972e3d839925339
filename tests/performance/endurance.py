"""Ten minutes under fifty targets that misbehave. Run ``python -m tests.performance.endurance [--minutes 10]``.

One process simulates fifty vLLM servers of all kinds. Every second one suffers cut bodies, hangs, errors, resets and
restarts at random times; the others are left alone. Another process is ``ufwatch run`` at 1 s, two of its targets with
a directory of text files, with a clock whose wall time is set forward by an hour and back by two. Every 5 s its page is
compared with what the simulators know to be true. The last line is JSON:

- ``slope_mb_per_min``: least-squares slope of resident memory after the first two minutes (< 0.1);
- ``crashes``: processes that ended, pages that did not come, and errors in the agent's log (0);
- ``invented``: values that cannot be (0): negative or not finite; a counter that fell or is above the truth since the
  agent's start; a rate of a server left alone outside of what is true of its window, give or take one scrape's time;
- ``checked``: values that were compared with a truth; ``scrapes`` and ``failures``: what the agent counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any
from unittest import mock

from tests.performance.process import resident_mb
from ufwatch.sim.journal import Truth
from ufwatch.sim.scenario import SCENARIOS
from ufwatch.sim.server import Fault, SimServer

TARGETS = 50
LOOK_SECONDS = 5.0
MARGIN_SECONDS = 1.0
"""A page is made at most one deadline before the agent has all of it."""
FAULTS: tuple[Fault, ...] = ("cut_body", "hang", "status_500", "reset")
WITH_TEXTFILE = ("sim-00", "sim-01")
JUMPS = ((0.3, 3600.0), (0.6, -3600.0))
"""When, as a share of the whole run, and to how many seconds beside the true time the wall clock is set."""
TRUTHS = (
    *("prefill_tokens_computed", "prefill_tokens_cached", "decode_tokens", "interval_count", "interval_sum"),
    *("interval_square_sum", "prefill_seconds", "decode_seconds", "recycles", "preemptions"),
)
CEILINGS: Mapping[str, tuple[str, ...]] = {
    "prefill_tokens_total": ("prefill_tokens_computed",),
    "decode_tokens_total": ("decode_tokens",),
    "prefill_seconds_total": ("prefill_seconds",),
    "decode_seconds_total": ("decode_seconds",),
    "page_table_lookups_total": ("prefill_tokens_computed", "prefill_tokens_cached"),
    "page_table_misses_total": ("prefill_tokens_computed",),
    "token_intervals_total": ("interval_count",),
    "token_interval_seconds_total": ("interval_sum",),
    "token_interval_squared_low_total": ("interval_square_sum",),
    "kv_evictions_total": ("recycles",),
    "preemptions_total": ("preemptions",),
}
"""Of each exported counter, the truths whose sum it must not be above."""

Figures = dict[str, float]
_SAMPLE = re.compile(r"ufwatch_(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


# The simulated servers.


async def simulate(seed: int) -> None:
    """Prints the addresses, then answers each line of questions with a line of truths until the input ends."""
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


# The agent.


class JumpingClock:
    """The machine's clocks, with a wall time that somebody sets."""

    began = time.monotonic()
    run_seconds = math.inf

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        share = (time.monotonic() - self.began) / self.run_seconds
        return time.time() + next((by for since, by in reversed(JUMPS) if share >= since), 0.0)


def watch(config: str, run_seconds: float, folders: list[str]) -> int:
    """``ufwatch run`` with the jumping clock, which writes its text files and tells its rates by the way."""
    from ufwatch import assemble
    from ufwatch.cli import main, run

    JumpingClock.run_seconds = run_seconds
    made: list[Any] = []

    def agent(*args: Any, _make: Any = assemble.agent, **kwargs: Any) -> Any:
        made.append(_make(*args, **kwargs))
        return made[0]

    def tell() -> None:
        clock, begun = JumpingClock(), JumpingClock().wall()
        for writes, _ in enumerate(sys.stdin):
            print(json.dumps({"rates": list(rates(made[0])), "attempts": 3 * writes}), flush=True)
            # The next growth must not be on the page before it is told, so it is written afterwards.
            for folder in folders:
                write_textfile(Path(folder), clock.wall(), begun, attempts=3 * (writes + 1), failures=writes + 1)

    with mock.patch.object(run, "SystemClock", JumpingClock), mock.patch.object(assemble, "agent", agent):
        threading.Thread(target=tell, daemon=True).start()
        return main.main(["run", "--config", config, "--port", "0"])


def write_textfile(folder: Path, now: float, begun: float, *, attempts: int, failures: int) -> None:
    new = folder / "worker-1.new"
    new.write_text(
        f"# ufwatch {now} {begun}\n"
        f"ufwatch_pinned_alloc_attempts_total {attempts}\n"
        f'ufwatch_pinned_alloc_failures_total{{code="out_of_memory"}} {failures}\n'
    )
    new.rename(folder / "worker-1.prom")


def rates(agent: Any) -> Iterator[dict[str, Any]]:
    """What each engine's full window says, and between which two scrapes it lies."""
    for name, target in agent.targets.items():
        for engine in target.report.engines if target.report is not None else ():
            rate = next(r.value for r in engine.readings if r.signal == "generation_tokens_rate")
            span = engine.track.span() if engine.track is not None and rate is not None else None
            if span is None:
                continue
            ends = engine.track.history.ends()
            yield {
                "target": name,
                "engine": engine.engine,
                "ends": [at for at, _ in ends],
                "decode_tokens": rate * span.seconds,
                "interval_square_sum_low": span.increase("token_interval_squared_low_total"),
                "interval_square_sum_high": span.increase("token_interval_squared_high_total"),
            }


# The comparison.


@dataclass
class Judge:
    """What is wrong so far."""

    alone: Mapping[str, bool]
    invented: int = 0
    unanswered: int = 0
    """The agent's page could not be read, which ends the run."""
    checked: int = 0
    highest: dict[str, float] = field(default_factory=dict)
    """Each counter's value when it was last on the page."""
    totals: dict[str, float] = field(default_factory=dict)

    def page(self, text: str, truth: list[list[Figures]], attempts: float) -> None:
        """One page, read before the truth was asked for."""
        totals: dict[str, float] = defaultdict(float)
        for line in text.splitlines():
            sample = _SAMPLE.fullmatch(line)
            if sample is None:
                continue
            name, labels, value = sample[1], dict(_LABEL.findall(sample[2] or "")), float(sample[3])
            series = line.rpartition(" ")[0]
            overspent = name == "slo_error_budget_remaining_ratio"  # the one value that may be below 0
            self.hold((overspent or value >= 0.0) and math.isfinite(value), f"{line}")
            if name.endswith("_total"):
                before = self.highest.get(series, 0.0)
                self.hold(value >= before, f"{line} was {before}")
                self.highest[series] = value
                totals[name] += value
            if name in CEILINGS:
                figures = truth[int(labels["target"].removeprefix("sim-"))][int(labels["engine"])]
                ceiling = sum(figures[part] for part in CEILINGS[name])
                self.hold(value <= ceiling * (1 + 1e-9) + 1e-6, f"{line} is above {ceiling}", counts=True)
            if name == "pinned_alloc_attempts_total":
                self.hold(value <= attempts, f"{line} is above {attempts}", counts=True)
        self.totals = totals

    def rate(self, said: Mapping[str, Any], most: Figures, least: Figures) -> None:
        """One engine's window, and the truth of a slightly longer and a slightly shorter one."""
        if not self.alone[said["target"]]:
            return
        tokens, low, high = said["decode_tokens"], said["interval_square_sum_low"], said["interval_square_sum_high"]
        within = least["decode_tokens"] - 1e-6 <= tokens <= most["decode_tokens"] + 1e-6
        self.hold(within, f"{said} is not from {least} to {most}", counts=True)
        self.hold(low <= most["interval_square_sum"] * (1 + 1e-9) + 1e-9, f"{said} is above {most}", counts=True)
        self.hold(high >= least["interval_square_sum"] * (1 - 1e-9) - 1e-9, f"{said} is below {least}", counts=True)

    def hold(self, good: bool, text: str, *, counts: bool = False) -> None:
        self.checked += counts
        if not good:
            self.invented += 1
            if self.invented <= 20:
                print(f"INVENTED {text}", flush=True)


def ask(process: subprocess.Popen[str], question: object) -> Any:
    """One line to a process, and its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def main(minutes: float, seed: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("w"))
        simulators = stack.enter_context(_child("simulate", str(seed), errors=sys.stderr))
        assert simulators.stdout is not None
        told = json.loads(simulators.stdout.readline())
        names = [f"sim-{at:02}" for at in range(TARGETS)]
        folders = {name: folder / name for name in WITH_TEXTFILE}
        for path in folders.values():
            path.mkdir()
        config = folder / "ufwatch.yaml"
        targets = [
            {"name": name, "url": t["url"], **({"textfile": str(folders[name])} if name in folders else {})}
            for name, t in zip(names, told, strict=True)
        ]
        config.write_text(json.dumps({"interval": 1, "gpu": {"enabled": False}, "targets": targets}))
        ask(simulators, [])  # from here on counts are the agent's
        agent = stack.enter_context(
            _child("watch", str(config), str(60.0 * minutes), *map(str, folders.values()), errors=log)
        )
        judge = Judge({name: t["alone"] for name, t in zip(names, told, strict=True)})
        memory = list(looks(agent, simulators, judge, folder / "log", 60.0 * minutes))
        crashes = sum(process.poll() is not None for process in (agent, simulators))
        agent.terminate()
        agent.wait()
        lines = (folder / "log").read_text().splitlines()
        bad = [line for line in lines if "level=error" in line or "Traceback" in line]
        print(*bad[:5], sep="\n")
    steady = [(at, mb) for at, mb in memory if at >= 2.0 or minutes < 4.0]
    slope = statistics.linear_regression(*zip(*steady, strict=True)).slope if len(steady) > 1 else 0.0
    print(
        json.dumps(
            {
                "slope_mb_per_min": round(slope, 3),
                "crashes": crashes + len(bad) + judge.unanswered,
                "invented": judge.invented,
                "checked": judge.checked,
                "scrapes": int(judge.totals.get("scrapes_total", 0)),
                "failures": int(judge.totals.get("scrape_failures_total", 0)),
                "minutes": minutes,
                "rss_mb": [round(mb, 1) for _, mb in memory[:: max(1, len(memory) - 1)]],
            }
        )
    )


def looks(
    agent: subprocess.Popen[str], simulators: subprocess.Popen[str], judge: Judge, log: Path, seconds: float
) -> Iterator[tuple[float, float]]:
    """Compares every few seconds; yields minutes since the start and resident megabytes."""
    began = time.monotonic()
    due, url = began, ""
    while time.monotonic() < began + seconds and agent.poll() is None:
        due += LOOK_SECONDS
        time.sleep(max(0.0, due - time.monotonic()))
        url = url or _address(log)
        try:
            page = _read(f"{url}/metrics")
        except OSError as error:
            print(f"NO ANSWER {error}", flush=True)
            judge.unanswered += 1
            return
        said = ask(agent, "rates")
        positions = [
            (int(rate["target"].removeprefix("sim-")), int(rate["engine"]), *rate["ends"]) for rate in said["rates"]
        ]
        questions = [(at, engine, start - MARGIN_SECONDS, stop) for at, engine, start, stop in positions]
        questions += [(at, engine, start, stop - MARGIN_SECONDS) for at, engine, start, stop in positions]
        truth = ask(simulators, questions)
        judge.page(page, truth["since_start"], said["attempts"])
        windows = truth["windows"]
        for rate, most, least in zip(said["rates"], windows[: len(positions)], windows[len(positions) :], strict=True):
            judge.rate(rate, most, least)
        minutes, mb = (time.monotonic() - began) / 60.0, resident_mb(agent.pid)
        print(f"{minutes:5.2f} min  {mb:6.1f} MB  {judge.checked} checked, {judge.invented} invented", flush=True)
        yield minutes, mb


def _address(log: Path) -> str:
    found = re.search(r"address=(http://\S+)", log.read_text())
    assert found is not None, log.read_text()
    return found[1]


def _read(url: str) -> str:
    import urllib.request

    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


@contextlib.contextmanager
def _child(*arguments: str, errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.performance.endurance", "--child", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, stderr=errors, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    if sys.argv[1:3] == ["--child", "simulate"]:
        asyncio.run(simulate(int(sys.argv[3])))
    elif sys.argv[1:3] == ["--child", "watch"]:
        sys.exit(watch(sys.argv[3], float(sys.argv[4]), sys.argv[5:]))
    else:
        parser = argparse.ArgumentParser(description="Ten minutes under fifty targets that misbehave.")
        parser.add_argument("--minutes", type=float, default=10.0)
        parser.add_argument("--seed", type=int, default=1)
        given = parser.parse_args()
        main(given.minutes, given.seed)
