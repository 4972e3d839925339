"""The recorded H200, the cost of polling it, and the two cases of cards that are lost or lie."""

from __future__ import annotations

import pytest

from tests.sources.fake_nvml import FakeDevice, FakeNvml
from tests.sources.h200 import h200_calls
from tests.sources.nvml_bench import PLAIN, Bench, run
from ufwatch.decode.gpu import CardId
from ufwatch.gpu_metrics import FIELDS
from ufwatch.model import Reason

H200 = CardId(gpu="0", uuid="GPU-00000000-0000-0000-0000-000000000000")

H200_IDLE = {
    "sm_utilization_ratio": 0.0,
    "gpu_busy_ratio": 0.0,
    "memory_used_bytes": 0.0,
    "memory_total_bytes": 150754820096.0,
    "memory_reserved_bytes": 644939776.0,
    "temperature_celsius": 36.0,
    "power_watts": 81.999,
    "power_limit_watts": 700.0,
    "sm_clock_hertz": 345e6,
    "memory_clock_hertz": 3201e6,
    "sm_clock_max_hertz": 1980e6,
    "memory_clock_max_hertz": 3201e6,
    "pcie_rx_bytes_per_second": 0.1173 * 1048576,
    "pcie_tx_bytes_per_second": 0.3655 * 1048576,
    "row_remap_pending": 0.0,
    "power_capped": 0.0,
    "energy_joules": 2160.422,
    "throttle_sw_power_cap_seconds": 3.820069504,
    "throttle_sw_thermal_seconds": 0.0,
    "throttle_hw_thermal_seconds": 0.0,
    "throttle_hw_power_brake_seconds": 0.0,
    "throttle_sync_boost_seconds": 0.0,
    "pcie_replays": 3.0,
    "ecc_corrected": 0.0,
    "ecc_uncorrected": 0.0,
}
H200_MATMUL = H200_IDLE | {
    "sm_utilization_ratio": 0.963724,
    "gpu_busy_ratio": 1.0,
    "memory_used_bytes": 925696000.0,
    "temperature_celsius": 57.0,
    "power_watts": 693.237,
    "sm_clock_hertz": 1440e6,
    "power_capped": 1.0,
    "pcie_rx_bytes_per_second": 13.3586 * 1048576,
    "pcie_tx_bytes_per_second": 4.5643 * 1048576,
}


@pytest.mark.parametrize(("phase", "load", "expected"), [("idle", 0, H200_IDLE), ("matmul", 6, H200_MATMUL)])
def test_every_field_of_the_recorded_h200(phase: str, load: int, expected: dict[str, float]) -> None:
    bench = Bench(FakeNvml.from_h200(phase, load))
    first = bench.card()
    assert first.missing["sm_utilization_ratio"] is Reason.WARMING_UP
    card = bench.card()
    assert card.card == H200
    assert card.name == "NVIDIA H200"
    assert card.values == pytest.approx(expected, rel=1e-12)
    assert card.missing == {"throttle_thermal_seconds": Reason.NOT_SUPPORTED}
    assert card.values.keys() | card.missing.keys() == FIELDS.keys()
    assert card.source_of == dict.fromkeys(
        ("sm_utilization_ratio", "pcie_rx_bytes_per_second", "pcie_tx_bytes_per_second"), "gpm"
    )
    assert card.rejected == 0


@pytest.mark.parametrize(
    ("load", "truth"), [(0, 0.0), (1, 1 / 132), (2, 33 / 132), (3, 66 / 132), (4, 1.0), (5, None), (6, None)]
)
def test_sm_utilization_is_the_recorded_truth_and_never_the_busy_share(load: int, truth: float | None) -> None:
    bench = Bench(FakeNvml.from_h200("matmul", load))
    bench.poll()
    value = bench.card().values["sm_utilization_ratio"]
    if truth is not None:
        assert value == pytest.approx(truth, abs=0.001)
    assert value < 1.0


def test_the_slow_calls_are_never_made_and_the_dear_ones_rarely() -> None:
    bench = Bench(FakeNvml.from_h200("idle", 0))
    for _ in range(120):
        snapshot = bench.poll(1.0)
    asked = bench.nvml.asked
    assert asked["nvmlDeviceGetUtilizationRates"] == 120
    assert asked["nvmlGpmSampleGet"] == 120
    for dear in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues", "nvmlDeviceGetPcieReplayCounter"):
        assert 3 <= asked[dear] <= 5
    assert "nvmlDeviceGetViolationStatus" not in asked
    assert not any("PcieThroughput" in name for name in asked)
    assert max(snapshot.cards[0].age_seconds.values()) < 45.0
    assert snapshot.cards[0].age_seconds.keys() < snapshot.cards[0].values.keys()


