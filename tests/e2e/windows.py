"""Idle, loaded, idle: every figure of a window against its truth."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.e2e import truth
from tests.e2e.arrangement import FIRST, agent_config, blocks_removed, connected, settled
from tests.e2e.checks import CLOSE, Checks, Scenario
from tests.e2e.load import Used, drive
from tests.e2e.server import Server
from tests.e2e.truth import SOURCES, Exact, Page
from tests.e2e.watch import Look, Watch, once, state_changes

ONCE_SAMPLES = 60
"""One a second, for as long as a load may last."""
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


async def measured(scenario: Scenario, server: Server, work: Path, checks: Checks) -> None:
    """Idle, loaded, idle: every figure against its truth."""
    await drive(server.url, FIRST)
    await settled(server)
    async with Watch(agent_config(server, ranks=scenario.ranks)) as watch:
        checks.that(await connected(watch), "KV events connected", watch.source_up("kv_events"), True)
        await asyncio.sleep(1.0)
        idle = await watch.look()
        _idle(checks, idle, sorted(truth.plugin_sums(server.truth)))
        raw_before, sums_before = await truth.page(server.url), truth.plugin_sums(server.truth)
        removed_before, begun = await blocks_removed(scenario.ranks), time.monotonic()
        scrapes = server.scrapes()
        command = asyncio.create_task(once(agent_config(server, ranks=0), work, ONCE_SAMPLES))
        while server.scrapes() == scrapes and not command.done():
            await asyncio.sleep(0.1)  # its first look is at an idle server
        loading = asyncio.create_task(drive(server.url, scenario.load))
        await watch.look_until(loading)
        used = loading.result()
        took = time.monotonic() - begun
        await settled(server)
        last = await watch.look()
        raw_after, sums_after = await truth.page(server.url), truth.plugin_sums(server.truth)
        removed_after = await blocks_removed(scenario.ranks)
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
    _whole(checks, list(exact.values()), used, sum(removed_after.values()) - sum(removed_before.values()), scenario)
    _absent(checks, last)
    target = await command
    if took > ONCE_SAMPLES - 2:
        print(f"     {checks.name}: the load lasted {took:.0f} s, longer than once looked; not compared", flush=True)
    else:
        _command(checks, target, last, exact)


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


def _whole(checks: Checks, exact: Collection[Exact], used: Used, removed: int, scenario: Scenario) -> None:
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


def _command(checks: Checks, target: dict[str, Any], last: Look, exact: Mapping[str, Exact]) -> None:
    """``once`` looked at other moments, so its bounds may differ; all that is exact is the same."""
    look = Look(0.0, target, ())
    checks.clean("once", look)
    for engine, of_engine in exact.items():
        evictions = look.reading("kv_evictions", engine=engine)
        passed = evictions["value"] is None and evictions["reason"] == "no_source"
        checks.that(passed, "once: evictions without events", evictions["reason"], "no_source")
        jitter = look.reading("token_jitter", engine=engine)
        bounds = [jitter["low"], jitter["high"]]
        inside = None in bounds or bounds[0] <= of_engine.deviation <= bounds[1]
        checks.that(inside, f"once: jitter of engine {engine} holds the exact", bounds, of_engine.deviation)
    for reading in last.readings:
        if reading["signal"] in ("prefill_decode", "page_table_miss", "itl_mean", "ttft_mean"):
            found, wanted = look.reading(reading["signal"], **reading["labels"])["value"], reading["value"]
            same = found == wanted if None in (found, wanted) else math.isclose(found, wanted, rel_tol=CLOSE)
            checks.that(same, f"once: {reading['signal']} {reading['labels']}", found, wanted)


async def without_stats(scenario: Scenario, server: Server, __: Path, checks: Checks) -> None:
    """--disable-log-stats: up, nothing known from the page and the reason said; KV events count all the same."""
    async with Watch(agent_config(server, ranks=1)) as watch:
        checks.that(await connected(watch), "KV events connected", watch.source_up("kv_events"), True)
        removed_before = await blocks_removed(1)
        loading = asyncio.create_task(drive(server.url, scenario.load))
        await watch.look_until(loading)
        await asyncio.sleep(2.0)
        last = await watch.look()
        removed = (await blocks_removed(1))["0"] - removed_before["0"]
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
