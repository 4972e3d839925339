"""From polls of the GPUs to the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.fake_nvml import FakeNvml
from tests.sources.nvml_bench import Bench
from ufwatch.core.gpu import GpuState, step
from ufwatch.decode.gpu import CardId, CardSnapshot, GpuSnapshot, Xid
from ufwatch.gpu_metrics import FIELDS, GPU_FAMILIES
from ufwatch.model import UP, Health, Labels, Quality, Reading, Reason, Sample
from ufwatch.spec import Kind

A = CardId(gpu="0", uuid="GPU-a")
B = CardId(gpu="1", uuid="GPU-b")
PART = CardId(gpu="0", uuid="GPU-a", mig="MIG-1")
A_LABELS = (("gpu", "0"), ("uuid", "GPU-a"), ("mig", ""))
LOST = Health(up=False, reason=Reason.LOST)
TIMEOUT = Health(up=False, reason=Reason.TIMEOUT)
SPECS = {spec.name: spec for spec in GPU_FAMILIES}
FAILED = GpuSnapshot(at_seconds=0.0, health=TIMEOUT)


def card(values: Mapping[str, float] | None = None, card_id: CardId = A, **more: object) -> CardSnapshot:
    return CardSnapshot(card=card_id, health=UP, values=values or {}, **more)  # type: ignore[arg-type]


def up(*cards: CardSnapshot, xids: Iterable[Xid] = ()) -> GpuSnapshot:
    return GpuSnapshot(at_seconds=0.0, health=UP, cards=cards, xids=tuple(xids))


class Page:
    """Runs polls one after another and looks at the last page, which is always well formed."""

    def __init__(self) -> None:
        self.state = GpuState()
        self.readings: tuple[Reading, ...] = ()
        self.samples: tuple[Sample, ...] = ()

    def poll(self, snapshot: GpuSnapshot) -> None:
        self.state, self.readings, self.samples = step(self.state, snapshot)
        series = [(sample.metric, sample.labels) for sample in self.samples]
        assert len(series) == len(set(series))
        for sample in self.samples:
            assert tuple(name for name, _ in sample.labels) == SPECS[sample.metric].labels
            assert math.isfinite(sample.value)
            assert sample.value >= 0

    def get(self, metric: str, *extra: tuple[str, str], labels: Labels = A_LABELS) -> float | None:
        found = [s.value for s in self.samples if s.metric == metric and s.labels == (*labels, *extra)]
        return found[0] if found else None

    def reading(self, signal: str, labels: Labels = A_LABELS) -> Reading:
        (found,) = [r for r in self.readings if r.signal == signal and r.labels == labels]
        return found


def energy(*totals: float | None) -> list[float | None]:
    """What the page shows for a driver's totals, poll by poll; None for a poll without an answer."""
    page, shown = Page(), []
    for total in totals:
        page.poll(FAILED if total is None else up(card({"energy_joules": total})))
        shown.append(page.get("gpu_energy_joules_total"))
    return shown


# Counters.


def test_a_counter_starts_at_zero_and_grows_by_what_the_driver_counts() -> None:
    assert energy(1000.0, 1010.0, 1010.0, 1025.0) == [0, 10, 10, 25]


def test_a_reset_adds_nothing_and_takes_nothing_away() -> None:
    assert energy(1000.0, 1010.0, 3.0, 5.0) == [0, 10, 10, 12]


def test_a_short_gap_is_bridged_and_counted_at_once() -> None:
    assert energy(1000.0, 1010.0, None, None, None, 1040.0) == [0, 10, 10, 10, 10, 40]


def test_after_three_failed_polls_a_counter_vanishes_and_returns_at_the_value_it_had() -> None:
    assert energy(1000.0, 1010.0, None, None, None, None, None, 1040.0, 1041.0, 1042.0) == [
        *(0, 10, 10, 10, 10, None, None),
        *(10, 41, 42),
    ]