def test_after_the_first_no_poll_pays_for_more_than_one_dear_call() -> None:
    bench = Bench(FakeNvml.from_h200("idle", 0))
    bench.poll(1.0)
    dear = (
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetPcieReplayCounter",
        "nvmlDeviceGetMaxClockInfo",
    )
    before = sum(bench.nvml.asked[name] for name in dear)
    for _ in range(100):
        bench.poll(1.0)
        after = sum(bench.nvml.asked[name] for name in dear)
        assert after - before <= 1
        before = after


def test_a_carried_value_is_not_shown_after_a_gap() -> None:
    calls = h200_calls("idle", 0) | {"energy_mj": [1000, 1000, 9000]}
    bench = run(FakeDevice("GPU-a", calls=calls))
    bench.poll()
    assert bench.card(600.0).age_seconds["energy_joules"] == 5.0
    card = bench.card()
    assert card.values["energy_joules"] == 9.0
    assert not card.age_seconds
    assert card.missing["sm_utilization_ratio"] is Reason.WARMING_UP  # no mean over ten minutes


def test_case_c07_one_gpu_lost() -> None:
    nvml, case = FakeNvml.from_case("c07_one_gpu_lost.json")
    bench = Bench(nvml)
    for poll in range(case["polls"]):
        snapshot = bench.poll()
        expected = case["expected"]["polls_0_1" if poll < 2 else "polls_2_4"]
        assert snapshot.health.up
        assert sum(card.health.up for card in snapshot.cards) == expected["gpus_up"]
        assert [card.card.uuid for card in snapshot.cards if card.health.up or poll >= 2]
        for card in snapshot.cards:
            if card.health.up:
                number = int(card.card.uuid[-1])
                assert card.values["gpu_busy_ratio"] == (50 + number) / 100
                assert card.values["memory_used_bytes"] == 10737418240
                assert "gpu_busy_ratio" not in card.age_seconds
            else:
                assert card.card == CardId(gpu="1", uuid="GPU-00000001")
                assert card.health.reason is Reason(expected["reason"])
                assert not card.values


def test_case_c16_sentinel_values() -> None:
    nvml, case = FakeNvml.from_case("c16_sentinel_values.json")
    bench = Bench(nvml)
    names = {
        "memory_used": "memory_used_bytes",
        "memory_total": "memory_total_bytes",
        "power": "power_watts",
        "temperature": "temperature_celsius",
        "utilization": "gpu_busy_ratio",
    }
    for _ in range(case["polls"]):
        cards = {card.card.uuid: card for card in bench.poll().cards}
        for uuid in ("GPU-00000000", "GPU-00000001"):
            for short, wanted in case["expected"][uuid].items():
                if wanted == "absent":
                    assert names.get(short) not in cards[uuid].values
                    assert short == "utilization_memory" or cards[uuid].missing[names[short]] is Reason.OUT_OF_RANGE
                else:
                    assert cards[uuid].values[names[short]] == wanted
        assert set(names.values()) <= cards["GPU-00000002"].values.keys()
        assert [cards[f"GPU-0000000{i}"].rejected for i in range(3)] == [4, 1, 0]


@pytest.mark.parametrize("raw", [2**64 - 1, 2**63, 2**63 - 1, 2**63 - 16, 140737488355328.0, -1, 0, float("nan")])
def test_an_impossible_total_takes_its_parts_along(raw: float) -> None:
    card = run(FakeDevice("GPU-a", calls=PLAIN | {"memory_total": [raw]})).card()
    for name in ("memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"):
        assert card.missing[name] is Reason.OUT_OF_RANGE
    assert card.rejected == 3


def test_more_used_than_there_is_is_refused() -> None:
    card = run(FakeDevice("GPU-a", calls=PLAIN | {"memory_used": [101]})).card()
    assert card.missing["memory_used_bytes"] is Reason.OUT_OF_RANGE
    assert card.values["memory_total_bytes"] == 100


def test_memory_of_a_unified_card_is_absent_and_the_rest_is_there() -> None:
    card = run(FakeDevice("GPU-a", calls={k: v for k, v in PLAIN.items() if "memory" not in k})).card()
    assert card.missing["memory_total_bytes"] is Reason.NOT_SUPPORTED
    assert card.values["gpu_busy_ratio"] == 0.5
    assert card.values["power_watts"] == 300.0


def test_the_first_memory_call_is_the_fallback_and_is_marked() -> None:
    calls = {key: value for key, value in PLAIN.items() if key != "memory_reserved"}
    card = run(FakeDevice("GPU-a", calls=calls)).card()
    assert card.values["memory_used_bytes"] == 10
    assert card.source_of["memory_used_bytes"] == "nvml_v1"
    assert card.missing["memory_reserved_bytes"] is Reason.NOT_SUPPORTED
