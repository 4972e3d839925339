"""KV events over ZeroMQ: what a subscriber counts is what was evicted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import zmq

from ufwatch.clock import ManualClock
from ufwatch.errors import SourceError
from ufwatch.sim.engine import SimEngine
from ufwatch.sim.kv_events import KvEventPublisher
from ufwatch.sim.scenario import SCENARIOS
from ufwatch.sim.server import SimServer

Socket = zmq.Socket[bytes]
END = (-1).to_bytes(8, "big", signed=True)


@pytest.fixture
def subscriber() -> Iterator[Socket]:
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.set_hwm(0)
        socket.subscribe(b"kv")
        yield socket


def bound(subscriber: Socket) -> str:
    return f"tcp://127.0.0.1:{subscriber.bind_to_random_port('tcp://127.0.0.1')}"


def subscribe(publisher: KvEventPublisher, *subscribers: Socket) -> None:
    for _ in range(5000):
        if publisher.subscribed:
            return
        # A socket sends its subscription when it is used.
        for socket in subscribers:
            assert not socket.poll(1)
    raise AssertionError("nobody subscribed")


def receive(socket: Socket, count: int) -> list[list[bytes]]:
    batches: list[list[bytes]] = []
    while len(batches) < count:
        assert socket.poll(5000), f"only {len(batches)} of {count} batches arrived"
        batches.append(socket.recv_multipart())
    return batches


def sequences(batches: list[list[bytes]]) -> list[int]:
    return [int.from_bytes(batch[1], "big") for batch in batches]


def blocks_removed(payload: bytes) -> int:
    events: list[Any] = msgspec.msgpack.decode(payload)[1]
    count = 0
    for event in events:
        if isinstance(event, dict) and event["type"] == "BlockRemoved":
            assert event["medium"] == "GPU"
            count += len(event["block_hashes"])
        elif isinstance(event, list) and event[0] == "BlockRemoved":
            assert event[2] == "GPU"
            count += len(event[1])
    return count


@pytest.mark.parametrize(("version", "form"), [("0.20.2", list), ("0.24.0", dict)])
def test_removed_blocks_are_evictions(subscriber: Socket, version: str, form: type) -> None:
    engine = SimEngine(SCENARIOS["prefix_thrashing"])
    publisher = KvEventPublisher(engine, bound(subscriber), version=version)
    try:
        subscribe(publisher, subscriber)
        engine.advance(20.0)
        batches = receive(subscriber, publisher.flush())
    finally:
        publisher.close()
    assert sequences(batches) == list(range(len(batches)))
    removed = sum(blocks_removed(batch[2]) for batch in batches)
    assert removed == engine.truth(0.0, 20.0).evictions == publisher.removed > 1000
    timestamp, events, rank = msgspec.msgpack.decode(batches[-1][2])
    assert timestamp == pytest.approx(engine.wall(20.0), abs=0.5)
    assert rank == 0
    assert {type(event) for event in events} == {form}


def bind_pair(first: Socket, second: Socket) -> str:
    """Binds to two ports in a row and returns the first's address."""
    for _ in range(50):
        endpoint = bound(first)
        address, _, port = endpoint.rpartition(":")
        try:
            second.bind(f"{address}:{int(port) + 1}")
        except zmq.ZMQError:
            # Somebody has that one.
            first.unbind(endpoint)
        else:
            return endpoint
    raise AssertionError("no two free ports in a row")


def test_each_rank_has_its_own_port(subscriber: Socket) -> None:
    engine = SimEngine(SCENARIOS["two_engines"])
    with zmq.Context() as context, context.socket(zmq.SUB) as second:
        second.subscribe(b"")
        publisher = KvEventPublisher(engine, bind_pair(subscriber, second), version="0.32.0")
        try:
            subscribe(publisher, subscriber, second)
            engine.advance(5.0)
            publisher.flush()
            for rank, socket in enumerate((subscriber, second)):
                assert msgspec.msgpack.decode(receive(socket, 1)[0][2])[2] == rank
        finally:
            publisher.close()


def test_impossible_endpoints_are_refused() -> None:
    with pytest.raises(ValueError, match="no port"):
        KvEventPublisher(SimEngine(SCENARIOS["two_engines"]), "ipc://here", version="0.32.0")
    with pytest.raises(SourceError, match="nonsense"):
        KvEventPublisher(SimEngine(SCENARIOS["steady"]), "nonsense", version="0.32.0")


def test_lost_batches_leave_a_gap_and_can_be_replayed(subscriber: Socket) -> None:
    engine = SimEngine(SCENARIOS["steady"])
    with zmq.Context() as context, context.socket(zmq.REQ) as probe:
        # A free port, found by binding and letting go.
        replay = bound(probe)
        probe.unbind(replay)
    publisher = KvEventPublisher(engine, bound(subscriber), version="0.32.0", replay=replay)
    try:
        subscribe(publisher, subscriber)
        publisher.lose(3)
        engine.advance(30.0)
        sent = publisher.flush()
        assert sequences(receive(subscriber, sent - 3)) == list(range(3, sent))
        with zmq.Context() as context, context.socket(zmq.DEALER) as asker:
            asker.connect(replay)
            asker.send_multipart([b"", (1).to_bytes(8, "big")])
            replayed: list[list[bytes]] = []
            while not replayed or replayed[-1][1] != END:
                publisher.flush()
                if asker.poll(10):
                    replayed.append(asker.recv_multipart())
        assert sequences(replayed[:-1]) == list(range(1, sent))
    finally:
        publisher.close()


def test_a_server_publishes_as_it_runs(subscriber: Socket) -> None:
    async def run() -> None:
        clock = ManualClock()
        # No idle minutes: every step of this load stores or evicts something.
        async with SimServer(replace(SCENARIOS["prefix_thrashing"], seed=8), clock=clock) as server:
            publisher = server.publish_kv_events(bound(subscriber))
            subscribe(publisher, subscriber)
            clock.advance(10.0)
            server.catch_up()
            batches = receive(subscriber, 20)
            assert sum(blocks_removed(batch[2]) for batch in batches) <= server.engine.truth(0.0, 10.0).evictions

    asyncio.run(run())
