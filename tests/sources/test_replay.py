"""The recorded GPU and recorded pages."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.pages import capture
from ufwatch import gpu_metrics
from ufwatch.clock import ManualClock
from ufwatch.decode.gpu import CardSnapshot
from ufwatch.sources.replay import NAME, GpuReplay, PageReplay

# What the driver reported, a row a second: GPM SM %, NVML busy %.
RECORDED = {0: (30.53, 48), 1: (29.83, 37), 14: (34.49, 51), 19: (31.67, 49)}


def card_after(seconds: float) -> CardSnapshot:
    async def poll() -> CardSnapshot:
        clock = ManualClock()
        replay = GpuReplay(clock)
        clock.advance(seconds)
        snapshot = await replay.poll(1.0)
        await replay.close()
        assert snapshot.health.up
        assert snapshot.at_seconds == clock.monotonic()
        assert snapshot.driver_version.startswith("580.159")
        (card,) = snapshot.cards
        return card

    return asyncio.run(poll())


@pytest.mark.parametrize("second", RECORDED)
def test_rows_are_those_recorded_and_loop(second: int) -> None:
    sm_utilization, busy = RECORDED[second]
    for card in (card_after(second + 0.5), card_after(second + 20.5)):
        assert card.values["sm_utilization_ratio"] == pytest.approx(sm_utilization / 100)
        assert card.values["gpu_busy_ratio"] == pytest.approx(busy / 100)


def test_it_says_that_it_is_a_recording() -> None:
    card = card_after(0.0)
    assert card.name == NAME == "NVIDIA H200 (recorded)"
    assert "recorded" in card.card.uuid
    assert card.source_of == {"sm_utilization_ratio": "gpm"}


def test_every_field_is_known_and_believable_or_missing_with_a_reason() -> None:
    card = card_after(3.0)
    assert set(card.values) | set(card.missing) <= set(gpu_metrics.FIELDS)
    assert not set(card.values) & set(card.missing)
    for name, value in card.values.items():
        assert gpu_metrics.accept(name, value) == value
    used, total = card.values["memory_used_bytes"], card.values["memory_total_bytes"]
    assert used / total == pytest.approx(0.925)


def test_energy_rises_with_the_power_drawn() -> None:
    spent = card_after(110.0).values["energy_joules"] - card_after(100.0).values["energy_joules"]
    assert spent == pytest.approx(10 * card_after(0.0).values["power_watts"])


def test_pages_come_in_order() -> None:
    first, second = (capture(name).encode() for name in ("0.32.0-preempt", "0.32.0-load"))
    replay = PageReplay([(10.0, first), (40.0, second)])
    assert replay.at(9.9) is None
    assert (replay.at(10.0), replay.at(39.9), replay.at(1e9)) == (first, first, second)
    assert replay.remaining == 2
    assert replay.take() == (10.0, first)
    assert replay.take() == (40.0, second)
    assert (replay.take(), replay.remaining) == (None, 0)


def test_pages_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        PageReplay([(1.0, b""), (1.0, b"")])
