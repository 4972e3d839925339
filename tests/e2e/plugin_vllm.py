"""ufwatch-vllm in a real vLLM, by hand: ``python tests/e2e/plugin_vllm.py --vllm-dir DIR [--only NAME]``.

DIR is what ``vllm_cpu.sh`` made, with ``pip install --no-deps exporters/vllm`` done in its ``venv``. Each scenario
starts ``ufwatch run`` and then a server of its own, and compares the agent's page with what neither of them knows: a
stat logger of its own inside the server, the KV events counted from the publisher's replay, and the times in vLLM's
log. One line a check with both figures, one JSON line last; exit 1 if one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.e2e import truth
from tests.e2e.arrangement import PORT, agent_config, blocks_removed, events_flag, settled
from tests.e2e.checks import Checks
from tests.e2e.load import Load, drive
from tests.e2e.real_vllm import HEAVY, TINY
from tests.e2e.server import Server
from tests.e2e.truth import Exact

AGENT = 18_300
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR")
WINDOW_SECONDS = 55.0
"""Jitter is shown over the last minute: a load that took longer is not within it as a whole."""
WARMED = Load(requests=2, at_once=1, prompt=(10, 20), tokens=(5, 8), seed=9)
_TIME = re.compile(r"(\d\d-\d\d \d\d:\d\d:\d\d)\b")
_FIRST_RUN = re.compile(r"Initial profiling/warmup run took ([\d.]+) s")
_STARTED = re.compile(r"init engine \(.*?\) took ([\d.]+) s")


@dataclass(frozen=True)
class Place:
    """What a scenario works with. ``caches`` outlives it, for a warm start after a cold one."""

    directory: Path
    work: Path
    caches: Path

    @property
    def export(self) -> Path:
        return self.work / "export"


@dataclass(frozen=True)
class Scenario:
    name: str
    flags: Sequence[str]
    run: Callable[[Scenario, Server, Agent, Place, Checks], Awaitable[None]]
    ranks: int = 1
    truth: bool = True
    """Whether a stat logger of the test's own is in the server; it turns statistics on."""
    env: Sequence[tuple[str, str]] = ()


class Agent:
    """``ufwatch run`` over the server, and what its page and its readings say."""

    def __init__(self, config: str, work: Path) -> None:
        self._file, self._log = work / "agent.yaml", work / "agent.log"
        self._file.write_text(config)
        self._url = f"http://127.0.0.1:{AGENT}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Agent]:
        command = [sys.executable, "-m", "ufwatch", "run", "--config", str(self._file), "--port", str(AGENT)]
        env = {k: v for k, v in os.environ.items() if not k.startswith("UFWATCH_")}
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            yield self
        finally:
            process.terminate()
            process.wait(timeout=20)

    async def page(self) -> list[Sample]:
        text = await self._get("/metrics")
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    async def readings(self, signal: str, **labels: str) -> list[dict[str, Any]]:
        (target,) = json.loads(await self._get("/api/v1/readings"))["targets"]
        return [r for r in target["signals"] if r["signal"] == signal and labels.items() <= r["labels"].items()]

    async def window_full(self, deadline_seconds: float = 120.0) -> None:
        """Waits until what comes from the exporter has been watched for as long as rates are taken over."""
        async with asyncio.timeout(deadline_seconds):
            while any(r["reason"] == "warming_up" for r in await self.readings("kv_evictions", engine="0")):
                await asyncio.sleep(1.0)

    async def _get(self, path: str) -> str:
        async with aiohttp.ClientSession() as session, session.get(self._url + path) as answer:
            return await answer.text()


def _value(page: Sequence[Sample], name: str, **labels: str) -> float | None:
    """Sum of a family's series that have these labels; None where there is none."""
    found = [
        sample.value for sample in page if sample.name == f"ufwatch_{name}" and labels.items() <= sample.labels.items()
    ]
    return math.fsum(found) if found else None


