"""The catalogue is whole: every name it speaks of is a family, and every family can be told what it is."""

from __future__ import annotations

from ufwatch import catalogue
from ufwatch.families import ENGINE_LABELS


def test_every_metric_a_signal_names_is_a_family() -> None:
    assert catalogue.unknown_names() == frozenset()


def test_there_are_seven_signals() -> None:
    assert sorted(catalogue.SEVEN) == [
        "graph_compile",
        "kv_evictions",
        "page_table_miss",
        "pinned_alloc_success",
        "prefill_decode",
        "sm_utilization",
        "token_jitter",
    ]


def test_every_metric_of_the_seven_carries_its_source() -> None:
    for signal in catalogue.SIGNALS:
        for name in (signal.gauge, signal.gauge_low, signal.gauge_high):
            assert name is None or "source" in catalogue.FAMILY[name].labels, name


def test_names_are_unique_and_units_are_base_units() -> None:
    names = [spec.name for spec in catalogue.FAMILIES]
    assert len(names) == len(set(names))
    assert not [
        name for name in names if name.endswith(("_ms", "_milliseconds", "_percent", "_mb", "_bytes_total_total"))
    ]


def test_no_family_has_a_label_of_unbounded_values() -> None:
    allowed = {
        *ENGINE_LABELS,
        *(
            "gpu",
            "uuid",
            "mig",
            "source",
            "unit",
            "by",
            "phase",
            "cache",
            "code",
            "kind",
            "state",
            "reason",
            "slo",
            "bound",
        ),
        *("quality", "signal", "type", "class", "version", "python"),
    }
    assert {label for spec in catalogue.FAMILIES for label in spec.labels} <= allowed
