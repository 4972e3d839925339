"""KV events over real ZMQ sockets on loopback: who binds, who is connected, ranks, rubbish."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from tests.sources.kv_publisher import END, HOST, Publisher, bound, free_ports, removed, run, running, until
from ufwatch.clock import ManualClock
from ufwatch.config import KvEventsConfig
from ufwatch.errors import ConfigError, SourceError
from ufwatch.model import Quality, Reason
from ufwatch.sources.kv_events import KvEventsSource, of_rank


@pytest.mark.parametrize("we_bind", [True, False])
@pytest.mark.parametrize("maps", [True, False])
def test_evictions_are_counted_whoever_binds_in_both_wire_forms(we_bind: bool, maps: bool) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        publisher = Publisher()
        if we_bind:
            config, port = bound()
        else:
            config = KvEventsConfig(connect=publisher.bind())
        source = KvEventsSource(config, clock)
        assert source.snapshot().health.reason is Reason.WARMING_UP
        async with running(source):
            if we_bind:
                await until(lambda: source.snapshot().health.reason is Reason.CONNECT)
                publisher.connect(f"{HOST}:{port}")
            await publisher.subscribed()
            await until(lambda: source.snapshot().health.up)
            idle = source.snapshot()
            assert (idle.evictions_by_rank, idle.last_event_age_seconds) == ({0: 0.0}, None)
            await publisher.publish(removed(3, maps=maps), removed(2, maps=maps, medium=None))
            await publisher.publish(
                removed(4, maps=maps, medium="CPU"),
                {"type": "AllBlocksCleared"} if maps else ["AllBlocksCleared"],
            )
            await until(lambda: source.snapshot().batches == 2)
            clock.advance(7)
            seen = source.snapshot()
            assert (seen.evictions_by_rank, seen.removed_other, seen.cleared) == ({0: 5.0}, 4, 1)
            assert (seen.gaps, seen.faults, seen.last_event_age_seconds) == (0, 0, 7.0)
            assert (seen.quality, seen.health.up) == (Quality.EXACT, True)
            publisher.close()
            await until(lambda: not source.snapshot().health.up)
            gone = source.snapshot()
            assert gone.health.reason is Reason.CONNECT
            assert gone.evictions_by_rank == {0: 5.0}

    run(scenario())


def test_ranks_have_a_port_and_a_count_each() -> None:
    async def scenario() -> None:
        config, port = bound(ranks=2)
        source = KvEventsSource(config, ManualClock())
        publishers = [Publisher(rank=rank) for rank in range(2)]
        async with running(source):
            publishers[0].connect(f"{HOST}:{port}")
            await publishers[0].subscribed()
            await until(lambda: source.snapshot().health_by_rank[0].up)
            half = source.snapshot()
            assert (half.health.up, half.health_by_rank[1].reason) == (False, Reason.CONNECT)
            publishers[1].connect(of_rank(f"{HOST}:{port}", 1))
            await publishers[1].subscribed()
            await until(lambda: source.snapshot().health.up)
            await publishers[0].publish(removed(1))
            await publishers[1].publish(removed(10))
            await publishers[1].publish(removed(10))
            await until(lambda: source.snapshot().batches == 3)
            assert source.snapshot().evictions_by_rank == {0: 1.0, 1: 20.0}
        for publisher in publishers:
            publisher.close()

    run(scenario())


def test_the_rank_is_the_one_the_publisher_names() -> None:
    async def scenario() -> None:
        publisher = Publisher(rank=5)
        source = KvEventsSource(KvEventsConfig(connect=publisher.bind()), ManualClock())
        async with running(source):
            await publisher.subscribed()
            await publisher.publish(removed(2))
            await until(lambda: source.snapshot().batches == 1)
            seen = source.snapshot()
            assert (seen.evictions_by_rank, list(seen.health_by_rank)) == ({5: 2.0}, [5])
        publisher.close()

    run(scenario())


def test_rubbish_is_counted_and_does_no_harm() -> None:
    async def scenario() -> None:
        publisher = Publisher()
        source = KvEventsSource(KvEventsConfig(connect=publisher.bind()), ManualClock())
        async with running(source):
            await publisher.subscribed()
            await publisher.publish(removed(1))
            await publisher.send(b"kv")
            await publisher.send(b"kv", b"\x00", b"")
            await publisher.send(b"kv", b"\x00" * 8, b"", b"")
            await publisher.send(b"kv", END, b"")
            await publisher.send(b"kv", (1).to_bytes(8, "big"), b"\xc1\xc1")
            publisher.seq = 2
            await publisher.publish(removed(1))
            await until(lambda: source.snapshot().evictions_by_rank[0] == 2.0)
            seen = source.snapshot()
            assert (seen.faults, seen.lost_batches, seen.gaps) == (5, 1, 0)
            assert seen.health.up
        publisher.close()

    run(scenario())


def test_only_a_finished_handshake_is_a_publisher() -> None:
    async def scenario() -> None:
        config, port = bound()
        source = KvEventsSource(config, ManualClock())
        async with running(source):
            await until(lambda: source.snapshot().health.reason is Reason.CONNECT)
            (stream,) = source._streams
            for _ in range(3):
                _, stranger = await asyncio.open_connection("127.0.0.1", port)
                await until(lambda: len(stream._peers._open) == 1)
                stranger.write(b"GET / HTTP/1.1\r\n\r\n" * 20)
                stranger.close()
                await until(lambda: not stream._peers._open)
                assert source.snapshot().health.reason is Reason.CONNECT
            publisher = Publisher()
            publisher.connect(f"{HOST}:{port}")
            await publisher.subscribed()
            await until(lambda: source.snapshot().health.up)
            _, stranger = await asyncio.open_connection("127.0.0.1", port)
            await until(lambda: len(stream._peers._open) == 2)
            assert source.snapshot().health.up
            stranger.close()
            await until(lambda: len(stream._peers._open) == 1)
            assert source.snapshot().health.up
            publisher.close()
            await until(lambda: not source.snapshot().health.up)

    run(scenario())


def test_two_publishers_on_one_endpoint_are_not_trusted() -> None:
    async def scenario() -> None:
        config, port = bound()
        source = KvEventsSource(config, ManualClock())
        publishers = [Publisher(), Publisher()]
        async with running(source):
            await until(lambda: source.snapshot().health.reason is Reason.CONNECT)
            for publisher in publishers:
                publisher.connect(f"{HOST}:{port}")
                await publisher.subscribed()
            await until(lambda: source.snapshot().health.reason is Reason.INCONSISTENT)
            publishers[0].close()
            await until(lambda: source.snapshot().health.up)
        publishers[1].close()

    run(scenario())


def test_both_sides_connecting_reads_as_down() -> None:
    async def scenario() -> None:
        port = free_ports(1)
        publisher = Publisher()
        publisher.connect(f"{HOST}:{port}")
        source = KvEventsSource(KvEventsConfig(connect=f"{HOST}:{port}"), ManualClock())
        async with running(source):
            await until(lambda: source.snapshot().health.reason is Reason.CONNECT)
            assert "listens there only if its endpoint contains" in source.snapshot().health.detail
        publisher.close()

    run(scenario())


def test_an_address_in_use_is_tried_again() -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            endpoint = f"{HOST}:{taken.getsockname()[1]}"
            source = KvEventsSource(KvEventsConfig(bind=endpoint), ManualClock(), retry_seconds=0.01)
            async with running(source):
                await until(lambda: "in use" in source.snapshot().health.detail)
                assert source.snapshot().health.reason is Reason.CONNECT
                taken.close()
                await until(lambda: "no publisher" in source.snapshot().health.detail)
                publisher = Publisher()
                publisher.connect(endpoint)
                await until(lambda: source.snapshot().health.up)
                publisher.close()

    run(scenario())


def test_a_topic_and_an_ipc_endpoint(tmp_path: Path) -> None:
    async def scenario() -> None:
        endpoint = f"ipc://{tmp_path}/kv"
        source = KvEventsSource(KvEventsConfig(bind=endpoint, topic="kv@a"), ManualClock())
        publisher = Publisher(topic=b"kv@a@model", rank=None)
        async with running(source):
            publisher.connect(endpoint)
            await publisher.subscribed()
            await publisher.send(b"kv@b", b"\x00" * 8, b"")
            await publisher.publish(removed(2))
            await until(lambda: source.snapshot().evictions_by_rank[0] == 2.0)
            assert source.snapshot().faults == 0
        publisher.close()

    run(scenario())


def test_a_burst_is_drained_and_gives_way_to_others() -> None:
    async def scenario() -> None:
        publisher = Publisher()
        source = KvEventsSource(KvEventsConfig(connect=publisher.bind()), ManualClock())
        async with running(source):
            await publisher.subscribed()
            for _ in range(2_000):
                await publisher.publish(removed(1))
            await until(lambda: source.snapshot().evictions_by_rank[0] == 2_000.0)
            assert source.snapshot().gaps == 0
        publisher.close()

    run(scenario())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (KvEventsConfig(), "exactly one"),
        (KvEventsConfig(bind=f"{HOST}:1", connect=f"{HOST}:1"), "exactly one"),
        (KvEventsConfig(bind=f"{HOST}:5557", ranks=0), "at least"),
        (KvEventsConfig(bind="ipc:///tmp/kv", ranks=2), "rank 0 only"),
        (KvEventsConfig(bind=f"{HOST}:5557", replay="ipc:///tmp/kv", ranks=2), "rank 0 only"),
        (KvEventsConfig(connect="tcp://*:5557"), "cannot be connected to"),
        (KvEventsConfig(bind="tcp://*:5557", replay="tcp://*:5558"), "cannot be connected to"),
        (KvEventsConfig(bind="http://127.0.0.1:5557"), "no endpoint"),
        (KvEventsConfig(bind="ipc://"), "no endpoint"),
        (KvEventsConfig(bind=f"{HOST}:65535", ranks=2), "no endpoint"),
        (KvEventsConfig(bind=f"{HOST}:5557", replay=f"{HOST}:5558", ranks=2), "meet"),
    ],
)
def test_endpoints_that_cannot_work_are_refused(config: KvEventsConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        KvEventsSource(config, ManualClock())


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "zmq.asyncio")
    with pytest.raises(SourceError, match=r"pip install 'ufwatch\[kv-events\]'"):
        KvEventsSource(KvEventsConfig(bind=f"{HOST}:5557"), ManualClock())