async def started(scenario: Scenario, server: Server, agent: Agent, place: Place, checks: Checks) -> None:
    """A start with empty caches or those of the start before: seconds compiled beside the server's own log.

    With its AOT compile, vLLM 0.32 fails on the CPU to load what it saved, says so, and compiles again: that is cold.
    """
    await drive(server.url, WARMED)
    await asyncio.sleep(7.0)
    log = (place.work / "vllm.log").read_text(errors="replace")
    begun, done = (_logged_at(log, text) for text in ("Warming up model for the compilation", "Warming up done"))
    again = "Compiling model again due to a load failure" in log
    warming = (done - begun).total_seconds()
    first_run = sum(float(text) for text in _FIRST_RUN.findall(log))
    series = _exported(place.export)
    wall = series['graph_warmup_last_start_seconds{part="profile"}']
    shown = {r["labels"]["cache"]: r["value"] for r in await agent.readings("graph_compile", phase="compile")}
    wanted = "warm" if scenario.name.startswith("warm") and not again else "cold"
    compiled = math.fsum(shown.values())
    graphs = {k: v for k, v in series.items() if k.startswith("graph")}
    checks.figures |= {"log_warming_up": warming, "log_first_run": first_run, "log_load_failure": again}
    checks.figures |= {"log_init_engine": float(_STARTED.findall(log)[-1]), "exported": graphs}
    checks.that(abs(wall - warming) < 1.6, "warming up and the log's two lines", wall, warming)
    checks.that(0.0 < shown.get(wanted, 0.0) == max(shown.values()), f"compiled {wanted}", shown, wanted)
    rest = wall - compiled - first_run
    # Without AOT compile the log does not tell how long the first run took.
    checks.that(-0.1 < rest < (2.5 if first_run else 5.0), "all but compiling and the log's first run", rest, "little")
    page = await agent.page()
    for name in ("graph_compile_seconds_total", "graph_compiles_total"):
        found = _value(page, name, phase="compile", cache=wanted)
        checks.equal(
            f"{name} on the page and in the file", found, series[f'{name}{{cache="{wanted}",phase="compile"}}']
        )
    count = _value(page, "graph_compiles_total", phase="compile", cache=wanted)
    checks.that(count == 1, "one model is one graph", count, 1)
    qualities = {(r["quality"], r["source"]) for r in await agent.readings("graph_compile")}
    checks.that(qualities == {("exact", "textfile")}, "graph compile: quality and source", qualities, "exact, textfile")
    await _pinned(agent, place, checks)


async def loaded(scenario: Scenario, server: Server, agent: Agent, place: Place, checks: Checks) -> None:
    """Under load: intervals and evictions of every engine, whoever served them, against the truth."""
    await drive(server.url, WARMED)
    await settled(server)
    await agent.window_full()
    before, begun = truth.plugin_sums(server.truth), asyncio.get_running_loop().time()
    used = await drive(server.url, HEAVY)
    checks.that(not used.failed, "requests finished", used.finished, HEAVY.requests)
    await settled(server)
    await asyncio.sleep(4.0)
    took = asyncio.get_running_loop().time() - begun
    after = truth.plugin_sums(server.truth)
    removed = await blocks_removed(scenario.ranks)
    page = await agent.page()
    files = sorted(path.name.split("-")[0] for path in place.export.glob("*.prom"))
    checks.figures |= {"load_seconds": round(took, 1), "files": files, "engines": {}}
    grown = truth.between(before, after)
    for engine, sums in sorted(after.items()):
        whole = Exact(sums)
        _counters(checks, page, engine, whole)
        (jitter,) = await agent.readings("token_jitter", engine=engine)
        (rate,) = await agent.readings("kv_evictions", engine=engine)
        checks.figures["engines"][engine] = {
            "n": whole.n,
            "jitter": [jitter["value"], grown[engine].deviation],
            "evictions": [_value(page, "kv_evictions_total", engine=engine, source="plugin"), removed[engine]],
        }
        for reading in (jitter, rate):
            found = (reading["source"], reading["quality"] or reading["reason"])
            checks.that(found == ("plugin", "exact"), f"engine {engine}: {reading['signal']}", found, "plugin, exact")
        if took < WINDOW_SECONDS:
            checks.equal(f"engine {engine}: jitter and the recomputed", jitter["value"], grown[engine].deviation)
        evicted = checks.figures["engines"][engine]["evictions"]
        checks.equal(f"engine {engine}: evictions and BlockRemoved", *map(float, evicted))
    checks.that(sum(removed.values()) > 0, "blocks evicted at all", sum(removed.values()), "more than 0")
    total = sum(exact.n for exact in grown.values())
    checks.equal("intervals are tokens without each request's first", total, used.generated - used.finished)
    api = next((int(v) for k, v in zip(scenario.flags, scenario.flags[1:], strict=False) if "api-server" in k), 0)
    wanted = ["api"] * (api or scenario.ranks) + ["engine"] * scenario.ranks + ["worker"] * scenario.ranks
    checks.that(files == wanted, "one file for each process", files, wanted)
    checks.that("exporter_hook_errors" not in _text(place.export), "hooks failed", _failures(place.export), [])
    await _pinned(agent, place, checks)


