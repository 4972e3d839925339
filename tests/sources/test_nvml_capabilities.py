"""What a card can and cannot do: capabilities, GPM and its rivals, MIG."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tests.sources.fake_nvml import FakeDevice, FakeNvml
from tests.sources.h200 import h200_calls
from tests.sources.nvml_bench import PLAIN, Bench, run
from ufwatch.decode.gpu import CardId
from ufwatch.model import Reason
from ufwatch.sources.nvml_gpm import GpmPair


def test_what_is_not_supported_is_not_asked_again_for_five_minutes() -> None:
    bench = run(FakeDevice("GPU-a", calls={"temperature_c": [50]}))
    for _ in range(50):
        card = bench.card()
    assert card.missing["power_watts"] is Reason.NOT_SUPPORTED
    assert bench.nvml.asked["nvmlDeviceGetPowerUsage"] == 1
    for _ in range(20):
        bench.poll()
    assert bench.nvml.asked["nvmlDeviceGetPowerUsage"] == 2
    assert bench.nvml.asked["nvmlDeviceGetTemperature"] == 70


def test_no_permission_is_its_own_reason_and_heals() -> None:
    bench = run(FakeDevice("GPU-a", calls=PLAIN | {"power_mw": [{"raise": "NoPermission"}, 7000]}))
    assert bench.card(400.0).missing["power_watts"] is Reason.PERMISSION
    assert bench.card().values["power_watts"] == 7.0


def test_a_field_that_fails_once_is_asked_again_at_once() -> None:
    bench = run(FakeDevice("GPU-a", calls=PLAIN | {"power_mw": [{"raise": "Unknown"}, 7000]}))
    assert bench.card().missing["power_watts"] is Reason.DRIVER
    assert bench.card().values["power_watts"] == 7.0


def test_throttle_times_of_older_drivers() -> None:
    violations = {"violation_ns:0": [2_000_000_000], "violation_ns:1": [3_000_000_000], "violation_ns:2": [0]}
    card = run(FakeDevice("GPU-a", calls=PLAIN | violations)).card()
    assert card.values["throttle_sw_power_cap_seconds"] == 2.0
    assert card.values["throttle_thermal_seconds"] == 3.0
    assert card.missing["throttle_hw_thermal_seconds"] is Reason.NOT_SUPPORTED
    plain = run(FakeDevice("GPU-a", calls=PLAIN | {"field:74": [10**9], "field:75": [2 * 10**9]})).card()
    assert plain.values["throttle_thermal_seconds"] == 2.0


def test_volatile_ecc_counts_only_where_there_is_no_aggregate() -> None:
    card = run(FakeDevice("GPU-a", calls=PLAIN | {"ecc:1:0": [4], "ecc:0:0": [5], "ecc:0:1": [6]})).card()
    assert card.values["ecc_uncorrected"] == 4
    assert card.values["ecc_corrected"] == 6
    assert card.source_of["ecc_uncorrected"] == "nvml_volatile"


def test_an_older_pynvml_without_a_function_is_a_card_without_that_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetRemappedRows")
    monkeypatch.delattr(FakeNvml, "nvmlGpmQueryDeviceSupport")
    card = Bench(FakeNvml.from_h200("idle", 0)).card()
    assert card.missing["row_remap_pending"] is Reason.NOT_SUPPORTED
    assert card.missing["sm_utilization_ratio"] is Reason.NOT_SUPPORTED
    assert card.health.up


def test_without_gpm_only_the_busy_share_is_left() -> None:
    card = run(FakeDevice("GPU-a", calls=PLAIN)).card()
    assert card.missing["sm_utilization_ratio"] is Reason.NOT_SUPPORTED
    assert card.values["gpu_busy_ratio"] == 0.5


def test_gpm_switched_off_makes_no_gpm_call() -> None:
    bench = Bench(FakeNvml.from_h200("idle", 0), gpm=False)
    assert bench.card().missing["sm_utilization_ratio"] is Reason.NO_SOURCE
    assert not any("Gpm" in name for name in bench.nvml.asked)


def test_gpm_taken_away_by_a_profiler_comes_back() -> None:
    bench = Bench(FakeNvml.from_h200("matmul", 6))
    bench.poll()
    assert "sm_utilization_ratio" in bench.card().values
    bench.nvml.broken["nvmlGpmSampleGet"] = "NotSupported"
    card = bench.card()
    assert card.missing["sm_utilization_ratio"] is Reason.NOT_SUPPORTED
    assert card.values["gpu_busy_ratio"] == 1.0
    assert bench.nvml.leaked() == 0
    asked = bench.nvml.asked["nvmlGpmSampleGet"]
    bench.poll()
    assert bench.nvml.asked["nvmlGpmSampleGet"] == asked
    bench.nvml.broken.clear()
    bench.clock.advance(60.0)
    assert bench.card().missing["sm_utilization_ratio"] is Reason.WARMING_UP
    assert bench.card().values["sm_utilization_ratio"] == 0.963724


def test_two_polls_within_the_refresh_of_the_counters_share_one_value() -> None:
    bench = Bench(FakeNvml.from_h200("matmul", 6))
    bench.poll()
    bench.poll(0.05)
    card = bench.card()
    assert card.values["sm_utilization_ratio"] == 0.963724
    assert card.age_seconds["sm_utilization_ratio"] == pytest.approx(0.05)
    assert bench.nvml.asked["nvmlGpmSampleGet"] == 2


def test_a_metric_over_a_hundred_percent_is_refused_but_not_for_a_rounding() -> None:
    calls = h200_calls("matmul", 6) | {"gpm:2": [0, 100.3, 3400.0, float("nan")]}
    bench = run(FakeDevice("GPU-a", calls=calls))
    bench.poll()
    assert bench.card().values["sm_utilization_ratio"] == 1.0
    for _ in range(2):
        card = bench.card()
        assert card.missing["sm_utilization_ratio"] is Reason.OUT_OF_RANGE
        assert card.rejected == 1


def test_gpm_works_with_the_structures_of_the_real_pynvml() -> None:
    def answer(query: Any) -> None:
        assert query.version == 1
        for position, value in enumerate((25.0, 1.0, 2.0)):
            query.metrics[position].value = value
            query.metrics[position].nvmlReturn = 0

    nvml = SimpleNamespace(
        NVMLError=pynvml.NVMLError,
        NVML_GPM_METRICS_GET_VERSION=pynvml.NVML_GPM_METRICS_GET_VERSION,
        c_nvmlGpmMetricsGet_t=pynvml.c_nvmlGpmMetricsGet_t,
        nvmlGpmSampleAlloc=pynvml.c_nvmlGpmSample_t,
        nvmlGpmMetricsGet=answer,
    )
    pair = GpmPair(nvml, lambda: True, lambda _: None)
    assert pair.read(10.0)[0] is None
    assert pair.read(11.0)[0] == {2: 25.0, 20: 1.0, 21: 2.0}


def mig_card(*instances: tuple[str, int], **extra: Any) -> FakeDevice:
    parts = [
        FakeDevice(
            uuid,
            name="Fake MIG 1g.18gb",
            gpu_instance=gi,
            calls={"memory_total": [50], "memory_used": [20], "memory_reserved": [1], "gpm:2": [40.0]},
        )
        for uuid, gi in instances
    ]
    return FakeDevice("GPU-a", calls=PLAIN | {"mig_mode": [[1, 1]]} | extra, instances=parts)


def test_mig_instances_have_their_own_memory_and_sm_utilization() -> None:
    bench = run(mig_card(("MIG-1", 1), ("MIG-2", 2), **{"gpm:2": [80.0]}))
    bench.poll()
    parent, one, two = bench.poll().cards
    assert parent.missing["gpu_busy_ratio"] is Reason.MIG
    assert parent.values["sm_utilization_ratio"] == 0.8
    assert bench.nvml.asked["nvmlDeviceGetUtilizationRates"] == 0
    assert one.card == CardId(gpu="0", uuid="GPU-a", mig="MIG-1")
    assert (one.gpu_instance, two.gpu_instance) == (1, 2)
    assert one.values == {
        "memory_total_bytes": 50,
        "memory_used_bytes": 20,
        "memory_reserved_bytes": 1,
        "sm_utilization_ratio": 0.4,
    }
    assert one.missing["gpu_busy_ratio"] is Reason.MIG
    assert one.missing["power_watts"] is Reason.MIG


def test_compute_instances_that_share_a_gpu_instance_have_no_sm_utilization_of_their_own() -> None:
    bench = run(mig_card(("MIG-1", 1), ("MIG-2", 1), **{"gpm:2": [80.0]}))
    bench.poll()
    _, one, two = bench.poll().cards
    assert one.missing["sm_utilization_ratio"] is two.missing["sm_utilization_ratio"] is Reason.MIG


def test_instances_come_and_go() -> None:
    card = mig_card(("MIG-1", 1), ("MIG-2", 2), **{"gpm:2": [80.0]})
    bench = run(card)
    bench.poll(31.0)
    del card.instances[0]
    assert [c.card.mig for c in bench.poll().cards] == ["", "MIG-2"]
    assert bench.nvml.leaked() == 4
    bench.session.close()
    assert bench.nvml.leaked() == 0


def test_a_pod_with_one_slice_and_no_rights_on_the_parent() -> None:
    card = mig_card(("MIG-1", 1))
    card.calls = {key: [{"raise": "NoPermission"}] for key in (*PLAIN, "mig_mode")}
    parent, part = run(card).poll().cards
    assert parent.missing["memory_total_bytes"] is Reason.PERMISSION
    assert part.values["memory_total_bytes"] == 50
