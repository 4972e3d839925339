"""What a subscriber missed: gaps filled from the publisher's replay, lost where it cannot be, restarts.

All over real ZMQ sockets on loopback.
"""

from __future__ import annotations

import pytest

from tests.sources.kv_publisher import HOST, Publisher, bound, free_ports, removed, run, running, until
from ufwatch.clock import ManualClock
from ufwatch.config import KvEventsConfig
from ufwatch.model import Quality
from ufwatch.sources.kv_events import KvEventsSource


@pytest.mark.parametrize("with_topic", [True, False])
def test_a_gap_is_replayed(with_topic: bool) -> None:
    async def scenario() -> None:
        publisher = Publisher()
        config = KvEventsConfig(connect=publisher.bind(), replay=publisher.bind_replay())
        source = KvEventsSource(config, ManualClock())
        async with running(source):
            await publisher.subscribed()
            await publisher.publish(removed(1))
            for _ in range(3):
                await publisher.publish(removed(10), lost=True)
            await publisher.publish(removed(100))
            await until(lambda: source.snapshot().gaps == 1)
            waiting = source.snapshot()
            assert (waiting.evictions_by_rank[0], waiting.missing_batches) == (101.0, 3)
            assert waiting.quality is Quality.BOUNDED
            await publisher.answer(with_topic=with_topic)
            await until(lambda: source.snapshot().missing_batches == 0)
            filled = source.snapshot()
            assert (filled.evictions_by_rank[0], filled.lost_batches) == (131.0, 0)
            assert (filled.quality, publisher.requests) == (Quality.EXACT, [1])
            await publisher.publish(removed(1000), lost=True)
            await publisher.publish(removed(10_000))
            await publisher.answer(with_topic=with_topic)
            await until(lambda: source.snapshot().evictions_by_rank[0] == 11_131.0)
            assert publisher.requests == [1, 5]
        publisher.close()

    run(scenario())


def test_a_replay_that_brings_only_a_part_is_asked_for_again() -> None:
    async def scenario() -> None:
        publisher = Publisher()
        config = KvEventsConfig(connect=publisher.bind(), replay=publisher.bind_replay())
        source = KvEventsSource(config, ManualClock())
        async with running(source):
            await publisher.subscribed()
            await publisher.publish(removed(1))
            for _ in range(4):
                await publisher.publish(removed(1), lost=True)
            await publisher.publish(removed(1))
            await publisher.answer(drop=3)
            await publisher.answer()
            await until(lambda: source.snapshot().evictions_by_rank[0] == 6.0)
            assert publisher.requests == [1, 3]
            assert source.snapshot().lost_batches == 0
        publisher.close()

    run(scenario())


def test_what_the_publisher_no_longer_has_is_lost() -> None:
    async def scenario() -> None:
        publisher = Publisher()
        config = KvEventsConfig(connect=publisher.bind(), replay=publisher.bind_replay())
        source = KvEventsSource(config, ManualClock())
        async with running(source):
            await publisher.subscribed()
            await publisher.publish(removed(1))
            for _ in range(4):
                await publisher.publish(removed(1), lost=True)
            await publisher.publish(removed(1))
            del publisher.buffer[:3]
            await publisher.answer()
            await publisher.answer()
            await until(lambda: source.snapshot().missing_batches == 0)
            seen = source.snapshot()
            assert (seen.evictions_by_rank[0], seen.lost_batches, seen.quality) == (4.0, 2, Quality.BOUNDED)
        publisher.close()

    run(scenario())


@pytest.mark.parametrize("silent", [True, False])
def test_without_an_answer_the_gap_is_lost(silent: bool) -> None:
    async def scenario() -> None:
        publisher = Publisher()
        replay = f"{HOST}:{free_ports(1)}" if silent else None
        config = KvEventsConfig(connect=publisher.bind(), replay=replay)
        source = KvEventsSource(config, ManualClock(), replay_timeout_seconds=0.02)
        async with running(source):
            await publisher.subscribed()
            await publisher.publish(removed(1))
            await publisher.publish(removed(1), lost=True)
            await publisher.publish(removed(1))
            await until(lambda: source.snapshot().lost_batches == 1)
            await publisher.publish(removed(1))
            await until(lambda: source.snapshot().evictions_by_rank[0] == 3.0)
        publisher.close()

    run(scenario())


def test_a_restarted_publisher_counts_on_and_what_was_missed_is_fetched() -> None:
    async def scenario() -> None:
        config, port = bound(replay=f"{HOST}:{free_ports(1)}")
        source = KvEventsSource(config, ManualClock())
        async with running(source):
            first = Publisher(began=1000.0)
            first.connect(f"{HOST}:{port}")
            await first.subscribed()
            for _ in range(5):
                await first.publish(removed(1))
            await until(lambda: source.snapshot().batches == 5)
            first.close()
            await until(lambda: not source.snapshot().health.up)
            second = Publisher(began=2000.0)
            second.router.bind(config.replay or "")
            second.connect(f"{HOST}:{port}")
            await second.subscribed()
            await second.publish(removed(10), lost=True)
            await second.publish(removed(10), lost=True)
            await second.publish(removed(10))
            await second.answer()
            await until(lambda: source.snapshot().evictions_by_rank[0] == 35.0)
            seen = source.snapshot()
            assert (seen.restarts, seen.lost_batches, second.requests) == (1, 0, [0])
            assert seen.health.up
        second.close()

    run(scenario())
