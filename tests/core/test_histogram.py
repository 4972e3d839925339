"""Our histogram against prometheus_client's, and its exemplars."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as ClientHistogram

from ufwatch.core.histogram import Histogram
from ufwatch.model import Exemplar
from ufwatch.trace.probing import ITL_EDGES, TTFT_EDGES

LABELS = (("target", "a"),)
VALUES = st.floats(0, 1e6) | st.sampled_from(TTFT_EDGES)


@given(
    values=st.lists(VALUES, max_size=30),
    edges=st.sampled_from([TTFT_EDGES, ITL_EDGES, (1.0,)]) | st.sets(VALUES, min_size=1).map(sorted),
)
def test_it_counts_as_prometheus_client_does(values: list[float], edges: list[float]) -> None:
    registry = CollectorRegistry()
    oracle = ClientHistogram("wait_seconds", "Waits.", ["target"], buckets=edges, registry=registry)
    ours = Histogram(edges)
    oracle.labels("a")
    for value in values:
        oracle.labels("a").observe(value)
        ours.add(value, "t", 1.0)
    (family,) = registry.collect()
    told = [(s.name, s.labels, s.value) for s in family.samples if not s.name.endswith("_created")]
    found = [(s.metric, dict(s.labels), s.value) for s in ours.samples("wait_seconds", LABELS)]
    assert found == told
    assert ours.count == len(values)


def test_each_bucket_keeps_its_newest_trace() -> None:
    ours = Histogram((0.1, 1.0))
    assert ours.exemplars("w", LABELS) == {}
    for value, trace, wall in ((0.05, "a", 1.0), (0.1, "b", 2.0), (5.0, "c", 3.0), (0.5, "", 4.0)):
        ours.add(value, trace, wall)
    assert ours.exemplars("w", LABELS) == {
        ("w_bucket", (("le", "0.1"), *LABELS)): Exemplar("b", 0.1, 2.0),
        ("w_bucket", (("le", "+Inf"), *LABELS)): Exemplar("c", 5.0, 3.0),
    }
    series = {(s.metric, s.labels) for s in ours.samples("w", LABELS)}
    assert ours.exemplars("w", LABELS).keys() <= series


@pytest.mark.parametrize("value", [nan, inf, -inf, -0.1])
def test_what_is_no_duration_is_refused(value: float) -> None:
    ours = Histogram((1.0,))
    with pytest.raises(ValueError, match="no observation"):
        ours.add(value, "t", 1.0)
    assert ours.count == 0


@pytest.mark.parametrize("edges", [(), (1.0, 1.0), (2.0, 1.0), (1.0, inf), (nan,)])
def test_edges_rise_and_are_finite(edges: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="edges"):
        Histogram(edges)
