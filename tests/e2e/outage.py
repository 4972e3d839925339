"""An outage that must page exactly once: ``python -m tests.e2e.outage --vllm-dir DIR [--logs DIR]``.

DIR is what ``vllm_cpu.sh`` made. A real agent at its defaults watches a real vLLM under load for ten minutes. Then
every process of the server is killed at once; after six minutes of nothing it is started again, and serves.
Prometheus scrapes every 15 s and evaluates the committed rules; Alertmanager has the committed routes. The page is
resolved once the windows of its burn rates have forgotten the outage, so that the whole takes fifty minutes; then the
budget that is gone may become a ticket, which is listed apart.
Prints one JSON object last; exits 1 unless one page came, and was resolved.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e import replayed_cards
from tests.e2e.load import Traffic
from tests.e2e.server import Server
from tests.e2e.watched import Agent, Watchers, by_hand, ever, highest, notices, say, states, watchers

PORT = 18_310
CHAT = "chat"
FLAGS = ("--enforce-eager", "--dtype", "float32")
SERVING_SECONDS = 630.0
NOTHING_SECONDS = 360.0
RESOLVED_WITHIN_SECONDS = 2700.0
QUIET_SECONDS = 180.0
"""For how long nothing more may come once the page is resolved: three times what the pager's route waits."""
_LOOK_SECONDS = 5.0


@dataclass
class Outage:
    """When what happened, in Unix time, and which alerts Alertmanager held back meanwhile."""

    began: float
    killed: float = math.nan
    started: float = math.nan
    served: float = math.nan
    silenced: set[str] = field(default_factory=set)


async def run(directory: Path, work: Path) -> dict[str, Any]:
    """The whole run; what it came to."""
    for name in ("vllm", "state"):
        (work / name).mkdir()
    cards = work / "cards.json"
    replayed_cards.write_cards(cards, replayed_cards.server_and_idle(0))
    server = Server(directory, PORT, FLAGS, work / "vllm", plugin=False)
    target = f"  - {{name: {CHAT}, url: '{server.url}', gpus: [0]}}\n"
    agent = Agent(work, f"state_dir: {work / 'state'}\ntargets:\n{target}", cards)
    traffic = Traffic(per_second=0.25, prompt=(60, 400), tokens=(20, 80))
    try:
        await server.start()
        with watchers(work, agent.address) as behind:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(traffic.flow(server.url)),
                    group.create_task(replayed_cards.follow(cards, lambda: traffic.in_flight)),
                ]
                outage = Outage(time.time())
                await asyncio.to_thread(agent.start)
                tasks.append(group.create_task(_note_silenced(behind, outage)))
                await _through(server, behind, outage)
                for task in tasks:
                    task.cancel()
            result = await asyncio.to_thread(_result, behind, outage)
        return {**result, "requests": vars(traffic.used)}
    finally:
        await asyncio.to_thread(agent.stop)
        await server.stop()


async def _through(server: Server, behind: Watchers, outage: Outage) -> None:
    """Serving, killed, nothing, started again, resolved, quiet."""
    say("the agent watches", outage.began)
    await asyncio.sleep(outage.began + SERVING_SECONDS - time.time())
    server.kill()
    outage.killed = time.time()
    say("killed", outage.began)
    await asyncio.sleep(NOTHING_SECONDS)
    outage.started = time.time()
    await server.start()
    outage.served = time.time()
    say("serves again", outage.began)
    while not _over(behind, outage) and time.time() < outage.served + RESOLVED_WITHIN_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
    say("resolved" if _over(behind, outage) else "not resolved in time", outage.began)
    await asyncio.sleep(QUIET_SECONDS)


def _over(behind: Watchers, outage: Outage) -> bool:
    """Whether whatever was paged has been resolved."""
    found = notices(behind.hook, outage.began)
    paged = {name for page in found.pages for name in page["firing"]}
    return bool(paged) and paged <= {name for entry in found.resolved for name in entry["resolved"]}


async def _note_silenced(behind: Watchers, outage: Outage) -> None:
    while True:
        held_back = [labels for labels, state in behind.alertmanager.states() if state == "suppressed"]
        outage.silenced |= {
            ":".join(filter(None, (one["alertname"], one.get("slo") or one.get("reason")))) for one in held_back
        }
        await asyncio.sleep(_LOOK_SECONDS)


def _result(behind: Watchers, outage: Outage) -> dict[str, Any]:
    prometheus, window = behind.prometheus, f"{math.ceil(time.time() - outage.began)}s"
    found = notices(behind.hook, outage.killed)
    resolved = [entry for entry in found.resolved if entry["path"] == "/pager"]
    turns = states(prometheus, CHAT, window, outage.killed)
    passed = len(found.pages) == 1 and found.pages[0]["at_seconds"] > 0 and _over(behind, outage)
    burn = f"max_over_time(target_slo:ufwatch_slo_burn:rate5m[{window}])"
    return {
        "passed": passed and any(state == "down" for state, _ in turns),
        "served_before_seconds": round(outage.killed - outage.began, 1),
        "killed_to_started_seconds": round(outage.started - outage.killed, 1),
        "killed_to_serving_seconds": round(outage.served - outage.killed, 1),
        "pages": len(found.pages),
        "page_after_seconds": [page["at_seconds"] for page in found.pages],
        "resolved_after_seconds": [entry["at_seconds"] for entry in resolved],
        "resolved_after_serving_seconds": [round(e["at_seconds"] + outage.killed - outage.served, 1) for e in resolved],
        "tickets": len(found.tickets),
        "silenced": sorted(outage.silenced),
        "states_seconds_after_the_kill": turns,
        "burn_5m_highest": highest(prometheus, burn, "target", "slo"),
        "alerts_ever_pending": ever(prometheus, "pending", window),
        "alerts_ever_firing": ever(prometheus, "firing", window),
        "notices_seconds_after_the_kill": vars(found),
    }


if __name__ == "__main__":
    sys.exit(by_hand("outage", __doc__, run))
