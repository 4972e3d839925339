"""The grid on which targets are due: even, and as it was after a late round."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ufwatch.core.schedule import SLOTS, between, next_due, offset


@pytest.mark.parametrize("first", [0, 1, 77, 10_000])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 10, 50, 77, 500])
def test_any_run_of_targets_fills_the_slots_nearly_evenly(first: int, n: int) -> None:
    due = Counter(offset(index, 5.0) for index in range(first, first + n))
    assert set(due) <= {slot * 5.0 / SLOTS for slot in range(SLOTS)}
    assert max(due.values()) <= n / SLOTS + 2
    assert min(due[slot * 5.0 / SLOTS] for slot in range(SLOTS)) >= n / SLOTS - 2


def test_the_first_target_is_due_at_once_and_the_second_in_another_half() -> None:
    assert offset(0, 5.0) == 0.0
    assert offset(1, 5.0) == 3.0


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (90.0, 100.0),  # before the first moment
        (100.0, 100.0),
        (100.5, 100.0),  # a slot late: at once
        (100.6, 105.0),  # later: left out
        (105.0, 105.0),
        (1003.0, 1005.0),  # missed rounds are not made up, and the grid stays
    ],
)
def test_the_next_moment(now: float, due: float) -> None:
    assert next_due(100.0, 5.0, now) == pytest.approx(due)


@given(
    index=st.integers(0, 10_000),
    moment=st.floats(0, 1e5),
    interval=st.floats(0.05, 60),
    began=st.floats(0, 1e6),
)
def test_what_lies_between_meets_no_scrape(index: int, moment: float, interval: float, began: float) -> None:
    slot = interval / SLOTS
    due = between(began + moment, began, interval)
    assert -1e-6 <= due - (began + moment) <= slot + 1e-6
    scrapes = began + offset(index, interval)
    apart = (due - scrapes) / slot % 1.0
    assert apart == pytest.approx(0.5, abs=1e-3), "half-way between two moments at which anything is scraped"


def test_the_next_moment_between_is_one_later() -> None:
    assert between(100.0, 100.0, 5.0) == 100.25
    assert between(100.25, 100.0, 5.0) == 100.25
    assert between(100.26, 100.0, 5.0) == 100.75
