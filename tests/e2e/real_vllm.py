"""ufwatch against a real vLLM, by hand: ``python tests/e2e/real_vllm.py --vllm-dir DIR [--only NAME]``.

DIR is what ``vllm_cpu.sh`` made. Each scenario starts a server of its own, loads it, and compares what ufwatch says
with what it does not know: a stat logger inside the server, the KV events counted from the publisher's replay, the page
as prometheus_client reads it, and the usage that clients were told. The server is idle at both ends of the window, so
both sides speak of the very same tokens. One line a check with both figures, one JSON line last; exit 1 if one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

from tests.e2e import truth
from tests.e2e.load import Load, Used, drive
from tests.e2e.server import Server
from tests.e2e.truth import SOURCES, Exact, Page
from tests.e2e.watch import TARGET, Look, Watch, once, state_changes

PORT, EVENTS, REPLAY = 18_000, 18_100, 18_200
TINY = ("--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "24", "--enforce-eager")
LIGHT = Load(requests=24, at_once=4, prompt=(20, 400), tokens=(20, 90))
HEAVY = Load(requests=30, at_once=6, prompt=(60, 200), tokens=(80, 150))
ENDLESS = Load(requests=400, at_once=4, prompt=(20, 100), tokens=(150, 200))
_CLOSE = 1e-9
_MEANS = {
    "ttft_mean": "vllm:time_to_first_token_seconds",
    "itl_mean": "vllm:inter_token_latency_seconds",
    "tpot_mean": "vllm:request_time_per_output_token_seconds",
    "e2e_mean": "vllm:e2e_request_latency_seconds",
    "queue_mean": "vllm:request_queue_time_seconds",
}
_COUNTED = {
    "prefill_tokens_total": (SOURCES, "/local_compute"),
    "decode_tokens_total": ("vllm:generation_tokens_total", ""),
    "prefill_seconds_total": ("vllm:request_prefill_time_seconds_sum", ""),
    "decode_seconds_total": ("vllm:request_decode_time_seconds_sum", ""),
    "page_table_lookups_total": (SOURCES, ""),
    "page_table_misses_total": (SOURCES, "/local_compute"),
    "token_interval_seconds_total": ("vllm:inter_token_latency_seconds_sum", ""),
    "preemptions_total": ("vllm:num_preemptions_total", ""),
}


@dataclass
class Checks:
    """What was compared in one scenario. ``figures`` are for the last line."""

    name: str
    failed: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def that(self, passed: bool, what: str, got: object, wanted: object) -> None:
        """Notes one comparison and prints it."""
        print(f"{'ok  ' if passed else 'FAIL'} {self.name}: {what}: {_text(got)} | {_text(wanted)}", flush=True)
        if not passed:
            self.failed.append(f"{self.name}: {what}")

    def equal(self, what: str, got: float | None, wanted: float) -> None:
        """Equal but for the rounding of sums of floats."""
        self.that(got is not None and math.isclose(got, wanted, rel_tol=_CLOSE, abs_tol=_CLOSE), what, got, wanted)

    def clean(self, what: str, look: Look) -> None:
        faults = list(look.faults())
        self.that(not faults, f"{what}: nothing negative, NaN, out of its bounds or absent unsaid", faults, [])


@dataclass(frozen=True)
class Scenario:
    name: str
    flags: Sequence[str]
    load: Load
    run: Callable[[Scenario, Server, Path, Checks], Awaitable[None]]
    ranks: int = 1
    plugin: bool = True
    evicts: bool = True


def _text(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _config(server: Server, *, ranks: int) -> str:
    text = f"interval: 1s\ntargets:\n  - name: {TARGET}\n    url: {server.url}\n"
    if not ranks:
        return text
    bind, replay = f"tcp://127.0.0.1:{EVENTS}", f"tcp://127.0.0.1:{REPLAY}"
    return f'{text}    kv_events: {{bind: "{bind}", ranks: {ranks}, replay: "{replay}", topic: kv}}\n'


def _events_flag() -> tuple[str, str]:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{EVENTS}",
        "replay_endpoint": f"tcp://127.0.0.1:{REPLAY}",
        "topic": "kv",
        "buffer_steps": 100_000,
    }
    return "--kv-events-config", json.dumps(config)


async def _removed(ranks: int) -> dict[str, int]:
    return {str(r): (await truth.removed_blocks(f"tcp://127.0.0.1:{REPLAY + r}"))[0] for r in range(ranks)}


async def _settled(server: Server) -> None:
    """Waits until nothing runs, so that the counters of all processes stand still."""
    before: Page = {}
    for _ in range(60):
        await asyncio.sleep(1.0)
        now = await truth.page(server.url)
        busy = sum(
            v for (name, _), v in now.items() if name in ("vllm:num_requests_running", "vllm:num_requests_waiting")
        )
        if now == before and not busy:
            return
        before = now
    raise RuntimeError("the server does not come to rest")


async def measured(scenario: Scenario, server: Server, work: Path, checks: Checks) -> None:
    """Idle, loaded, idle: every figure against its truth."""
    await drive(server.url, Load(requests=4, at_once=2, prompt=(10, 20), tokens=(5, 8), seed=9))
    await _settled(server)
    async with Watch(_config(server, ranks=scenario.ranks)) as watch:
        for _ in range(10):
            await watch.look()
            if watch.source_up("kv_events"):
                break
            await asyncio.sleep(0.5)
        checks.that(watch.source_up("kv_events"), "KV events connected", watch.source_up("kv_events"), True)
        await asyncio.sleep(1.0)
        idle = await watch.look()
        _idle(checks, idle, sorted(truth.plugin_sums(server.truth)))
        raw_before, sums_before = await truth.page(server.url), truth.plugin_sums(server.truth)
        removed_before, begun = await _removed(scenario.ranks), time.monotonic()
        command = asyncio.create_task(_once_meanwhile(server, work))
        await asyncio.sleep(2.0)  # it looks for the first time while the server is idle
        loading = asyncio.create_task(drive(server.url, scenario.load))
        await watch.look_until(loading)
        used = loading.result()
        took = time.monotonic() - begun
        await _settled(server)
        last = await watch.look()
        raw_after, sums_after = await truth.page(server.url), truth.plugin_sums(server.truth)
        removed_after = await _removed(scenario.ranks)
    checks.that(
        used.failed == 0 and used.finished == scenario.load.requests,
        "requests finished",
        used.finished,
        scenario.load.requests,
    )
    for look in watch.looks[1:-1]:
        if list(look.faults()):
            checks.clean("under load", look)
            break
    checks.clean("idle again", last)
    checks.that(not watch.dropped, "samples the page refused", dict(watch.dropped), {})
    changes = state_changes(watch.looks)
    checks.that(changes == ["idle", "serving", "idle"], "states", changes, ["idle", "serving", "idle"])
    checks.that(last.target["up"] and last.target["reason"] is None, "up", last.target["up"], True)
    exact = truth.between(sums_before, sums_after)
    grown = {key: value - raw_before.get(key, 0.0) for key, value in raw_after.items()}
    checks.figures |= {"load_seconds": round(took, 1), "looks": len(watch.looks), "engines": {}}
    for engine in sorted(exact):
        removed = removed_after[engine] - removed_before[engine]
        checks.figures["engines"][engine] = _engine(checks, last, engine, exact[engine], grown, removed)
    _whole(checks, exact.values(), used, sum(removed_after.values()) - sum(removed_before.values()), scenario)
    _absent(checks, last)
    _command(checks, await command, watch, last)


def _idle(checks: Checks, look: Look, engines: Sequence[str]) -> None:
    for engine in engines:
        for signal in ("token_jitter", "page_table_miss", "prefill_decode"):
            for reading in look.readings:
                if reading["signal"] == signal and reading["labels"].get("engine") == engine:
                    passed = reading["value"] is None and reading["reason"] == "idle"
                    checks.that(passed, f"idle {signal} of engine {engine}", reading["reason"], "idle")
    checks.clean("idle", look)


def _engine(checks: Checks, look: Look, engine: str, exact: Exact, grown: Page, removed: int) -> dict[str, Any]:
    """One engine's figures after the load."""
    jitter = look.reading("token_jitter", engine=engine)
    figures = {k: jitter[k] for k in ("low", "value", "high")} | {"exact": exact.deviation, "n": exact.n}
    intervals = look.counter("token_intervals_total", engine=engine)
    checks.equal(f"engine {engine}: token intervals", intervals, exact.n)
    if exact.n >= 100:
        low, value, high = jitter["low"], jitter["value"], jitter["high"]
        inside = None not in (low, value, high) and low <= exact.deviation <= high and low <= value <= high
        checks.that(inside, f"engine {engine}: jitter holds the exact", [low, value, high], exact.deviation)
    else:
        checks.that(jitter["value"] is None, f"engine {engine}: too few tokens", jitter["reason"], exact.n)
    low_squares = look.counter("token_interval_squared_low_total", engine=engine)
    high_squares = look.counter("token_interval_squared_high_total", engine=engine)
    squares = exact.sums["squares"]
    inside = low_squares is not None and high_squares is not None and low_squares <= squares <= high_squares
    checks.that(inside, f"engine {engine}: squares counters", [low_squares, high_squares], squares)
    for metric, (name, of) in _COUNTED.items():
        checks.equal(
            f"engine {engine}: {metric}", look.counter(metric, engine=engine), grown.get((name, engine + of), 0.0)
        )
    computed, total = grown[SOURCES, f"{engine}/local_compute"], grown[SOURCES, engine]
    generated = grown["vllm:generation_tokens_total", engine]
    checks.equal(f"engine {engine}: computed prompt tokens of page and logger", computed, exact.sums["computed"])
    checks.equal(f"engine {engine}: generated tokens of page and logger", generated, exact.sums["generated"])
    for signal, by, over, under in (
        ("prefill_decode", {"by": "tokens"}, computed, generated),
        ("page_table_miss", {"unit": "token"}, computed, total),
        (
            "prefill_decode",
            {"by": "time"},
            grown["vllm:request_prefill_time_seconds_sum", engine],
            grown["vllm:request_decode_time_seconds_sum", engine],
        ),
    ):
        found = look.reading(signal, engine=engine, **by)["value"]
        if under:
            checks.equal(f"engine {engine}: {signal} {by}", found, over / under)
            figures["_".join((signal, *by.values()))] = [found, over / under]
    for signal, name in _MEANS.items():
        count = grown.get((f"{name}_count", engine), 0.0)
        if count:
            found = look.reading(signal, engine=engine)["value"]
            checks.equal(f"engine {engine}: {signal}", found, grown[f"{name}_sum", engine] / count)
    evictions = look.counter("kv_evictions_total", engine=engine)
    checks.equal(f"engine {engine}: evictions and BlockRemoved", evictions, float(removed))
    rate = look.reading("kv_evictions", engine=engine)
    checks.that(rate["source"] == "kv_events", f"engine {engine}: evictions' source", rate["source"], "kv_events")
    checks.that((rate["value"] or 0) > 0 or not removed, f"engine {engine}: evictions a second", rate["value"], removed)
    return figures | {"evictions": [evictions, removed], "preempted": exact.sums["preempted"]}


