"""Ageing over eight days and more of a card's life, from the model in :mod:`tests.core.card_model`."""

from __future__ import annotations

import copy
import functools
import random

import pytest

from tests.core.card_model import BEGAN, DAY, Card, Load
from ufwatch.core.ageing import (
    CURRENT_SECONDS,
    MIN_REFERENCE,
    MOST_CELLS,
    REFERENCE_SECONDS,
    RIDGE,
    VALUES,
    Ageing,
    Reference,
    Sample,
)
from ufwatch.core.steps import BATCH_RATIO, located
from ufwatch.model import Reason

HOUR = DAY / 24


@functools.cache
def _after(days: float, seed: int) -> Card:
    """A card that has been watched for so many days; copied, as nobody else may go on with it."""
    card = Card(seed, noise=0.005)
    card.run(days)
    return card


def after(days: float, seed: int = 1) -> Card:
    return copy.deepcopy(_after(days, seed))


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_claimed_before_a_week_is_over_and_nothing_wrong_after(seed: int) -> None:
    card = after(8.0, seed)
    early = [drift.ratio for at, drift in card.drifts if at < BEGAN + REFERENCE_SECONDS]
    assert set(early) == {None}
    late = [drift.ratio for at, drift in card.drifts if at > BEGAN + REFERENCE_SECONDS + HOUR]
    known = [ratio for ratio in late if ratio is not None]
    assert len(known) > 0.8 * len(late)
    assert max(map(abs, known)) < 0.01


