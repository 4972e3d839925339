"""Losing and finding cards and the driver, and the XID errors that tell of it."""

from __future__ import annotations

import pytest

from tests.sources.fake_nvml import FakeDevice, FakeNvml
from tests.sources.h200 import h200_calls
from tests.sources.nvml_bench import PLAIN, Bench, run
from ufwatch.decode.gpu import CardId
from ufwatch.model import Reason


def test_the_service_starts_before_the_driver() -> None:
    bench = run(FakeDevice("GPU-a", calls=PLAIN))
    bench.nvml.broken["nvmlInit"] = "DriverNotLoaded"
    for _ in range(3):
        snapshot = bench.poll()
        assert snapshot.health.reason is Reason.DRIVER
        assert "not loaded" in snapshot.health.detail
    bench.nvml.broken.clear()
    bench.clock.advance(60.0)
    assert bench.poll().health.up


def test_ten_minutes_of_unknown_errors_cost_a_dozen_attempts_and_say_one_thing() -> None:
    bench = run(FakeDevice("GPU-a", calls=PLAIN))
    bench.poll()
    bench.nvml.broken["*"] = "Unknown"
    bench.nvml.asked.clear()
    details = set()
    for _ in range(600):
        snapshot = bench.poll(1.0)
        details.add(snapshot.health)
        assert [card.card.uuid for card in snapshot.cards] == ["GPU-a"]
    assert len(details) == 1
    assert snapshot.health.reason is Reason.DRIVER
    assert sum(bench.nvml.asked.values()) <= 3 * 16
    bench.nvml.broken.clear()
    bench.clock.advance(60.0)
    assert bench.poll().health.up


@pytest.mark.parametrize("name", ["Uninitialized", "DriverNotLoaded", "LibRmVersionMismatch"])
def test_a_driver_that_goes_away_in_the_middle_is_initialised_again(name: str) -> None:
    bench = Bench(FakeNvml.from_h200("idle", 0))
    bench.poll()
    bench.nvml.broken["nvmlDeviceGetPowerUsage"] = name
    snapshot = bench.poll()
    assert snapshot.health.reason is Reason.DRIVER
    assert bench.nvml.leaked() == 0
    assert bench.nvml.inits == bench.nvml.events == 0
    bench.nvml.broken.clear()
    assert bench.poll().health.up
    assert bench.nvml.inits == 1


def test_one_card_of_which_every_call_is_unknown_is_down_alone() -> None:
    sick = FakeDevice("GPU-b", calls={key: [{"raise": "Unknown"}] for key in (*PLAIN, "mig_mode")})
    snapshot = run(FakeDevice("GPU-a", calls=PLAIN), sick).poll()
    assert snapshot.health.up
    assert [card.health.reason for card in snapshot.cards] == [None, Reason.DRIVER]


def test_the_only_card_is_lost_and_comes_back() -> None:
    lost = {"raise": "GpuIsLost"}
    bench = run(FakeDevice("GPU-a", calls=PLAIN, handle=[{}, lost, {}]))
    bench.poll()
    snapshot = bench.poll()
    assert snapshot.health.reason is Reason.LOST
    assert snapshot.cards[0].card == CardId(gpu="0", uuid="GPU-a")
    assert bench.poll().cards[0].health.up


def test_a_card_lost_from_the_start_is_shown_by_its_index() -> None:
    bench = run(FakeDevice("GPU-a", calls=PLAIN), FakeDevice("GPU-b", handle=[{"raise": "GpuIsLost"}]))
    down = bench.poll().cards[1]
    assert down.card == CardId(gpu="1", uuid="")
    assert down.health.reason is Reason.LOST


def test_a_card_that_is_no_longer_listed_keeps_its_labels() -> None:
    bench = run(FakeDevice("GPU-a", calls=PLAIN), FakeDevice("GPU-b", calls=PLAIN))
    bench.poll()
    del bench.nvml.devices[1]
    down = bench.poll().cards[1]
    assert down.card == CardId(gpu="1", uuid="GPU-b")
    assert down.health.reason is Reason.LOST