def _whole(checks: Checks, exact: Any, used: Used, removed: int, scenario: Scenario) -> None:
    """All engines together against what the clients were told."""
    sums = [one.sums for one in exact]
    checks.equal(
        "generated tokens of all engines and of all clients", sum(s["generated"] for s in sums), used.generated
    )
    checks.equal("prompt tokens of all engines and of all clients", sum(s["prompt"] for s in sums), used.prompt)
    checks.equal(
        "intervals are tokens without each request's first", sum(s["n"] for s in sums), used.generated - used.finished
    )
    checks.that(all(not s["failed"] for s in sums), "the stat logger's own faults", [s["failed"] for s in sums], 0)
    checks.that((removed > 0) == scenario.evicts, "blocks evicted at all", removed, scenario.evicts)


def _absent(checks: Checks, look: Look) -> None:
    """On a machine without a GPU and a server without our exporters three of the seven are absent, and say why."""
    for signal in ("sm_utilization", "pinned_alloc_success", "graph_compile"):
        reading = look.reading(signal)
        checks.that(
            reading["value"] is None and bool(reading["reason"]), f"absent {signal}", reading["reason"], "a reason"
        )


async def _once_meanwhile(server: Server, work: Path) -> dict[str, Any]:
    """``ufwatch once`` beside the load: as many samples as the load may last, without KV events."""
    return await once(_config(server, ranks=0), work, samples=40)


