"""A healthy half hour that must page nobody: ``python -m tests.e2e.healthy --vllm-dir DIR [--logs DIR]``.

DIR is what ``vllm_cpu.sh`` made. A real agent at its defaults, with a state directory, watches two real vLLMs. The
first gets new prompts only, with pauses, beside a replayed card that is 93 % full; a second card is idle and nobody's.
The second server refuses for its first six minutes and then serves. Half-way the agent is stopped and started again.
Prometheus scrapes every 15 s and evaluates the committed rules; Alertmanager has the committed routes.
Prints one JSON object last; exits 1 when anything was notified, or when the half hour was not what it claims to be.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e import replayed_cards
from tests.e2e.load import Traffic
from tests.e2e.server import Server
from tests.e2e.watched import SCRAPE_SECONDS, Agent, Watchers, by_hand, ever, highest, notices, say, states, watchers

PORT = 18_300
CHAT, LATE = "chat", "late"
REFUSED_SECONDS = 360.0
START_SECONDS = 30.0
"""Less than any vLLM takes from its process to its first answer."""
MINUTES = 30.0
FLAGS = ("--enforce-eager", "--dtype", "float32")
"""A CPU without bfloat16 takes a second for a prompt in it, and a page for that would be right. So it would for two
servers that take each other's cores all the time: the load is light enough for two."""
_RULES_SETTLE_SECONDS = 2 * SCRAPE_SECONDS
"""What the last moment of the run takes to pass a scrape, a rule and the route of a page."""


def config(state: Path) -> str:
    """Both targets from the agent's start on; only the first has a card."""
    return (
        f"state_dir: {state}\n"
        f"targets:\n"
        f"  - {{name: {CHAT}, url: 'http://127.0.0.1:{PORT}', gpus: [0]}}\n"
        f"  - {{name: {LATE}, url: 'http://127.0.0.1:{PORT + 1}'}}\n"
    )


@dataclass(frozen=True)
class Stage:
    """What one run is made of."""

    work: Path
    chat: Server
    late: Server
    agent: Agent
    cards: Path
    chatting: Traffic
    late_chatting: Traffic


def stage(directory: Path, work: Path) -> Stage:
    for name in ("chat", "late", "state"):
        (work / name).mkdir()
    cards = work / "cards.json"
    replayed_cards.write_cards(cards, replayed_cards.server_and_idle(0))
    return Stage(
        work=work,
        chat=Server(directory, PORT, FLAGS, work / "chat", plugin=False),
        late=Server(directory, PORT + 1, FLAGS, work / "late", plugin=False),
        agent=Agent(work, config(work / "state"), cards),
        cards=cards,
        chatting=Traffic(per_second=0.25, prompt=(60, 400), tokens=(20, 80)),
        late_chatting=Traffic(per_second=0.06, prompt=(30, 300), tokens=(20, 60), seed=2),
    )


async def run(on: Stage) -> dict[str, Any]:
    """The whole run; what it came to."""
    try:
        started = await on.chat.start()
        async with asyncio.TaskGroup() as group:
            chatting = group.create_task(on.chatting.flow(on.chat.url))
            moving = group.create_task(replayed_cards.follow(on.cards, lambda: on.chatting.in_flight))
            with watchers(on.work, on.agent.address) as behind:
                began = time.time()
                say("the agent starts", began)
                await asyncio.to_thread(on.agent.start)
                late = group.create_task(_late(on, began))
                result = {"chat_started_after_seconds": round(started, 1)}
                result |= await _half_hour(on, behind, began)
            for task in (chatting, moving, late):
                task.cancel()
        return result
    finally:
        await asyncio.to_thread(on.agent.stop)
        await on.chat.stop()
        await on.late.stop()