def test_no_gpu_and_no_library() -> None:
    empty = run()
    assert empty.poll().health.reason is Reason.NO_SOURCE
    empty.nvml.broken["nvmlInit"] = "LibraryNotFound"
    empty.clock.advance(60.0)
    snapshot = empty.poll()
    assert snapshot.health.reason is Reason.NO_SOURCE
    assert "libnvidia-ml" in snapshot.health.detail


def test_nothing_is_kept_over_thousands_of_polls() -> None:
    bench = run(FakeDevice("GPU-a", calls=h200_calls("idle", 0)))
    for poll in range(2000):
        bench.nvml.broken = {"*": "Unknown"} if poll % 100 == 99 else {}
        bench.session.poll()
        bench.clock.advance(5.0)
    assert bench.nvml.leaked() <= 2
    assert bench.nvml.inits <= 1
    assert bench.nvml.events <= 1
    bench.nvml.broken.clear()
    assert bench.session.poll().health.up


def test_xids_are_told_once_each_and_two_alike_are_two() -> None:
    card = FakeDevice("GPU-a", calls=PLAIN)
    bench = run(card)
    bench.poll()
    card.xids += [31, 31, 94]
    assert [(xid.card.uuid, xid.number) for xid in bench.poll().xids] == [("GPU-a", 31), ("GPU-a", 31), ("GPU-a", 94)]
    assert not bench.poll().xids


def test_the_xid_of_a_card_that_falls_off_the_bus_is_heard() -> None:
    card = FakeDevice("GPU-b", calls=PLAIN, handle=[{}, {"raise": "GpuIsLost"}])
    bench = run(FakeDevice("GPU-a", calls=PLAIN), card)
    bench.poll()
    card.xids.append(79)
    snapshot = bench.poll()
    assert [xid.number for xid in snapshot.xids] == [79]
    assert not snapshot.cards[1].health.up


def test_a_storm_of_xids_does_not_hold_up_the_poll() -> None:
    card = FakeDevice("GPU-a", calls=PLAIN)
    bench = run(card)
    bench.poll()
    card.xids += [31] * 1000
    assert len(bench.poll().xids) == 64


def test_a_card_without_events_is_a_card() -> None:
    bench = run(FakeDevice("GPU-a", calls=PLAIN))
    bench.nvml.broken["nvmlDeviceRegisterEvents"] = "NotSupported"
    assert bench.card().health.up
    assert bench.nvml.events == 0


def test_a_lost_card_keeps_its_labels_when_nvml_begins_again() -> None:
    card = FakeDevice("GPU-b", calls=PLAIN, handle=[{}, {"raise": "GpuIsLost"}])
    bench = run(FakeDevice("GPU-a", calls=PLAIN), card)
    bench.poll()
    bench.poll()
    bench.nvml.broken["nvmlDeviceGetCount"] = "Uninitialized"
    assert [c.card.uuid for c in bench.poll().cards] == ["GPU-a", "GPU-b"]
    bench.nvml.broken.clear()
    down = bench.poll().cards[1]
    assert down.card == CardId(gpu="1", uuid="GPU-b")
    assert down.health.reason is Reason.LOST


def test_nothing_is_averaged_over_a_failure() -> None:
    calls = h200_calls("matmul", 6)
    bench = run(
        FakeDevice("GPU-a", calls=PLAIN), FakeDevice("GPU-b", calls=calls, handle=[{}, {"raise": "Unknown"}, {}])
    )
    bench.poll()
    assert not bench.poll().cards[1].health.up
    assert bench.nvml.leaked() == 0
    assert bench.poll().cards[1].missing["sm_utilization_ratio"] is Reason.WARMING_UP
    assert bench.poll().cards[1].values["sm_utilization_ratio"] == 0.963724