def _command(checks: Checks, target: dict[str, Any], watch: Watch, last: Look) -> None:
    look = Look(0.0, target, ())
    checks.clean("once", look)
    for reading in look.readings:
        if reading["signal"] == "kv_evictions":
            checks.that(
                reading["value"] is None and reading["reason"] == "no_source",
                "once: evictions without events",
                reading["reason"],
                "no_source",
            )
    ended = watch.looks[-1].at_seconds - watch.looks[1].at_seconds
    if ended > 38:
        print(f"     once: the load lasted {ended:.0f} s, longer than its samples; not compared", flush=True)
        return
    for reading in last.readings:
        if reading["signal"] in ("token_jitter", "prefill_decode", "page_table_miss", "itl_mean", "ttft_mean"):
            found = look.reading(reading["signal"], **reading["labels"])
            pair = (found["value"], reading["value"])
            same = pair[0] == pair[1] if None in pair else math.isclose(*pair, rel_tol=0.05)
            if reading["signal"] != "token_jitter":
                same = pair[0] == pair[1] if None in pair else math.isclose(*pair, rel_tol=_CLOSE)
            checks.that(same, f"once: {reading['signal']} {reading['labels']}", *pair)


async def without_stats(scenario: Scenario, server: Server, __: Path, checks: Checks) -> None:
    """--disable-log-stats: up, nothing known from the page and the reason said; KV events count all the same."""
    removed_before = {}
    async with Watch(_config(server, ranks=1)) as watch:
        for _ in range(10):
            await watch.look()
            if watch.source_up("kv_events"):
                break
            await asyncio.sleep(0.5)
        removed_before = await _removed(1)
        loading = asyncio.create_task(drive(server.url, scenario.load))
        await watch.look_until(loading)
        await asyncio.sleep(2.0)
        last = await watch.look()
        removed = (await _removed(1))["0"] - removed_before["0"]
    used = loading.result()
    checks.that(used.failed == 0, "requests finished", used.finished, scenario.load.requests)
    families = {key[0] for key in await truth.page(server.url)}
    checks.that(not families, "vllm families on the page", len(families), 0)
    checks.that(last.target["up"] is True, "up", last.target["up"], True)
    checks.that(last.target["reason"] == "stats_disabled", "reason", last.target["reason"], "stats_disabled")
    checks.that(state_changes(watch.looks) == [None], "states", state_changes(watch.looks), [None])
    for reading in last.readings:
        if "engine" in reading["labels"] and reading["signal"] != "kv_evictions":
            passed = reading["value"] is None and reading["reason"] == "stats_disabled"
            if not passed:
                checks.that(False, f"{reading['signal']} absent", reading, "stats_disabled")
    absent = sorted({r["signal"] for r in last.readings if r["reason"] == "stats_disabled"})
    checks.that(len(absent) > 10, "absent because statistics are disabled", len(absent), "more than 10")
    checks.clean("without statistics", last)
    evictions = last.counter("kv_evictions_total", engine="0")
    checks.equal("evictions and BlockRemoved", evictions, float(removed))
    checks.that(removed > 0, "blocks evicted at all", removed, True)
    rate = last.reading("kv_evictions")
    checks.that(rate["value"] is not None and rate["value"] > 0, "evictions a second", rate["value"], removed)
    checks.figures |= {"evictions": [evictions, removed]}