async def without_stats(_: Scenario, server: Server, agent: Agent, place: Place, checks: Checks) -> None:
    """--disable-log-stats: vLLM's page has no statistics, as without the plugin; evictions come all the same."""
    used = await drive(server.url, HEAVY)
    checks.that(not used.failed, "requests finished", used.finished, HEAVY.requests)
    await asyncio.sleep(8.0)
    families = {name for name, _ in await truth.page(server.url)}
    checks.that(not families, "vllm families on vLLM's page", len(families), 0)
    removed = (await blocks_removed(1))["0"]
    evictions = _value(await agent.page(), "kv_evictions_total", engine="0", source="plugin")
    checks.equal("evictions and BlockRemoved", evictions, float(removed))
    checks.that(removed > 0, "blocks evicted at all", removed, "more than 0")
    files = sorted(path.name.split("-")[0] for path in place.export.glob("*.prom"))
    checks.that(files == ["engine", "worker"], "files", files, ["engine", "worker"])
    said = (place.work / "vllm.log").read_text(errors="replace").count("no exact jitter: statistics are off")
    checks.that(said == 1, "the reason is in vLLM's log", said, 1)
    checks.figures |= {"evictions": [evictions, removed]}


def _counters(checks: Checks, page: Sequence[Sample], engine: str, exact: Exact) -> None:
    for name, wanted in (
        ("token_intervals_total", exact.n),
        ("token_interval_seconds_total", exact.sums["sum"]),
        ("token_interval_squared_total", exact.sums["squares"]),
    ):
        checks.equal(f"engine {engine}: {name}", _value(page, name, engine=engine, source="plugin"), wanted)


async def _pinned(agent: Agent, place: Place, checks: Checks) -> None:
    """On the CPU nothing is page-locked: absent, and the reason said on both sides."""
    (reading,) = await agent.readings("pinned_alloc_success")
    said = re.findall(r"# absent pinned_alloc_attempts_total: (.+)", _text(place.export))
    checks.that(reading["value"] is None and bool(reading["reason"]), "pinned on the CPU", reading["reason"], "absent")
    checks.that(bool(said), "pinned: the exporter's reason", sorted(set(said)), "a reason")


def _text(export: Path) -> str:
    return "".join(path.read_text() for path in export.glob("*.prom"))


def _failures(export: Path) -> list[str]:
    return [line for line in _text(export).splitlines() if "exporter_hook_errors" in line]


def _exported(export: Path) -> dict[str, float]:
    """All files' series together."""
    found: dict[str, float] = defaultdict(float)
    for line in _text(export).splitlines():
        if not line.startswith("#"):
            series, value = line.removeprefix("ufwatch_").rsplit(" ", 1)
            found[series] += float(value)
    return found


def _logged_at(log: str, text: str) -> datetime:
    (line,) = (line for line in log.splitlines() if text in line)
    matched = _TIME.search(line)
    assert matched is not None, line
    return datetime.strptime(f"2024-{matched[1]}", "%Y-%m-%d %H:%M:%S")


SCENARIOS = (
    Scenario("cold", (), started),
    Scenario("warm", (), started),
    Scenario("cold-jit", (), started, env=(("VLLM_USE_AOT_COMPILE", "0"),)),
    Scenario("warm-jit", (), started, env=(("VLLM_USE_AOT_COMPILE", "0"),)),
    Scenario("tiny-kv", TINY, loaded),
    Scenario("api-servers-2", (*TINY, "--api-server-count", "2"), loaded),
    Scenario("dp-2", (*TINY, "--data-parallel-size", "2", "--api-server-count", "2"), loaded, ranks=2),
    Scenario("no-stats", (*TINY, "--disable-log-stats"), without_stats, truth=False),
)


async def _run(scenario: Scenario, place: Place) -> Checks:
    checks = Checks(scenario.name)
    env = {"UFWATCH_EXPORT_DIR": str(place.export), **dict(scenario.env)}
    if scenario.run is started:
        env |= {name: str(place.caches / scenario.name.partition("-")[2] / name) for name in CACHES}
    os.environ.update(env)
    server = Server(place.directory, PORT, (*scenario.flags, *events_flag()), place.work, plugin=scenario.truth)
    for name in env:
        del os.environ[name]
    config = agent_config(server, ranks=scenario.ranks) + f"    textfile: {place.export}\n"
    try:
        with Agent(config, place.work).running() as agent:
            checks.figures["start_seconds"] = round(await server.start(), 1)
            await scenario.run(scenario, server, agent, place, checks)
    except Exception as error:
        checks.that(False, "runs to its end", repr(error), "no exception")
    finally:
        await server.stop()
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-dir", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--logs", type=Path, help="keep the servers' logs and the exporter's files in this folder")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    results = []
    with tempfile.TemporaryDirectory(prefix="ufwatch-caches-") as caches:
        for scenario in SCENARIOS:
            if args.only and scenario.name not in args.only:
                continue
            with tempfile.TemporaryDirectory(prefix=f"ufwatch-{scenario.name}-") as work:
                results.append(asyncio.run(_run(scenario, Place(args.vllm_dir.resolve(), Path(work), Path(caches)))))
                if args.logs:
                    shutil.copytree(work, args.logs / scenario.name, dirs_exist_ok=True)
    failed = [what for checks in results for what in checks.failed]
    print(json.dumps({"passed": not failed, "failed": failed, "scenarios": {c.name: c.figures for c in results}}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
