"""A history keeps what its window can reach and little more."""

from __future__ import annotations

import random

import pytest

from ufwatch.core.window import History

WINDOW = 60.0


@pytest.mark.parametrize("interval", [0.25, 1.0, 5.0, 15.0, 60.0])
def test_a_full_window_is_as_long_as_it_says_and_ends_now(interval: float) -> None:
    dice = random.Random(f"{interval}")
    history: History[float] = History(WINDOW, interval / 2)
    at = 100.0
    for _ in range(round(6 * WINDOW / interval) + 12):
        at += interval * (1 + dice.uniform(-0.1, 0.1)) * (3 if dice.random() < 0.02 else 1)
        history = history.push(at, at)
        assert len(history.entries) <= WINDOW / max(interval * 0.9, WINDOW / 30) + 3
        assert all(when == value for when, value in history.entries)
        assert history.entries[-1] == (at, at)
        if (ends := history.ends()) is not None:
            (first, _), (final, _) = ends
            assert final == at
            assert WINDOW - interval / 2 <= final - first <= WINDOW + WINDOW / 30 + 3.4 * interval


def test_of_a_whole_run_the_first_look_is_kept() -> None:
    history: History[int] = History(None, 0.0)
    for at in range(100):
        history = history.push(float(at), at)
    assert history.entries == ((0.0, 0), (99.0, 99))


def test_an_entry_makes_room_for_the_next_only_while_they_crowd() -> None:
    history: History[int] = History(WINDOW, 0.5)
    for at in range(6):
        history = history.push(float(at), at)
    assert [value for _, value in history.entries] == [0, 2, 4, 5]