LOADS = {
    "other hours": Load(shift=12.0),
    "steeper days": Load(swing=0.8),
    "doubled in the quiet hours": Load(batch=60.0, swing=0.2),
    "longer prompts": Load(tokens=2100.0),
    "more prompt tokens": Load(prefill=2.0),
    "half the requests": Load(batch=22.0),
    "idle for a third of the time": Load(busy=0.67),
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_change_of_load_is_no_ageing(load: Load, seed: int) -> None:
    card = after(8.0, seed)
    card.load = load
    known = [ratio for ratio in card.run(1.0) if ratio is not None]
    assert max(map(abs, known), default=0.0) < 0.01


@pytest.mark.parametrize("capacity", [0.95, 1.2])
def test_a_start_that_finds_more_memory_or_less_is_no_ageing(capacity: float) -> None:
    card = after(8.0)
    card.restarted(capacity)
    drifts = card.run(1.0)
    known = [ratio for ratio in drifts if ratio is not None]
    assert max(map(abs, known)) < 0.01
    assert len(known) > 0.6 * len(drifts)


def test_a_changed_load_is_compared_and_not_left_out() -> None:
    card = after(8.0)
    card.load = LOADS["other hours"]
    drifts = card.run(1.0)
    assert sum(ratio is not None for ratio in drifts) > 0.15 * len(drifts)


@pytest.mark.parametrize("load", [Load(), LOADS["steeper days"], LOADS["idle for a third of the time"]])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_card_that_is_slower_by_eight_percent_is_found_to_a_point(load: Load, seed: int) -> None:
    card = after(8.0, seed)
    card.slower, card.load = 0.08, load
    card.run(CURRENT_SECONDS / DAY)  # until the last hour is slow from end to end
    drifts = card.run(1.0)
    known = [ratio for ratio in drifts if ratio is not None]
    assert len(known) > 0.7 * len(drifts)
    assert min(known) > 0.07
    assert max(known) < 0.09


def test_a_slow_card_stays_slow_where_its_load_moves_on() -> None:
    """Cells that are first seen on a slow card take their references without its drift."""
    card = after(8.0)
    card.slower = 0.08
    card.run(0.25)
    card.change(batch=55.0, swing=0.7)
    card.run(7.5)
    known = [ratio for ratio in card.run(1.0) if ratio is not None]
    assert len(known) > 1000
    assert 0.06 < min(known) < max(known) < 0.1


def test_another_engine_begins_anew_and_the_old_one_is_remembered() -> None:
    card = after(8.0)
    card.group, card.slower = "v2", -0.15  # a faster version
    assert set(card.run(0.5)) == {None}
    card.group, card.slower = "v1", 0.0
    known = [ratio for ratio in card.run(0.5) if ratio is not None]
    assert len(known) > 500
    assert max(map(abs, known)) < 0.01


def test_it_is_gone_within_an_hour_of_the_last_step() -> None:
    card = after(8.0)
    assert card.ageing.evaluate(card.at).ratio is not None
    assert card.ageing.evaluate(card.at + CURRENT_SECONDS + 1) == (None, 0, Reason.IDLE)
    assert card.ageing.recent == []


def test_two_cells_are_not_enough() -> None:
    ageing = Ageing()
    chance = random.Random(3)

    def hour(at: float, cells: int) -> None:
        for minute in range(60):
            step = located(
                0.01 * chance.gauss(1, 0.001), BATCH_RATIO ** (5.2 + minute % cells), 0.22, 1.0, 61, 1.9e9, "no"
            )
            ageing.add(Sample(at + 60.0 * minute, "g", *step))

    for day in range(8):
        hour(BEGAN + day * DAY, 3)
    end = BEGAN + 7 * DAY + HOUR
    assert ageing.evaluate(end).ratio == pytest.approx(0.0, abs=0.002)
    hour(end, 2)
    assert ageing.evaluate(end + HOUR) == (None, 2, Reason.WARMING_UP)


def test_a_clock_that_jumps_neither_invents_a_drift_nor_forgets_a_reference() -> None:
    card = after(8.0)
    before = card.ageing.evaluate(card.at)
    references = {key: reference.sums for key, reference in card.ageing.cells.items() if reference.closed}
    for jump in (40 * 365 * DAY, -50 * 365 * DAY):
        wrong = copy.deepcopy(card)
        for each in list(wrong.ageing.recent)[-5:]:
            wrong.ageing.add(each._replace(at=each.at + jump))
        assert wrong.ageing.evaluate(wrong.at + jump).ratio is None
        drift = wrong.ageing.evaluate(wrong.at)
        assert drift.ratio is None  # what was of the last hour is not believed any more …
        known = [ratio for ratio in wrong.run(0.2) if ratio is not None]
        assert len(known) > 150  # … and an hour later all is as it was
        assert max(map(abs, known)) < 0.01
        assert {k: r.sums for k, r in wrong.ageing.cells.items() if k in references} == references
    assert card.ageing.evaluate(card.at) == before


def _values(chance: random.Random) -> tuple[float, ...]:
    places = [chance.random() for _ in range(VALUES - 1)]
    return (-4 + sum(0.03 * number * place for number, place in enumerate(places)) + chance.gauss(0, 0.01), *places)


def test_a_reference_is_the_regression_that_the_books_give() -> None:
    """The textbook's ridge regression, its normal equations solved by elimination over all samples."""
    chance = random.Random(5)
    samples = [_values(chance) for _ in range(40)]
    reference = Reference(BEGAN)
    for sample in samples:
        assert reference.add(BEGAN, sample, 0.0)
    now = _values(chance)
    means = [sum(column) / len(samples) for column in zip(*samples, strict=True)]
    centred = [[value - mean for value, mean in zip(sample, means, strict=True)] for sample in samples]
    size = VALUES - 1
    rows = [
        [sum(c[1 + i] * c[1 + j] for c in centred) + (RIDGE[i] if i == j else 0.0) for j in range(size)]
        + [sum(c[1 + i] * c[0] for c in centred)]
        for i in range(size)
    ]
    for i in range(size):
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(size):
            if i != j:
                rows[j] = [b - rows[j][i] * a for a, b in zip(rows[i], rows[j], strict=True)]
    expected = means[0] + sum(row[-1] * (now[1 + i] - means[1 + i]) for i, row in enumerate(rows))
    near = (now[0], *(mean + 0.1 * (value - mean) for value, mean in zip(now[1:], means[1:], strict=True)))
    expected_near = means[0] + sum(row[-1] * (near[1 + i] - means[1 + i]) for i, row in enumerate(rows))
    assert reference.gap(near) == pytest.approx(near[0] - expected_near)
    gap = reference.gap(now)
    assert gap is None or gap == pytest.approx(now[0] - expected)


def test_a_place_that_was_never_seen_is_not_answered_for() -> None:
    chance = random.Random(6)
    reference = Reference(BEGAN)
    for _ in range(60):
        reference.add(BEGAN, (-4.0, chance.uniform(0.0, 0.2), 0.5, 0.5, 0.5, 0.5), 0.0)
    assert reference.gap((-4.0, 0.1, 0.5, 0.5, 0.5, 0.5)) == pytest.approx(0.0, abs=1e-9)
    assert reference.gap((-4.0, 0.9, 0.5, 0.5, 0.5, 0.5)) is None
    assert reference.gap((-4.0, 0.1, 0.5, 0.9, 0.5, 0.5)) is None


def test_two_halves_make_the_same_reference() -> None:
    chance = random.Random(7)
    whole, first, second = Reference(BEGAN), Reference(BEGAN), Reference(BEGAN + 500)
    for number in range(60):
        values = _values(chance)
        whole.add(BEGAN + number, values, 0.0)
        (first if number < 25 else second).add(BEGAN + number, values, 0.0)
    second.merge(first)
    assert second.born == BEGAN
    assert list(second.sums) == pytest.approx(list(whole.sums))


def test_a_reference_closes_after_a_week_with_thirty_and_then_stands() -> None:
    reference = Reference(BEGAN)
    values = (-4.0, 0.5, 0.5, 0.5, 0.5, 0.5)
    for _ in range(MIN_REFERENCE - 1):
        reference.add(BEGAN, values, 0.0)
    assert reference.add(BEGAN + 9 * DAY, values, 0.0)
    closed = [reference.closed]  # it still lacked one
    assert reference.add(BEGAN + 9 * DAY, values, 0.0)
    assert [*closed, reference.closed] == [False, True]
    sums = list(reference.sums)
    assert not reference.add(BEGAN + 10 * DAY, (0.0, *values[1:]), 0.0)
    assert list(reference.sums) == sums
    assert sums[0] == MIN_REFERENCE


def test_room_is_made_by_forgetting_an_engine_that_is_gone() -> None:
    ageing = Ageing()
    values = (-4.0, 0.5, 0.5, 0.5, 0.5, 0.5)
    for number in range(MOST_CELLS):
        ageing.add(Sample(BEGAN + number, "old" if number < 600 else "new", str(number), values))
    ageing.add(Sample(BEGAN + 5000, "new", "more", values))
    assert ageing.gone == {"old"}
    assert len(ageing.cells) == MOST_CELLS - 600 + 1
    for number in range(MOST_CELLS):
        ageing.add(Sample(BEGAN + 6000, "new", f"x{number}", values))
    assert len(ageing.cells) == MOST_CELLS


def test_a_minute_of_preempted_requests_says_nothing() -> None:
    card = after(8.0)
    before = len(card.drifts)
    card._shown.grow(preemptions_total=1)
    card.run(59 / DAY)
    card._shown.grow(preemptions_total=1)
    card.run(2 * 60 / DAY)
    assert len(card.drifts) - before <= 2
