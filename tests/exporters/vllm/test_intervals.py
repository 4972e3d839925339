"""The sums against exact rational arithmetic, and what is counted of slices and first tokens."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from fractions import Fraction

import pytest
from ufwatch_vllm import intervals
from ufwatch_vllm.intervals import IntervalSums
from ufwatch_vllm.settings import Settings

SETTINGS = Settings(ttft=(0.8, 2.3), jitter=(0.08, 0.2), slice=10.0)


class Totals:
    """Stands for the writer: what was handed to it last."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}

    def total(self, name: str, value: float, **labels: str) -> None:
        self.values[name, labels.get("threshold_seconds", "")] = value
        self.labels = labels

    def __getitem__(self, name: str) -> float:
        return self.values[name, ""]


class Wall:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def exported(sums: IntervalSums) -> Totals:
    totals = Totals()
    sums.export(totals, "3", "token")
    return totals


def deviation(totals: Totals, before: Totals | None = None) -> float:
    """As the agent takes it from the three counters, or from what they grew by."""
    names = ("token_intervals_total", "token_interval_seconds_total", "token_interval_squared_total")
    n, total, squares = (totals[name] - (before[name] if before else 0.0) for name in names)
    return math.sqrt(max(0.0, squares / n - (total / n) ** 2))


def exact_deviation(values: Sequence[float]) -> float:
    fractions = [Fraction(x) for x in values]
    n = len(fractions)
    variance = sum(x * x for x in fractions) / n - (sum(fractions) / n) ** 2
    return math.sqrt(variance)


@pytest.mark.parametrize(
    ("mean", "sigma", "tolerance"),
    [(0.02, 0.005, 1e-13), (0.01, 1e-4, 1e-10), (30.0, 20.0, 1e-13), (80.0, 1e-3, 2e-5)],
    ids=["usual", "steady", "slow", "slow and steady: mean/sigma 80,000"],
)
def test_deviation_is_that_of_exact_fractions(mean: float, sigma: float, tolerance: float) -> None:
    chance = random.Random(4)
    sums, everything = IntervalSums(SETTINGS), []
    for _ in range(400):
        step = [abs(chance.gauss(mean, sigma)) for _ in range(chance.randint(1, 64))]
        everything += step
        sums.take(step, ())
    totals = exported(sums)
    assert totals["token_intervals_total"] == len(everything)
    # Each total is the true value rounded once, however many lists there were (squares: of the rounded squares).
    assert totals["token_interval_seconds_total"] == float(sum(Fraction(x) for x in everything))
    assert totals["token_interval_squared_total"] == float(sum(Fraction(x * x) for x in everything))
    assert deviation(totals) == pytest.approx(exact_deviation(everything), rel=tolerance)


def test_a_minute_is_exact_after_a_billion_intervals() -> None:
    """The agent takes the growth of the counters over a window: what came before must not blur it."""
    chance = random.Random(5)
    sums = IntervalSums(SETTINGS)
    past = [chance.uniform(0.001, 0.3) for _ in range(1000)]
    million = 1_000_000
    sums._state = sums._state._replace(
        n=len(past) * million,
        sum=intervals._Sum(math.fsum(past) * million),
        squares=intervals._Sum(math.fsum(x * x for x in past) * million),
    )
    before, minute = exported(sums), []
    for _ in range(3000):
        step = [chance.gauss(0.02, 0.002) for _ in range(16)]
        minute += step
        sums.take(step, ())
    assert before["token_intervals_total"] == 1e9
    assert deviation(exported(sums), before) == pytest.approx(exact_deviation(minute), rel=1e-6)


def test_plain_addition_would_drift() -> None:
    """Why the sums are compensated: 0.1 s added a million times."""
    compensated, plain = intervals._Sum(), 0.0
    for _ in range(1_000_000):
        compensated, plain = intervals._plus(compensated, 0.1), plain + 0.1
    exact = Fraction(0.1) * 1_000_000
    assert compensated.high + compensated.low == float(exact)
    assert abs(plain - exact) > 1e-6