async def killed(scenario: Scenario, server: Server, __: Path, checks: Checks) -> None:
    """The engine process frozen, thawed, then killed while requests run; then a new server at the same address."""
    await drive(server.url, Load(requests=4, at_once=2, prompt=(10, 20), tokens=(5, 8), seed=9))
    await _settled(server)
    async with Watch(_config(server, ranks=1), whole_run=False) as watch:
        await watch.next_looks(3)
        sums_before = truth.plugin_sums(server.truth)
        loading = asyncio.create_task(drive(server.url, scenario.load))
        checks.that(
            await watch.until_state("serving", deadline_seconds=15) is not None,
            "serving",
            watch.looks[-1].state,
            "serving",
        )
        await watch.next_looks(5)
        (pid,) = server.engine_pids()
        os.kill(pid, SIGSTOP)
        try:
            await asyncio.sleep(2.0)
            frozen_at = watch.looks[-1]
            stalled = await watch.until_state("stalled", "down", deadline_seconds=45)
            checks.that(
                stalled is not None and watch.looks[-1].state == "stalled",
                "frozen engine stalled after",
                stalled,
                "30 to 45 s",
            )
            await watch.next_looks(2)
            _nothing_invented(checks, "frozen", watch.looks[-1], {"stalled"}, frozen_at, gauges=True)
        finally:
            os.kill(pid, SIGCONT)
        thawed = await watch.until_state("serving", deadline_seconds=20)
        checks.that(thawed is not None, "serving again after", thawed, "20 s at most")
        await watch.next_looks(5)
        before = watch.looks[-1]
        os.kill(pid, SIGKILL)
        gone = await watch.until_state("stalled", "down", deadline_seconds=45)
        checks.that(gone is not None, "killed engine stalled or down after", gone, "45 s at most")
        checks.figures |= {"stalled_after": stalled, "gone_after": gone, "gone_state": watch.looks[-1].state}
        down = await watch.until_state("down", deadline_seconds=60)
        checks.that(down is not None, "down after", down, "the server's own end")
        _nothing_invented(checks, "down", watch.looks[-1], {"connect", "stale", "target_down"}, before, gauges=False)
        exact = truth.between(sums_before, truth.plugin_sums(server.truth))["0"]
        await watch.next_looks(5)
        shown = watch.looks[-1].counter("token_intervals_total")
        checks.that(shown is None, "counters after three intervals", shown, None)
        used = await loading
        checks.that(used.failed > 0, "requests failed with the engine", used.failed, "some")
        last_seen = [look.counter("token_intervals_total") for look in watch.looks]
        at_death = max(n for n in last_seen if n is not None)
        checks.that(at_death <= exact.n, "intervals seen of a server that died", at_death, exact.n)
        removed_seen = max(n for look in watch.looks if (n := look.counter("kv_evictions_total")) is not None)
        await server.stop()
        await _reborn(server, watch, checks, at_death, removed_seen)
        for look in watch.looks:
            if list(look.faults()):
                checks.clean("at any time", look)
                break
        else:
            checks.clean("at any time", watch.looks[-1])
        changes = state_changes(watch.looks)
        wanted = ["idle", "serving", "stalled", "serving", "down"]
        checks.that(changes[:5] == wanted and changes[-3:] == ["idle", "serving", "idle"], "states", changes, wanted)
        checks.that(not watch.dropped, "samples the page refused", dict(watch.dropped), {})
        checks.figures["states"] = changes


