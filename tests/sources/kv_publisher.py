"""A publisher of KV events as vLLM's is, and a source that runs for as long as a test looks at it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from ufwatch.config import KvEventsConfig
from ufwatch.sources.kv_events import KvEventsSource

END = (-1).to_bytes(8, "big", signed=True)
HOST = "tcp://127.0.0.1"


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(limited())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.005)


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nobody listens on."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        opened = [socket.socket() for _ in range(count)]
        try:
            for offset, one in enumerate(opened):
                one.bind(("127.0.0.1", first + offset))
            return first
        except (OSError, OverflowError):
            continue
        finally:
            for one in opened:
                one.close()


def removed(count: int, *, maps: bool = True, medium: str | None = "GPU") -> Any:
    hashes = list(range(count))
    if maps:
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium}
    return ["BlockRemoved", hashes, medium]


class Publisher:
    """As vLLM's: sequence numbers from 0, a buffer, a ROUTER that replays it.

    An XPUB stands in for the PUB: it alone can tell when the subscription has arrived, so that nothing goes too early.
    """

    def __init__(self, *, rank: int | None = 0, began: float = 0.0, topic: bytes = b"kv") -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self.router = self._context.socket(zmq.ROUTER)
        self._topic = topic
        self._rank = rank
        self._began = began
        self.buffer: list[tuple[int, bytes]] = []
        self.seq = 0
        self.requests: list[int] = []

    def bind(self) -> str:
        return f"{HOST}:{self._socket.bind_to_random_port(HOST)}"

    def connect(self, endpoint: str) -> None:
        self._socket.connect(endpoint)

    def bind_replay(self) -> str:
        return f"{HOST}:{self.router.bind_to_random_port(HOST)}"

    async def subscribed(self) -> None:
        message = await self._socket.recv()
        assert message[:1] == b"\x01"

    async def publish(self, *events: Any, lost: bool = False) -> None:
        payload = msgspec.msgpack.encode([self._began + self.seq, list(events), self._rank])
        self.buffer.append((self.seq, payload))
        if not lost:
            await self.send(self._topic, self.seq.to_bytes(8, "big"), payload)
        self.seq += 1

    async def send(self, *frames: bytes) -> None:
        await self._socket.send_multipart(frames)

    async def answer(self, *, with_topic: bool = True, drop: int = 0) -> None:
        """Answers one replay request; the last ``drop`` batches of the answer are left out."""
        client, empty, start = await self.router.recv_multipart()
        assert empty == b""
        self.requests.append(int.from_bytes(start, "big"))
        topic = [self._topic] if with_topic else []
        found = [(seq, payload) for seq, payload in self.buffer if seq >= self.requests[-1]]
        for seq, payload in found[: len(found) - drop]:
            await self.router.send_multipart([client, b"", *topic, seq.to_bytes(8, "big"), payload])
        await self.router.send_multipart([client, b"", *topic, END, b""])

    def close(self) -> None:
        self._context.destroy(linger=0)


@asynccontextmanager
async def running(source: KvEventsSource) -> AsyncIterator[KvEventsSource]:
    task = asyncio.create_task(source.run())
    try:
        yield source
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def bound(ranks: int = 1, replay: str | None = None, topic: str = "") -> tuple[KvEventsConfig, int]:
    port = free_ports(ranks)
    return KvEventsConfig(bind=f"{HOST}:{port}", ranks=ranks, replay=replay, topic=topic), port