def test_a_counter_that_alone_is_missing_follows_the_same_rule() -> None:
    page = Page()
    page.poll(up(card({"ecc_uncorrected": 5.0})))
    for _ in range(3):
        page.poll(up(card()))
        assert page.get("gpu_ecc_errors_total", ("type", "uncorrected")) == 0
    page.poll(up(card()))
    assert page.get("gpu_ecc_errors_total", ("type", "uncorrected")) is None
    page.poll(up(card({"ecc_uncorrected": 7.0})))
    assert page.get("gpu_ecc_errors_total", ("type", "uncorrected")) == 0
    page.poll(up(card({"ecc_uncorrected": 7.0})))
    assert page.get("gpu_ecc_errors_total", ("type", "uncorrected")) == 2


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e9)), max_size=40))
def test_a_shown_counter_never_falls(totals: list[float | None]) -> None:
    shown = [value for value in energy(*totals) if value is not None]
    assert shown == sorted(shown)
    assert not shown or shown[0] == 0


# XID errors and refused values.


def test_xids_are_counted_by_class_with_every_class_from_the_start() -> None:
    page = Page()
    page.poll(up(card()))
    classes = [dict(s.labels)["class"] for s in page.samples if s.metric == "gpu_xid_errors_total"]
    assert len(classes) == 6
    assert page.get("gpu_xid_errors_total", ("class", "page_fault")) == 0
    page.poll(up(card(), card(card_id=B), xids=[Xid(A, 31), Xid(A, 31), Xid(A, 12345), Xid(B, 79)]))
    assert page.get("gpu_xid_errors_total", ("class", "page_fault")) == 2
    assert page.get("gpu_xid_errors_total", ("class", "other")) == 1
    assert page.get("gpu_xid_errors_total", ("class", "nvlink_bus")) == 0


def test_the_xid_of_a_lost_card_outlives_its_values() -> None:
    page = Page()
    page.poll(up(card({"power_watts": 300.0}), card(card_id=B)))
    for _ in range(10):
        page.poll(up(CardSnapshot(card=A, health=LOST), card(card_id=B), xids=[Xid(A, 79)]))
        assert page.get("gpu_power_watts") is None
        assert page.get("gpu_up") == 0
    assert page.get("gpu_xid_errors_total", ("class", "nvlink_bus")) == 10


# Gauges and readings.


def test_gauges_vanish_at_the_first_failed_poll_and_are_back_with_the_next() -> None:
    page = Page()
    page.poll(up(card({"temperature_celsius": 50.0})))
    assert page.get("gpu_temperature_celsius") == 50
    page.poll(FAILED)
    assert page.get("gpu_temperature_celsius") is None
    assert page.get("gpu_up") == 0
    assert page.reading("sm_utilization").reason is Reason.TIMEOUT
    page.poll(up(card({"temperature_celsius": 51.0})))
    assert page.get("gpu_temperature_celsius") == 51
    assert page.get("gpu_up") == 1


@pytest.mark.parametrize(("source", "quality"), [("gpm", Quality.EXACT), ("dcgm", Quality.ESTIMATE)])
def test_sm_utilization_names_its_source(source: str, quality: Quality) -> None:
    page = Page()
    page.poll(up(card({"sm_utilization_ratio": 0.25}, source_of={"sm_utilization_ratio": source})))
    assert page.get("sm_utilization_ratio", ("source", source)) == 0.25
    assert page.reading("sm_utilization") == Reading("sm_utilization", A_LABELS, 0.25, source=source, quality=quality)


def test_the_busy_share_never_passes_as_sm_utilization() -> None:
    page = Page()
    page.poll(up(card({"gpu_busy_ratio": 1.0}, missing={"sm_utilization_ratio": Reason.NOT_SUPPORTED})))
    assert page.get("gpu_busy_ratio") == 1.0
    assert page.reading("gpu_busy").quality is Quality.PROXY
    absent = page.reading("sm_utilization")
    assert (absent.value, absent.source, absent.reason) == (None, None, Reason.NOT_SUPPORTED)
    assert not any(sample.metric == "sm_utilization_ratio" for sample in page.samples)