async def _reborn(server: Server, watch: Watch, checks: Checks, at_death: float, removed_seen: float) -> None:
    """A new process at the same address: counters come back at the value they had and count the new process from 0."""
    await server.start()
    await watch.until_state("idle", "starting", deadline_seconds=30)
    await watch.next_looks(4)
    back = watch.looks[-1].counter("token_intervals_total")
    checks.equal("intervals when it came back", back, at_death)
    await drive(server.url, LIGHT)
    await _settled(server)
    last = await watch.next_looks(2)
    exact = truth.plugin_sums(server.truth)["0"]
    checks.equal("intervals of both processes", last.counter("token_intervals_total"), at_death + exact["n"])
    removed = (await _removed(1))["0"]
    checks.equal("evictions of both processes", last.counter("kv_evictions_total"), removed_seen + removed)
    checks.figures |= {"intervals": [at_death, exact["n"], last.counter("token_intervals_total")]}


def _nothing_invented(checks: Checks, what: str, look: Look, reasons: set[str], before: Look, *, gauges: bool) -> None:
    """Every rate, ratio and mean null for one of these reasons; no counter further than it was."""
    live = {"running", "waiting", "kv_usage"} if gauges else set()
    wrong = [
        (r["signal"], r["value"], r["reason"])
        for r in look.readings
        if "engine" in r["labels"] and r["signal"] not in live | {"kv_evictions"}
        if r["value"] is not None or r["reason"] not in reasons
    ]
    checks.that(not wrong, f"{what}: readings that are not absent for {sorted(reasons)}", wrong, [])
    known = {
        (s.metric, s.labels)
        for s in look.samples
        if s.metric.endswith(("_seconds", "_ratio")) and not s.metric.startswith(("source_", "scrape_"))
    }
    if not gauges:
        checks.that(not known, f"{what}: gauges on the page", sorted(m for m, _ in known), [])
    for metric in ("token_intervals_total", "decode_tokens_total", "prefill_tokens_total"):
        now, was = look.counter(metric), before.counter(metric)
        same = now is None or (was is not None and (now >= was if not gauges else now == was))
        checks.that(same, f"{what}: {metric} against before", now, was)


