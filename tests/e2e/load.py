"""Streaming completions, staggered, some with a prefix in common; what the server says it used is added up."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Used:
    """What the clients were told: tokens by the server's own ``usage``, and how the requests ended."""

    prompt: int = 0
    generated: int = 0
    finished: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Load:
    requests: int
    at_once: int
    prompt: tuple[int, int]
    """Fewest and most tokens of a prompt behind the common prefix."""
    tokens: tuple[int, int]
    """Fewest and most tokens to generate."""
    prefix: int = 64
    seed: int = 1


async def drive(url: str, load: Load) -> Used:
    """Sends the whole load. Requests that fail are counted, none is repeated."""
    chance = random.Random(load.seed)
    prefix = [chance.randrange(10, 1500) for _ in range(load.prefix)]
    plans = []
    for _ in range(load.requests):
        own = [chance.randrange(10, 1500) for _ in range(chance.randint(*load.prompt))]
        plans.append((own if chance.random() < 0.25 else prefix + own, chance.randint(*load.tokens), chance.random()))
    used, free = Used(), asyncio.Semaphore(load.at_once)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(prompt: list[int], tokens: int, pause: float) -> None:
            async with free:
                await asyncio.sleep(pause * 0.3)
                try:
                    await _stream(session, url, prompt, tokens, used)
                    used.finished += 1
                except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError):
                    used.failed += 1

        await asyncio.gather(*(one(*plan) for plan in plans))
    return used


@dataclass
class Traffic:
    """Requests by chance for as long as it runs, every prompt new, in busy spells with pauses between them."""

    per_second: float
    prompt: tuple[int, int]
    """Fewest and most tokens of a prompt."""
    tokens: tuple[int, int]
    busy_seconds: tuple[float, float] = (40.0, 120.0)
    pause_seconds: tuple[float, float] = (5.0, 30.0)
    most_at_once: int = 12
    seed: int = 1
    used: Used = field(default_factory=Used)
    in_flight: int = 0

    async def flow(self, url: str) -> None:
        """Sends until cancelled. Requests that fail are counted, none is repeated; those still open are dropped."""
        chance = random.Random(self.seed)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as group:
            clock = asyncio.get_running_loop().time
            while True:
                until = clock() + chance.uniform(*self.busy_seconds)
                while clock() < until:
                    await asyncio.sleep(chance.expovariate(self.per_second))
                    if self.in_flight < self.most_at_once:
                        prompt = [chance.randrange(10, 1500) for _ in range(chance.randint(*self.prompt))]
                        group.create_task(self._one(session, url, prompt, chance.randint(*self.tokens)))
                await asyncio.sleep(chance.uniform(*self.pause_seconds))

    async def _one(self, session: aiohttp.ClientSession, url: str, prompt: list[int], tokens: int) -> None:
        self.in_flight += 1
        try:
            await _stream(session, url, prompt, tokens, self.used)
            self.used.finished += 1
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError):
            self.used.failed += 1
        finally:
            self.in_flight -= 1


async def _stream(session: aiohttp.ClientSession, url: str, prompt: list[int], tokens: int, used: Used) -> None:
    body = {
        "model": "tiny",
        "prompt": prompt,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": tokens,
        "max_tokens": tokens,
        "temperature": 1.0,
    }
    usage = None
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise ValueError(await answer.text())
        async for line in answer.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise ValueError(chunk["error"])
                usage = chunk.get("usage") or usage
    if usage is None:
        raise ValueError("the stream ended early")
    used.prompt += usage["prompt_tokens"]
    used.generated += usage["completion_tokens"]
