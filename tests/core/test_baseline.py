"""What usually misses at this hour, against a plain dictionary and :func:`statistics.median`."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from ufwatch.core.baseline import DAYS, MIN_HOURS, MIN_LOOKUPS, HourCount, Hours, median

FIRST = 472_000
COUNTS = st.tuples(st.floats(0, 5000), st.floats(0, 1))


@given(st.lists(st.floats(0, 1), min_size=1))
def test_the_median_is_statistics(values: list[float]) -> None:
    assert median(values) == statistics.median(values)


@given(st.lists(st.tuples(st.integers(0, 30), COUNTS), max_size=300))
def test_the_same_hour_of_the_last_week(passed: list[tuple[int, tuple[float, float]]]) -> None:
    """Hours pass, some with few look-ups, some with no agent at all."""
    hours, truth, hour = Hours(FIRST), dict[int, tuple[float, float]](), FIRST
    for later, (lookups, share) in passed:
        hour += later
        hours.count(hour, lookups, lookups * share)
        had = truth.get(hour, (0.0, 0.0))
        truth[hour] = had[0] + lookups, had[1] + lookups * share
    days = [truth.get(hour - 24 * day, (0.0, 0.0)) for day in range(1, DAYS + 1)]
    known = [misses / lookups for lookups, misses in days if lookups >= MIN_LOOKUPS]
    found = hours.baseline()
    assert found.days == len(known)
    if len(known) < MIN_HOURS:
        assert found.ratio is None
    else:
        assert found.ratio is not None
        assert abs(found.ratio - statistics.median(known)) < 1e-6


def test_a_slewed_clock_keeps_the_hour() -> None:
    hours = Hours(FIRST)
    hours.count(FIRST + 1, 900, 90)
    hours.count(FIRST, 10, 0)
    hours.count(FIRST + 1, 200, 20)
    assert hours.now() == HourCount(FIRST + 1, 1110, 110)


def test_a_clock_that_was_wrong_for_a_while_takes_nothing_away() -> None:
    hours = Hours(FIRST)
    for day in range(4):
        hours.count(FIRST + 24 * day, 2000, 500 + 100 * day)
    now = FIRST + 24 * 4
    hours.count(now, 1, 0)
    usual = hours.baseline()
    assert usual.ratio is not None
    assert abs(usual.ratio - 0.325) < 1e-6
    for wrong in (now - 100, now + 200_000):
        hours.count(wrong, 50, 50)
        assert hours.baseline().ratio is None
        hours.count(now, 1, 0)
        assert hours.baseline() == usual


def test_what_was_kept_is_what_was_counted() -> None:
    hours = Hours(FIRST)
    for hour in range(FIRST, FIRST + 200):
        hours.count(hour, 1500 + hour % 7, (hour % 11) * 100)
    other = Hours(FIRST + 199)
    for kept in (*hours.kept(), hours.now()):
        other.put(kept)
    assert other.baseline() == hours.baseline()
    assert other.now() == hours.now()
    assert len(list(hours.kept())) == 168
