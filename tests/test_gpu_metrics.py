"""Fields, ranges and families of the GPUs."""

from __future__ import annotations

import math

import pytest

from ufwatch.gpu_metrics import CARD_LABELS, FIELDS, GPU_FAMILIES, XidClass, accept, is_sentinel, xid_class
from ufwatch.spec import Kind


def test_each_field_feeds_a_declared_family_with_its_exact_labels() -> None:
    for name, field in FIELDS.items():
        if field.metric is None:
            continue
        assert field.metric in GPU_FAMILIES
        extra = field.metric.labels[len(CARD_LABELS) :]
        assert name == "sm_utilization_ratio" or tuple(label for label, _ in field.labels) == extra


def test_no_two_fields_make_the_same_series() -> None:
    series = [(field.metric.name, field.labels) for field in FIELDS.values() if field.metric is not None]
    assert len(series) == len(set(series))


def test_closed_label_sets_are_small() -> None:
    values: dict[tuple[str, str], set[str]] = {}
    for field in FIELDS.values():
        for label, value in field.labels:
            assert field.metric is not None
            values.setdefault((field.metric.name, label), set()).add(value)
    assert max(len(found) for found in values.values()) <= 6
    assert len(XidClass) <= 7
    assert "other" in set(XidClass)


def test_family_names_are_unique_and_counters_named_as_such() -> None:
    names = [spec.name for spec in GPU_FAMILIES]
    assert len(names) == len(set(names))
    assert {spec.name for spec in GPU_FAMILIES if spec.kind is Kind.COUNTER} == {
        "gpu_energy_joules_total",
        "gpu_throttle_seconds_total",
        "gpu_pcie_replays_total",
        "gpu_ecc_errors_total",
        "gpu_xid_errors_total",
        "gpu_rejected_values_total",
    }


@pytest.mark.parametrize(
    "raw",
    [
        2**64 - 1,
        2**63,
        2**63 - 1,
        2**63 + 2048,
        0x7FFFFFFFFFFFFFF0,
        140737488355328,
        140737488355328.0 + 3,
        2**32 - 1,
        0x7FFFFFF0,
        -1,
        -1.0,
        math.nan,
        math.inf,
    ],
)
def test_sentinels(raw: float) -> None:
    assert is_sentinel(raw)
    assert all(accept(name, raw) is None for name in FIELDS)


@pytest.mark.parametrize("raw", [0, 1, 100, 700000, 4294967296, 150754820096, 67198396192, 1387338256])
def test_recorded_numbers_are_no_sentinels(raw: float) -> None:
    assert not is_sentinel(raw)


@pytest.mark.parametrize(
    ("name", "raw", "per", "value"),
    [
        ("gpu_busy_ratio", 57, 100.0, 0.57),
        ("gpu_busy_ratio", 100, 100.0, 1.0),
        ("gpu_busy_ratio", 101, 100.0, None),
        ("gpu_busy_ratio", 3400, 100.0, None),
        ("sm_utilization_ratio", 100.4, 100.0, 1.0),
        ("sm_utilization_ratio", 101, 100.0, None),
        ("temperature_celsius", 0, 1.0, 0.0),
        ("temperature_celsius", 151, 1.0, None),
        ("power_watts", 110560, 1e3, 110.56),
        ("memory_total_bytes", 0, 1.0, None),
        ("row_remap_pending", 2, 1.0, None),
    ],
)
def test_ranges(name: str, raw: float, per: float, value: float | None) -> None:
    assert accept(name, raw, per=per) == value


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (13, XidClass.APPLICATION),
        (31, XidClass.PAGE_FAULT),
        (48, XidClass.HARDWARE_MEMORY),
        (74, XidClass.NVLINK_BUS),
        (79, XidClass.NVLINK_BUS),
        (94, XidClass.HARDWARE_MEMORY),
        (119, XidClass.DRIVER_FIRMWARE),
        (149, XidClass.NVLINK_BUS),
        (9999, XidClass.OTHER),
    ],
)
def test_xid_classes(number: int, expected: XidClass) -> None:
    assert xid_class(number) is expected