SCENARIOS = (
    Scenario("base", (), LIGHT, measured, evicts=False),
    Scenario("tiny-kv", TINY, HEAVY, measured),
    Scenario("api-servers-2", (*TINY, "--api-server-count", "2"), HEAVY, measured),
    Scenario("dp-2-api-1", (*TINY, "--data-parallel-size", "2", "--api-server-count", "1"), HEAVY, measured, ranks=2),
    Scenario("dp-2", (*TINY, "--data-parallel-size", "2"), HEAVY, measured, ranks=2),
    Scenario("no-stats", (*TINY, "--disable-log-stats"), HEAVY, without_stats, plugin=False),
    Scenario("killed", TINY, ENDLESS, killed),
)


async def _run(scenario: Scenario, directory: Path, work: Path) -> Checks:
    checks = Checks(scenario.name)
    flags = (*scenario.flags, *_events_flag())
    server = Server(directory, PORT, flags, work, plugin=scenario.plugin)
    try:
        checks.figures["start_seconds"] = round(await server.start(), 1)
        await scenario.run(scenario, server, work, checks)
    except Exception as error:
        checks.that(False, "runs to its end", repr(error), "no exception")
    finally:
        await server.stop()
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-dir", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--logs", type=Path, help="keep the servers' logs in this folder")
    args = parser.parse_args()
    results = []
    for scenario in SCENARIOS:
        if args.only and scenario.name not in args.only:
            continue
        work = Path(tempfile.mkdtemp(prefix=f"ufwatch-{scenario.name}-"))
        try:
            results.append(asyncio.run(_run(scenario, args.vllm_dir.resolve(), work)))
            if args.logs:
                args.logs.mkdir(parents=True, exist_ok=True)
                shutil.copy(work / "vllm.log", args.logs / f"{scenario.name}.log")
        finally:
            shutil.rmtree(work, ignore_errors=True)
    failed = [what for checks in results for what in checks.failed]
    print(json.dumps({"passed": not failed, "failed": failed, "scenarios": {c.name: c.figures for c in results}}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
