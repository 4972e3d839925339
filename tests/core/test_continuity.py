"""Restarts are believed once they have been seen twice; workers in turn never are."""

from __future__ import annotations

from array import array

from ufwatch.core.continuity import Continuity, Identity, Verdict, judge

NOBODY = Identity(None, None)


def _judge_all(
    pages: list[tuple[Identity, list[float]]],
) -> list[tuple[Verdict, list[float] | None]]:
    memory: Continuity | None = None
    answers = []
    for identity, counters in pages:
        memory, verdict, grown = judge(memory, identity, array("d", counters))
        answers.append((verdict, grown))
    return answers


def _who(start: float) -> Identity:
    return Identity(start, None)


def test_growth_is_the_difference() -> None:
    assert _judge_all([(_who(1), [10, 5]), (_who(1), [12, 5])]) == [
        (Verdict.FIRST, None),
        (Verdict.CONTINUES, [2, 0]),
    ]


def test_restart_counts_from_zero_once_confirmed() -> None:
    answers = _judge_all([(_who(1), [100]), (_who(2), [3]), (_who(2), [7])])
    assert answers[1:] == [(Verdict.RESTART_SEEN, None), (Verdict.RESTARTED, [7])]


def test_restart_is_seen_even_when_the_new_process_has_counted_more() -> None:
    answers = _judge_all([(_who(1), [100]), (_who(2), [300]), (_who(2), [310])])
    assert answers[1:] == [(Verdict.RESTART_SEEN, None), (Verdict.RESTARTED, [310])]


def test_restart_without_identity_is_a_fall_that_stays() -> None:
    answers = _judge_all([(NOBODY, [1000]), (NOBODY, [4]), (NOBODY, [9])])
    assert answers[1:] == [(Verdict.RESTART_SEEN, None), (Verdict.RESTARTED, [9])]


def test_two_workers_without_identity_are_inconsistent() -> None:
    answers = _judge_all([(NOBODY, [1000]), (NOBODY, [400]), (NOBODY, [1010]), (NOBODY, [405])])
    assert [verdict for verdict, _ in answers[2:]] == [Verdict.INCONSISTENT, Verdict.INCONSISTENT]
    assert all(grown is None for _, grown in answers)


def test_a_process_that_comes_back_is_inconsistent() -> None:
    answers = _judge_all([(_who(1), [100]), (_who(2), [3]), (_who(1), [101])])
    assert answers[2] == (Verdict.INCONSISTENT, None)


def test_four_workers_in_turn_never_yield_growth() -> None:
    pages = [(_who(n % 4), [1000.0 * (n % 4) + n]) for n in range(24)]
    assert all(grown is None for _, grown in _judge_all(pages))


def test_a_crash_loop_counts_nothing_until_one_process_stays() -> None:
    answers = _judge_all([(_who(1), [9]), (_who(2), [1]), (_who(3), [1]), (_who(4), [1]), (_who(4), [6])])
    assert [verdict for verdict, _ in answers[1:]] == [Verdict.RESTART_SEEN] * 3 + [Verdict.RESTARTED]
    assert answers[-1][1] == [6]


def test_a_small_step_back_is_no_restart_and_counts_nothing() -> None:
    answers = _judge_all([(NOBODY, [1000000]), (NOBODY, [999999]), (NOBODY, [1000500])])
    assert answers[1:] == [(Verdict.STEP_BACK, [0]), (Verdict.CONTINUES, [500])]


def test_inconsistency_ends_after_five_clean_scrapes() -> None:
    bounce = [(_who(1), [100.0]), (_who(2), [3.0]), (_who(1), [101.0])]
    clean = [(_who(1), [102.0 + n]) for n in range(6)]
    verdicts = [verdict for verdict, _ in _judge_all([*bounce, *clean])]
    assert verdicts[-2:] == [Verdict.FIRST, Verdict.CONTINUES]
    assert verdicts[2:-2] == [Verdict.INCONSISTENT] * 5


def test_held_growth_comes_one_scrape_later() -> None:
    memory, _, _ = judge(None, _who(1), array("d", [10]))
    memory, verdict, grown = judge(memory, _who(1), array("d", [50]), hold=True)
    assert (verdict, grown) == (Verdict.HELD, None)
    _, verdict, grown = judge(memory, _who(1), array("d", [53]))
    assert (verdict, grown) == (Verdict.CONTINUES, [43])