def test_what_is_no_time_is_left_out() -> None:
    sums = IntervalSums(SETTINGS)
    sums.take([0.1, math.nan, 0.2], ())
    sums.take([math.inf, 0.3], ())
    sums.take([-1e-9, 0.4], ())
    sums.take([1e200], ())
    sums.take([math.inf, -math.inf], [math.inf, -math.inf])
    sums.take([1e308, 1e308, 10**400], [-1.0, math.nan, 0.9])
    totals = exported(sums)
    assert totals["ttft_requests_total"] == 1
    assert totals["token_intervals_total"] == 4
    assert totals["token_interval_seconds_total"] == pytest.approx(1.0)


def test_first_tokens_over_each_threshold() -> None:
    sums = IntervalSums(SETTINGS)
    sums.take((), [0.1, 0.8, 0.81])
    sums.take((), [2.3, 2.31])
    totals = exported(sums)
    assert totals["ttft_requests_total"] == 5
    assert totals.values["ttft_over_total", "0.8"] == 3, "at the threshold is not over it"
    assert totals.values["ttft_over_total", "2.3"] == 1
    assert totals["token_intervals_total"] == 0


def test_every_counter_is_there_from_the_start() -> None:
    assert set(exported(IntervalSums(SETTINGS)).values.values()) == {0.0}
    assert len(exported(IntervalSums(SETTINGS)).values) == 9


def test_slices() -> None:
    wall = Wall()
    sums = IntervalSums(SETTINGS, wall=wall)

    def counted() -> list[float]:
        values = exported(sums).values
        return [values["jitter_slices_total", ""], *(values["jitter_slices_over_total", t] for t in ("0.08", "0.2"))]

    sums.take([0.1, 0.1], ())
    wall.now += 9.9
    sums.take([0.1, 0.3], ())  # σ of all four 0.087
    assert counted() == [0, 0, 0], "not over yet"
    wall.now += 0.2
    assert counted() == [1, 1, 0], "its time is up, though nothing came after it"
    assert counted() == [1, 1, 0], "and counts once"
    sums.take([0.5], ())
    assert counted() == [1, 1, 0]
    wall.now += 10
    assert counted() == [1, 1, 0], "one interval has no deviation"
    sums.take([0.1, 0.1], ())
    wall.now += 100
    sums.take([0.1, 0.9], ())
    assert counted() == [2, 1, 0], "an even one"
    wall.now -= 50
    sums.take([0.1, 0.9], ())
    assert counted() == [2, 1, 0], "a clock set back keeps the slice open"
    wall.now += 60
    assert counted() == [3, 2, 1]


def test_slices_go_on_when_the_clock_is_set_back_for_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    now, wall = [500.0], [1_000_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: wall[0])
    sums = IntervalSums(SETTINGS)
    for _ in range(6):
        sums.take([0.1, 0.5], ())
        now[0] += 10
        wall[0] -= 7200
    assert exported(sums)["jitter_slices_total"] == 6
    assert exported(sums).values["jitter_slices_over_total", "0.08"] == 6


def test_slices_are_aligned_to_the_clock() -> None:
    wall = Wall()
    wall.now = 1_000_009.9
    sums = IntervalSums(SETTINGS, wall=wall)
    sums.take([0.1, 0.5], ())
    wall.now = 1_000_010.0
    assert exported(sums)["jitter_slices_total"] == 1


def test_a_slice_closed_by_the_writer_is_not_closed_again() -> None:
    wall = Wall()
    sums = IntervalSums(SETTINGS, wall=wall)
    sums.take([0.1, 0.5], ())
    wall.now += 25
    assert exported(sums)["jitter_slices_total"] == 1
    sums.take([0.1, 0.5], ())
    assert exported(sums)["jitter_slices_total"] == 1
    wall.now += 10
    assert exported(sums)["jitter_slices_total"] == 2