async def _half_hour(on: Stage, behind: Watchers, began: float) -> dict[str, Any]:
    await asyncio.sleep(began + 30 * MINUTES - time.time())
    say("the agent is stopped", began)
    stopped = time.monotonic()
    await asyncio.to_thread(on.agent.stop)
    await asyncio.to_thread(on.agent.start)
    away = time.monotonic() - stopped
    say("the agent is back", began)
    await asyncio.sleep(began + 60 * MINUTES + _RULES_SETTLE_SECONDS - time.time())
    say("the end", began)
    found = await asyncio.to_thread(_result, on, behind, began)
    return {"agent_away_seconds": round(away, 2), **found}


async def _late(on: Stage, began: float) -> None:
    """The server that takes six minutes to come, and its load."""
    await asyncio.sleep(began + REFUSED_SECONDS - START_SECONDS - time.time())
    await on.late.start()
    say("the late server answers", began)
    await on.late_chatting.flow(on.late.url)


def _result(on: Stage, behind: Watchers, began: float) -> dict[str, Any]:
    prometheus, took = behind.prometheus, time.time() - began
    window = f"{math.ceil(took)}s"
    pages = notices(behind.hook, began)
    scrapes = [value for _, pairs in prometheus.raw("up", window) for _, value in pairs]
    miss = "sum by (target) (increase(ufwatch_page_table_{}_total{{unit='token'}}[{}]))"
    ratio = f"{miss.format('misses', window)} / {miss.format('lookups', window)}"
    memory = f"max_over_time(ufwatch_gpu_memory_bytes{{kind='used'}}[{window}]) / {replayed_cards.MEMORY_BYTES}"
    found = {
        "minutes": round(took / 60, 2),
        "scrapes": len(scrapes),
        "scrapes_failed": scrapes.count(0.0),
        "requests": {CHAT: vars(on.chatting.used), LATE: vars(on.late_chatting.used)},
        "miss_ratio": highest(prometheus, ratio, "target"),
        "sm_utilization_highest": highest(prometheus, f"max_over_time(ufwatch_sm_utilization_ratio[{window}])", "gpu"),
        "memory_used_highest": highest(prometheus, memory, "gpu"),
        "waiting_highest": highest(prometheus, f"max_over_time(ufwatch_requests_waiting[{window}])", "target"),
        "jitter_highest": highest(prometheus, f"max_over_time(target:ufwatch_token_jitter:stddev[{window}])", "target"),
        "burn_5m_highest": highest(
            prometheus, f"max_over_time(target_slo:ufwatch_slo_burn:rate5m[{window}])", "target", "slo"
        ),
        "states": {target: states(prometheus, target, window, began) for target in (CHAT, LATE)},
        "agent_starts": 1
        + round(sum(highest(prometheus, f"resets(ufwatch_agent_cpu_seconds_total[{window}])").values())),
        "alerts_ever_pending": ever(prometheus, "pending", window),
        "alerts_ever_firing": ever(prometheus, "firing", window),
        "pages": len(pages.pages),
        "tickets": len(pages.tickets),
        "notices": vars(pages),
    }
    doubts = _doubts(found)
    return {"passed": not (pages.pages or pages.tickets or doubts), **found, "not_as_claimed": doubts}


def _doubts(found: dict[str, Any]) -> list[str]:
    """Where the run was not the one that its name claims, so that its silence proves nothing."""
    late = dict(reversed(found["states"][LATE]))
    checks = {
        "a tenth of the prompts' tokens or more was found in the cache": found["miss_ratio"].get(CHAT, 0.0) > 0.9,
        "the first card was under 92 % full": found["memory_used_highest"].get("0", 0.0) > 0.92,
        "fewer than 200 requests were answered": found["requests"][CHAT]["finished"] >= 200,
        "the late server's first minutes were not shown as starting": "starting" in late,
        "the late server answered before six minutes": min(
            (at for state, at in late.items() if state != "starting"), default=math.inf
        )
        >= REFUSED_SECONDS,
        "the late server never served": found["requests"][LATE]["finished"] > 0,
        "the agent was not started twice": found["agent_starts"] == 2,
    }
    return [doubt for doubt, holds in checks.items() if not holds]


if __name__ == "__main__":
    sys.exit(by_hand("healthy", __doc__, lambda directory, work: run(stage(directory, work))))
