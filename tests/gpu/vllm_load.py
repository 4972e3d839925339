"""A load on vLLM's completions door and what its client saw: ``python vllm_load.py URL STREAMS SECONDS [--seed N]``.

Each stream asks one request after another, until SECONDS are over, then finishes the one under way. Every event of the
answer is stamped as it arrives. Prints one JSON line: requests, failures, tokens by usage, events, seconds, and count,
mean and population standard deviation of the times between events, in seconds. A process of its own, so that no other
work of the test delays its stamps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import threading
import time
from typing import Any

import aiohttp

MODEL = "tiny"
VOCABULARY = 2000
PROMPT, TOKENS = (64, 200), (100, 160)


class Seen:
    """What one client saw."""

    def __init__(self) -> None:
        self.requests = self.failed = self.tokens = 0
        self.gaps: list[float] = []
        self.first: list[float] = []
        self.error = ""


async def _ask(session: aiohttp.ClientSession, url: str, chosen: random.Random, seen: Seen) -> None:
    body = {
        "model": MODEL,
        "prompt": [chosen.randrange(2, VOCABULARY) for _ in range(chosen.randint(*PROMPT))],
        "max_tokens": chosen.randint(*TOKENS),
        "ignore_eos": True,
        "temperature": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begun, before, buffer = time.perf_counter(), 0.0, b""
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for chunk in answer.content.iter_any():
            now = time.perf_counter()
            *events, buffer = (buffer + chunk).split(b"\n\n")
            for event in events:
                if b'"choices":[]' in event or b'"choices": []' in event:
                    seen.tokens += json.loads(event[len(b"data: ") :])["usage"]["completion_tokens"]
                elif event.startswith(b"data: {"):
                    (seen.gaps if before else seen.first).append(now - (before or begun))
                    before = now
    seen.requests += 1


async def _stream(session: aiohttp.ClientSession, url: str, seed: int, end: float, seen: Seen) -> None:
    chosen = random.Random(seed)
    while time.perf_counter() < end and seen.failed < 50:
        try:
            await _ask(session, url, chosen, seen)
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
            seen.failed += 1
            seen.error = repr(error)[:200]


async def load(url: str, streams: int, seconds: float, seed: int) -> dict[str, Any]:
    seen, begun = Seen(), time.perf_counter()
    timeout, connector = aiohttp.ClientTimeout(total=120), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        end = begun + seconds
        await asyncio.gather(*(_stream(session, url, seed * 1000 + n, end, seen) for n in range(streams)))
    return {
        "requests": seen.requests,
        "failed": seen.failed,
        "error": seen.error,
        "tokens": seen.tokens,
        "events": len(seen.gaps) + len(seen.first),
        "seconds": round(time.perf_counter() - begun, 3),
        "ttft_over_0.8": sum(ttft > 0.8 for ttft in seen.first),
        **moments(seen.gaps),
    }


def moments(values: list[float]) -> dict[str, float]:
    """Count, sum, sum of squares, mean and population standard deviation."""
    n, total, squares = len(values), math.fsum(values), math.fsum(value * value for value in values)
    mean = total / n if n else 0.0
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / n) if n else 0.0
    return {"n": n, "sum": total, "squares": squares, "mean": mean, "deviation": deviation}


class Removals(threading.Thread):
    """Binds where vLLM's KV-event publisher connects, and counts the blocks that BlockRemoved names."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(name="kv-events", daemon=True)
        self.endpoint = endpoint
        self.removed = self.batches = self.gaps = self.cleared = 0
        self.first: int | None = None
        self.error = ""
        self._last = -1
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            import msgspec  # both come with vLLM, so late
            import zmq

            socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.subscribe(b"")
            socket.bind(self.endpoint)
            while not self._ended.is_set():
                if socket.poll(200):
                    frames = socket.recv_multipart()
                    self._take(int.from_bytes(frames[1], "big"), msgspec.msgpack.decode(frames[2])[1])
            socket.close()
        except Exception as error:
            self.error = repr(error)

    def stop(self) -> None:
        self._ended.set()
        self.join(5)

    def _take(self, seq: int, events: list[Any]) -> None:
        self.first = seq if self.first is None else self.first
        self.gaps += self.batches > 0 and seq != self._last + 1
        self._last, self.batches = seq, self.batches + 1
        for event in events:
            # A map from 0.24 on, before it an array with its tag first.
            tag = event["type"] if isinstance(event, dict) else event[0]
            if tag == "BlockRemoved":
                self.removed += len(event["block_hashes"] if isinstance(event, dict) else event[1])
            self.cleared += tag == "AllBlocksCleared"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("streams", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(json.dumps(asyncio.run(load(args.url, args.streams, args.seconds, args.seed))))
