"""The ports, and both sides' configuration that goes with them."""

from __future__ import annotations

import asyncio
import json

from tests.e2e import truth
from tests.e2e.load import Load
from tests.e2e.server import Server
from tests.e2e.truth import Page
from tests.e2e.watch import TARGET, Watch

PORT, EVENTS, REPLAY = 18_000, 18_100, 18_200
"""The server's, and the first rank's for events and their replay."""
FIRST = Load(requests=4, at_once=2, prompt=(10, 20), tokens=(5, 8), seed=9)
"""What compiles and warms up whatever a server does at its first requests."""


def agent_config(server: Server, *, ranks: int) -> str:
    text = f"interval: 1s\ntargets:\n  - name: {TARGET}\n    url: {server.url}\n"
    if not ranks:
        return text
    bind, replay = f"tcp://127.0.0.1:{EVENTS}", f"tcp://127.0.0.1:{REPLAY}"
    return f'{text}    kv_events: {{bind: "{bind}", ranks: {ranks}, replay: "{replay}", topic: kv}}\n'


def events_flag() -> tuple[str, str]:
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{EVENTS}",
        "replay_endpoint": f"tcp://127.0.0.1:{REPLAY}",
        "topic": "kv",
        "buffer_steps": 100_000,
    }
    return "--kv-events-config", json.dumps(config)


async def blocks_removed(ranks: int) -> dict[str, int]:
    return {str(r): (await truth.removed_blocks(f"tcp://127.0.0.1:{REPLAY + r}"))[0] for r in range(ranks)}


async def settled(server: Server) -> None:
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


async def connected(watch: Watch) -> bool:
    """Looks until the publishers of KV events are connected; false where they do not come."""
    for _ in range(10):
        await watch.look()
        if watch.source_up("kv_events"):
            return True
        await asyncio.sleep(0.5)
    return False
