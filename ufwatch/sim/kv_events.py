"""Publishes a simulated server's KV events over ZeroMQ, in the form of the simulated version.

Needs the extra ``kv-events``. One publisher per engine (data-parallel rank), rank r on port + r, as with vLLM.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ufwatch.errors import SourceError
from ufwatch.sim.engine import SimEngine
from ufwatch.sim.layout import parse_version
from ufwatch.sim.scheduler import KvBatch

if TYPE_CHECKING:
    import zmq

_MAPS_SINCE = (0, 24)
_BUFFERED_BATCHES = 10_000
_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_TOPIC = b"kv"
_HIGH_WATER_MARK = 100_000


class KvEventPublisher:
    """Sends what the engines' steps did to findable blocks each time ``flush`` is called."""

    def __init__(self, engine: SimEngine, endpoint: str, *, version: str, replay: str | None = None) -> None:
        try:
            import msgspec
            import zmq
        except ImportError as error:
            raise SourceError("KV events need pyzmq and msgspec: pip install 'ufwatch[kv-events]'") from error
        self._engine = engine
        self._encode = msgspec.msgpack.encode
        self._as_maps = parse_version(version) >= _MAPS_SINCE
        self._block_size = engine.scenario.block_size
        endpoints = [
            (_shifted(endpoint, rank), None if replay is None else _shifted(replay, rank))
            for rank in range(engine.scenario.engines)
        ]
        self._context = zmq.Context()
        try:
            self._ranks = [_Rank(self._context, *pair) for pair in endpoints]
        except zmq.ZMQError as error:
            self.close()
            raise SourceError(f"{endpoint}: {error}") from error
        self._to_lose = 0
        self.removed = 0
        """Blocks named in BlockRemoved events since the start, lost batches included: the truth to compare with."""
        engine.collect_kv_events()

    def lose(self, batches: int) -> None:
        """The next batches get sequence numbers and can be replayed, but are not sent: what a slow subscriber loses."""
        self._to_lose += batches

    @property
    def subscribed(self) -> bool:
        """Whether every rank has had a subscriber; what is sent before one comes is lost."""
        return all(publisher.has_subscriber() for publisher in self._ranks)

    def flush(self) -> int:
        """Sends the batches of all steps since the last call, and answers replay requests. How many batches it were."""
        batches = self._engine.take_kv_batches()
        for rank, batch in batches:
            self.removed += len(batch.evicted)
            payload = self._encode([self._engine.wall(batch.at), self._events(batch), rank])
            self._ranks[rank].send(payload, lost=self._to_lose > 0)
            self._to_lose = max(0, self._to_lose - 1)
        for publisher in self._ranks:
            publisher.answer_replays()
        return len(batches)

    def close(self) -> None:
        """Closes the sockets; what is still queued is thrown away."""
        self._context.destroy(linger=0)

    def _events(self, batch: KvBatch) -> list[Any]:
        # Evictions first: a step takes blocks before it fills them. One event per removed block, as seen from vLLM.
        removed: list[Any]
        stored = []
        tokens = list(range(self._block_size * len(batch.stored)))
        if self._as_maps:
            removed = [
                {"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU", "group_idx": 0}
                for key in batch.evicted
            ]
            if batch.stored:
                stored.append(
                    {
                        "type": "BlockStored",
                        "block_hashes": list(batch.stored),
                        "parent_block_hash": None,
                        "token_ids": tokens,
                        "block_size": self._block_size,
                        "lora_id": None,
                        "medium": "GPU",
                        "group_idx": 0,
                    }
                )
            return [*removed, *stored]
        removed = [["BlockRemoved", [key], "GPU"] for key in batch.evicted]
        if batch.stored:
            removed.append(["BlockStored", list(batch.stored), None, tokens, self._block_size, None, "GPU"])
        return removed


class _Rank:
    """The sockets of one data-parallel rank."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, replay: str | None) -> None:
        import zmq

        self._no_wait = zmq.NOBLOCK
        self._nothing = zmq.Again
        self._sequence = 0
        self._buffer: deque[tuple[bytes, bytes]] = deque(maxlen=_BUFFERED_BATCHES)
        # On the wire the same as PUB, but it tells of subscriptions.
        self._publisher = context.socket(zmq.XPUB)
        self._publisher.set_hwm(_HIGH_WATER_MARK)
        # vLLM's rule: a wildcard or a local transport is bound, any other address is connected to.
        if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc", "inproc")):
            self._publisher.bind(endpoint)
        else:
            self._publisher.connect(endpoint)
        self._replay: zmq.Socket[bytes] | None = None
        if replay is not None:
            self._replay = context.socket(zmq.ROUTER)
            self._replay.bind(replay)

    def has_subscriber(self) -> bool:
        # Subscriptions stay unread: one is enough to know.
        return bool(self._publisher.poll(0))

    def send(self, payload: bytes, *, lost: bool) -> None:
        sequence = self._sequence.to_bytes(8, "big")
        self._sequence += 1
        self._buffer.append((sequence, payload))
        if not lost:
            self._publisher.send_multipart([_TOPIC, sequence, payload])

    def answer_replays(self) -> None:
        """Sends every buffered batch from the one asked for on, then an end mark."""
        while self._replay is not None:
            try:
                client, _, start = self._replay.recv_multipart(self._no_wait)
            except self._nothing:
                return
            for sequence, payload in self._buffer:
                if sequence >= start:
                    self._replay.send_multipart([client, b"", sequence, payload])
            self._replay.send_multipart([client, b"", _END_OF_REPLAY, b""])


def _shifted(endpoint: str, rank: int) -> str:
    """The endpoint of a rank: its port is the first one's plus the rank."""
    if not rank:
        return endpoint
    address, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp:") or not port.isdigit():
        raise ValueError(f"{endpoint} has no port to give a second engine another one of")
    return f"{address}:{int(port) + rank}"
