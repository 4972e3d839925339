"""Events by time against a plain list, and budgets against numbers worked out by hand."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ufwatch.config import Objective
from ufwatch.core.budget import (
    Account,
    Bounds,
    LedgerTime,
    Ring,
    burn,
    exhaustion_seconds,
    ledger_step,
    remaining,
)
from ufwatch.core.counting import Tally
from ufwatch.core.standing import standing

NOON = 1_800_000_000.0 - 1_800_000_000.0 % 86400 + 43200
DAY, HOUR = 86400.0, 3600.0


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 5)), max_size=40),
    st.integers(1, 12),
    st.integers(0, 12),
)
def test_a_ring_is_a_list_with_the_old_taken_off(steps: list[tuple[int, int, int]], size: int, window: int) -> None:
    ring, seen, now = Ring(10, size), [], 1000
    for ahead, events, low in steps:
        now += ahead
        tally = Tally(events, low, low + 1, 1)
        assert ring.add(now, tally) == now // 10 * 10
        seen.append((now // 10, tally))
    kept = [tally for number, tally in seen if number > now // 10 - size]
    assert ring.total == Tally(*map(float, map(sum, zip(*kept, strict=True)))) if kept else Tally()
    reach = min(window, size - 1)
    recent = [tally for number, tally in seen if number >= now // 10 - reach]
    expected = Tally(*map(float, map(sum, zip(*recent, strict=True)))) if recent else Tally()
    assert ring.last(reach * 10, now) == expected


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 5)), max_size=20), st.integers(0, 200))
def test_folding_keeps_every_event(steps: list[tuple[int, int]], back: int) -> None:
    ring = Ring(10, 100)
    for at, events in sorted(steps):
        ring.add(at, Tally(events, 1, 1))
    ring.fold(back)
    assert ring.total.events == sum(events for _, events in steps)
    assert ring.newest <= max(back // 10, max((at // 10 for at, _ in steps), default=0))
    assert all(start <= back for start, _ in ring.cells()) or not steps or max(steps)[0] // 10 <= back // 10


def test_a_bucket_that_is_full_stays_full_and_its_total_says_so() -> None:
    ring = Ring(3600, 3)
    for events in (4e9, 4e9, inf):
        ring.add(0.0, Tally(events, 1.0, 2.0))
    assert ring.at(0) == ring.total == Tally(2.0**32 - 1, 3.0, 6.0)
    ring.advance(4 * 3600.0)
    assert ring.total == Tally()


def test_thirty_days_give_the_budget_worked_out_by_hand() -> None:
    """1,000 requests a day, 10 of them bad: 300 of 30,000, where 1,500 may be: four fifths are left."""
    account = Account(30)
    for day in range(30):
        account.hours.add(NOON + day * DAY, Tally(1000, 10, 20))
    assert account.hours.total == Tally(30_000, 300, 600)
    left = remaining(account.hours.total, 0.95)
    assert left is not None
    assert list(left) == pytest.approx([0.6, 0.8])
    # The 31st day is 500 bad of 1,000, and the first day falls out: 790 of 30,000.
    account.hours.add(NOON + 30 * DAY + HOUR, Tally(1000, 500, 500))
    assert account.hours.total == Tally(30_000, 790, 1080)
    left = remaining(account.hours.total, 0.95)
    assert left is not None
    assert list(left) == pytest.approx([1 - 1080 / 1500, 1 - 790 / 1500])


def test_a_busy_hour_weighs_more_than_a_quiet_one() -> None:
    """10 requests all bad, then 9,990 all good: a thousandth is bad, not a half."""
    tally = Tally(10, 10, 10).plus(Tally(9_990, 0, 0))
    assert list(burn(tally, 0.99) or ()) == pytest.approx([0.1, 0.1])


def test_no_data_is_nothing_and_never_met() -> None:
    assert remaining(Tally(unknown=100), 0.99) is None
    assert burn(Tally(), 0.99) is None
    objective = Objective(id="ttft", metric="ttft", threshold_seconds=0.8, ratio=0.95)
    told = standing(objective, Account(30), NOON)
    assert told["state"] == "no_data"
    assert told["remaining_low"] is told["exhausted_soonest_seconds"] is told["burn"]["1h"] is None


@pytest.mark.parametrize(
    ("tally", "state"),
    [
        (Tally(100, 0, 0), "within"),
        (Tally(100, 4, 4), "within"),
        (Tally(100, 4, 6), "uncertain"),
        (Tally(100, 6, 6), "spent"),
    ],
)
def test_a_budget_is_spent_only_when_that_is_sure(tally: Tally, state: str) -> None:
    account = Account(30)
    for ring in (account.fine, account.hours):
        ring.add(NOON, tally)
    objective = Objective(id="ttft", metric="ttft", threshold_seconds=0.8, ratio=0.95)
    assert standing(objective, account, NOON)["state"] == state


def test_windows_of_burn_and_the_time_to_exhaustion() -> None:
    """Five bad of 100 in the last hour burn a 95 % budget once over; of a month with half left, that is 15 days."""
    account = Account(30)
    account.hours.add(NOON - 2 * DAY, Tally(900, 20, 20))
    for ring in (account.fine, account.hours):
        ring.add(NOON - 1000, Tally(100, 5, 5))
    objective = Objective(id="ttft", metric="ttft", threshold_seconds=0.8, ratio=0.95)
    told = standing(objective, account, NOON)
    assert told["burn"]["5m"] is None
    assert told["burn"]["1h"] == {"low": pytest.approx(1), "high": pytest.approx(1)}
    assert told["burn"]["3d"] == {"low": pytest.approx(0.5), "high": pytest.approx(0.5)}
    assert told["remaining_low"] == pytest.approx(0.5)
    assert told["exhausted_soonest_seconds"] == pytest.approx(15 * DAY)
    assert exhaustion_seconds(0.5, 0.0, DAY) is None
    assert exhaustion_seconds(-0.1, 1.0, DAY) == 0.0
    assert Bounds(1, 2).low == 1


def test_a_jump_of_the_clock_is_believed_after_ten_minutes() -> None:
    time = LedgerTime(1000.0)
    time, back = ledger_step(time, 10.0, 1040.0)
    assert (time.offset, back) == (1030.0, False)  # a small correction is taken at once
    for at in (20.0, 300.0):
        time, back = ledger_step(time, at, at - 5000.0)
        assert (time.offset, back) == (1030.0, False)
    time, back = ledger_step(time, 400.0, 1430.0)
    assert time == LedgerTime(1030.0)  # it was only for a moment
    for at in (500.0, 1099.0):
        time, back = ledger_step(time, at, at - 5000.0)
        assert (time.offset, back) == (1030.0, False)
    time, back = ledger_step(time, 1100.0, 1100.0 - 5000.0)
    assert (time.offset, back) == (-5000.0, True)
    time, back = ledger_step(time, 1101.0, 1e9)
    time, back = ledger_step(time, 1701.0, 1e9)
    assert (time.offset, back) == (1e9 - 1701.0, False)
