"""A server whose engine process stands still, then dies, then is replaced."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

from tests.e2e import truth
from tests.e2e.arrangement import FIRST, agent_config, blocks_removed, settled
from tests.e2e.checks import Checks, Scenario
from tests.e2e.load import Load, drive
from tests.e2e.server import Server
from tests.e2e.watch import Look, Watch, state_changes

_AFTER = Load(requests=16, at_once=4, prompt=(20, 100), tokens=(20, 60), seed=3)


async def killed(scenario: Scenario, server: Server, __: Path, checks: Checks) -> None:
    """The engine process frozen, thawed, then killed while requests run; then a new server at the same address."""
    await drive(server.url, FIRST)
    await settled(server)
    async with Watch(agent_config(server, ranks=1), whole_run=False) as watch:
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
        evictions = watch.looks[-1].reading("kv_evictions")
        checks.that(evictions["value"] is None, "down: evictions a second", evictions["reason"], "absent")
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
        # Also those of the second between the last look and the death, which no page ever showed.
        removed_seen = watch.evictions_received()
        await server.stop()
        await _reborn(server, watch, checks, at_death, removed_seen)
        for look in watch.looks:
            if list(look.faults()):
                checks.clean("at any time", look)
                break
        else:
            checks.clean("at any time", watch.looks[-1])
        changes = state_changes(watch.looks)
        # The end may take a scrape or two that time out; then the new process is seen once before it is believed.
        wanted = ["idle", "serving", "stalled", "serving", "down", "starting", "idle", "serving", "idle"]
        checks.that(changes == wanted, "states", changes, wanted)
        checks.that(not watch.dropped, "samples the page refused", dict(watch.dropped), {})
        checks.figures["states"] = changes


async def _reborn(server: Server, watch: Watch, checks: Checks, at_death: float, removed_seen: float) -> None:
    """A new process at the same address: counters come back at the value they had and count the new process from 0."""
    await server.start()
    await watch.until_state("idle", "starting", deadline_seconds=30)
    await watch.next_looks(4)
    back = watch.looks[-1].counter("token_intervals_total")
    checks.equal("intervals when it came back", back, at_death)
    await drive(server.url, _AFTER)
    await settled(server)
    last = await watch.next_looks(2)
    exact = truth.plugin_sums(server.truth)["0"]
    checks.equal("intervals of both processes", last.counter("token_intervals_total"), at_death + exact["n"])
    removed = (await blocks_removed(1))["0"]
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
