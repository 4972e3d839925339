"""The other side of every comparison, made without any of ufwatch's code: the plugin's sums, the page as
prometheus_client reads it, and the KV events counted from the publisher's replay."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import zmq
import zmq.asyncio
from prometheus_client.parser import text_string_to_metric_families

SOURCES = "vllm:prompt_tokens_by_source_total"


@dataclass(frozen=True)
class Exact:
    """The plugin's sums over a window, of one engine or several."""

    sums: Mapping[str, float]

    @property
    def n(self) -> float:
        return self.sums["n"]

    @property
    def deviation(self) -> float:
        """Population standard deviation of the intervals; NaN without any."""
        if not self.n:
            return math.nan
        mean = self.sums["sum"] / self.n
        return math.sqrt(max(0.0, self.sums["squares"] / self.n - mean * mean))


def plugin_sums(directory: Path) -> dict[str, Counter[str]]:
    """The plugin's sums by engine: each API server has its own share of an engine's."""
    engines: dict[str, Counter[str]] = defaultdict(Counter)
    for path in directory.glob("*.json"):
        sums = json.loads(path.read_text())
        engine = str(sums.pop("engine"))
        engines[engine].update(sums)
    return engines


def between(before: Mapping[str, Counter[str]], after: Mapping[str, Counter[str]]) -> dict[str, Exact]:
    """What each engine's sums grew by."""
    grown = {}
    for engine, final in after.items():
        first = before.get(engine, Counter())
        grown[engine] = Exact({name: final[name] - first[name] for name in final})
    return grown


Page = Mapping[tuple[str, str], float]
"""Sample name and engine to the sum of its series; of prompt sources, name and ``{engine}/{source}`` too."""


async def page(url: str) -> Page:
    """The server's page, read by prometheus_client."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    found: dict[tuple[str, str], float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.startswith("vllm:") or "le" in sample.labels:
                continue
            engine = sample.labels.get("engine", "")
            found[sample.name, engine] += sample.value
            if sample.name == SOURCES:
                found[sample.name, f"{engine}/{sample.labels['source']}"] += sample.value
    return found


async def removed_blocks(endpoint: str, timeout_seconds: float = 10.0) -> tuple[int, int]:
    """GPU blocks in BlockRemoved events since the publisher began, and its number of batches, by its replay.

    Raises RuntimeError where the replay has a hole that asking again does not fill, or no answer comes.
    """
    context = zmq.asyncio.Context()
    removed = following = 0
    try:
        for _ in range(20):
            asked = following
            ended, more, following = await _replay(context, endpoint, following, timeout_seconds)
            removed += more
            if ended:
                return removed, following
            if following == asked:
                break
        raise RuntimeError(f"{endpoint}: the replay stops at batch {following}")
    finally:
        context.destroy(linger=0)


async def _replay(
    context: zmq.asyncio.Context, endpoint: str, following: int, timeout_seconds: float
) -> tuple[bool, int, int]:
    removed, whole = 0, True
    with context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(endpoint)
        await socket.send_multipart([b"", following.to_bytes(8, "big")])
        while await socket.poll(timeout_seconds * 1000):
            frames = await socket.recv_multipart()
            seq = int.from_bytes(frames[-2], "big", signed=True)
            if seq < 0:
                return whole, removed, following
            whole = whole and seq == following
            if whole:
                removed += sum(_removed(event) for event in msgspec.msgpack.decode(frames[-1])[1])
                following += 1
    return False, removed, following


def _removed(event: Any) -> int:
    """Blocks that one event, a map or a tagged array, takes off the GPU."""
    if isinstance(event, dict):
        tag, hashes, medium = event.get("type"), event.get("block_hashes"), event.get("medium")
    else:
        tag, hashes, medium = (*event, None, None)[:3]
    return len(hashes or ()) if tag == "BlockRemoved" and medium in (None, "GPU") else 0