def test_without_any_card_the_signals_are_absent_with_the_reason() -> None:
    page = Page()
    page.poll(GpuSnapshot(at_seconds=0.0, health=Health(up=False, reason=Reason.NO_SOURCE)))
    assert page.samples == ()
    assert {(r.signal, r.value, r.reason) for r in page.readings} == {
        ("sm_utilization", None, Reason.NO_SOURCE),
        ("gpu_busy", None, Reason.NO_SOURCE),
    }


def test_an_instance_taken_away_on_purpose_leaves_the_page() -> None:
    page = Page()
    page.poll(up(card(), card(card_id=PART)))
    page.poll(up(card()))
    assert {dict(sample.labels)["mig"] for sample in page.samples} == {""}


def test_every_field_is_exported_under_its_family() -> None:
    page = Page()
    page.poll(up(card(dict.fromkeys(FIELDS, 1.0))))
    shown = {(sample.metric, sample.labels[3:]) for sample in page.samples}
    for name, field in FIELDS.items():
        if field.metric is not None and name != "sm_utilization_ratio":
            assert (field.metric.name, field.labels) in shown
    gauges = {metric for metric, _ in shown if SPECS[metric].kind is Kind.GAUGE}
    elsewhere = {"target_gpu_info", "gpu_ageing_drift_ratio"}
    assert gauges | elsewhere == {spec.name for spec in GPU_FAMILIES if spec.kind is Kind.GAUGE}
    assert len(page.samples) <= 40


# The cases, end to end.


def test_case_c07_one_gpu_lost() -> None:
    nvml, case = FakeNvml.from_case("c07_one_gpu_lost.json")
    bench, page = Bench(nvml), Page()
    lost: Labels = (("gpu", "1"), ("uuid", "GPU-00000001"), ("mig", ""))
    for poll in range(case["polls"]):
        page.poll(bench.poll())
        expected = case["expected"]["polls_0_1" if poll < 2 else "polls_2_4"]
        assert sum(s.value for s in page.samples if s.metric == "gpu_up") == expected["gpus_up"]
        assert sum(s.metric == "gpu_busy_ratio" for s in page.samples) == expected["gpus_up"]
    assert page.get("gpu_up", labels=lost) == expected["gpu_up{uuid=GPU-00000001}"]
    assert page.reading("gpu_busy", lost).reason is Reason(expected["reason"])
    own = {"gpu_up", "gpu_xid_errors_total", "gpu_rejected_values_total"}
    assert {s.metric for s in page.samples if s.labels[:3] == lost} == own


def test_case_c16_sentinel_values() -> None:
    nvml, case = FakeNvml.from_case("c16_sentinel_values.json")
    bench, page = Bench(nvml), Page()
    refused = []
    for _ in range(case["polls"]):
        page.poll(bench.poll())
        refused.append(
            page.get("gpu_rejected_values_total", labels=(("gpu", "0"), ("uuid", "GPU-00000000"), ("mig", "")))
        )
    assert refused == [4, 8, 12]
    shown = {(s.metric, dict(s.labels).get("kind", "")) for s in page.samples if s.labels[1][1] == "GPU-00000000"}
    gauges = {(metric, kind) for metric, kind in shown if SPECS[metric].kind is Kind.GAUGE}
    assert gauges == {("gpu_up", ""), ("gpu_memory_bytes", "total")}


def test_a_whole_h200_stays_far_under_sixty_series() -> None:
    bench, page = Bench(FakeNvml.from_h200("matmul", 6)), Page()
    for _ in range(3):
        page.poll(bench.poll())
    assert len(page.samples) == 32
    labels = (("gpu", "0"), ("uuid", "GPU-00000000-0000-0000-0000-000000000000"), ("mig", ""))
    assert page.get("gpu_energy_joules_total", labels=labels) == 0
    assert page.get("sm_utilization_ratio", ("source", "gpm"), labels=labels) == 0.963724
