"""Both series on the agent's page, through restarts, kills and changes of what is watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.pages import CARD, OTHER, Machine, Running
from ufwatch.clock import ManualClock
from ufwatch.config import TargetConfig

HOUR, DAY = 3600.0, 86400.0


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, dict[str, float]]:
    """What eight days leave behind: a state directory, when it was left, and the engine's counters."""
    state = tmp_path_factory.mktemp("state")
    machine = Machine(ManualClock())
    agent = Running(machine, state)
    for _ in range(8):
        agent.run(6 * HOUR)
        agent.run(18 * HOUR, every=1800.0)  # looked at seldom, so that the test does not take as long
    agent.run(2 * HOUR)
    drift = agent.drift()
    assert drift is not None
    assert abs(drift) < 0.01
    agent.end()
    return state, machine.clock.now, dict(machine._totals)


def resumed(learned: tuple[Path, float, dict[str, float]], tmp_path: Path) -> tuple[Machine, Path]:
    """The same engine and a copy of what was learned of it, a moment later."""
    state, now, totals = learned
    copy = tmp_path / "state"
    copy.mkdir()
    for path in state.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    machine = Machine(ManualClock(now=now))
    machine._totals = dict(totals)
    return machine, copy


Learned = tuple[Path, float, dict[str, float]]


def test_both_are_on_the_page_again_after_a_restart(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    agent = Running(machine, state)
    drift = agent.drift()
    assert drift is not None  # at once: the last hour is of before the restart
    assert abs(drift) < 0.01
    drifts = agent.run(2 * HOUR)
    assert len(drifts) > 100
    assert None not in drifts
    assert max(abs(each or 0) for each in drifts) < 0.01
    assert agent.baseline() == pytest.approx(0.4, abs=1e-3)
    assert agent.reading("page_table_miss_baseline")["quality"] == "estimate"
    assert agent.reading("gpu_ageing_drift")["labels"] == {"gpu": "0", "uuid": "GPU-1", "mig": ""}
    agent.end()


def test_a_slowdown_is_found_whatever_kills_the_agent_meanwhile(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    machine.slower = 0.08
    for _ in range(8):
        agent = Running(machine, state)
        agent.run(600.0)
        agent.save()
        agent.run(30.0)  # never saved
        agent.killed()
    agent = Running(machine, state)
    drifts = agent.run(HOUR)
    assert None not in drifts
    assert all(0.07 < (each or 0) < 0.09 for each in drifts)
    agent.end()


def test_another_version_begins_anew(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    agent = Running(machine, state)
    asked = machine.asked
    agent.run(300.0)
    assert machine.asked == asked + 1
    machine.restart("0.29.0")
    machine.slower = 0.2
    drifts = agent.run(2 * HOUR)
    assert machine.asked == asked + 2
    assert set(drifts[3:]) == {None}
    assert agent.reading("gpu_ageing_drift")["reason"] == "warming_up"
    machine.restart("0.28.0")
    machine.slower = 0.0
    drifts = agent.run(2 * HOUR)
    assert drifts[-1] is not None
    assert max(abs(each or 0) for each in drifts) < 0.01
    agent.end()


def test_another_flag_begins_anew_and_a_restart_alone_does_not(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    agent = Running(machine, state)
    agent.run(300.0)
    machine.restart()
    drifts = agent.run(HOUR)
    assert None not in drifts
    machine.restart()
    machine.flags = 'block_size="32"'
    drifts = agent.run(HOUR)
    assert set(drifts[3:]) == {None}
    agent.end()


def test_an_engine_that_does_not_say_its_version_is_not_compared(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    machine.version = None
    agent = Running(machine, state)
    drifts = agent.run(2 * HOUR)
    assert drifts[0] is not None  # of the hour before the restart
    assert set(drifts[60:]) == {None}
    assert 20 < machine.asked < 30  # every five minutes
    assert agent.reading("gpu_ageing_drift")["reason"] in ("no_source", "warming_up")
    agent.end()


def test_two_servers_on_one_card_are_not_told_apart(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    both = [TargetConfig(name=name, url=f"http://{name}", gpus=("0",)) for name in ("a", "b")]
    agent = Running(machine, state, *both)
    assert set(agent.run(HOUR)) == {None}
    assert agent.reading("gpu_ageing_drift")["reason"] == "not_attributable"
    agent.end()


def test_several_engines_on_a_card_are_not_told_apart(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    machine.engines = 2
    agent = Running(machine, state)
    agent.run(2 * HOUR)
    assert agent.drift() is None
    assert agent.reading("gpu_ageing_drift")["reason"] == "not_attributable"
    agent.end()


@pytest.mark.parametrize("model", ["H200", "L4"])
def test_cards_that_work_together_share_their_drift_if_they_are_alike(model: str) -> None:
    machine = Machine(ManualClock())
    machine.cards, machine.models = (CARD, OTHER), {CARD: "H200", OTHER: model}
    agent = Running(machine)
    agent.run(600.0)
    watched = agent.history.cards._watched
    if model == "L4":
        assert watched == {}
        assert agent.reading("gpu_ageing_drift")["reason"] == "not_attributable"
        return
    assert list(agent.history.cards.sets) == ["GPU-1+GPU-2"]
    ageing = watched["a"].ageing
    ageing.drift = ageing.drift._replace(ratio=0.03, reason=None)
    assert {s.labels[1][1]: s.value for s in agent.history.cards.samples()} == {"GPU-1": 0.03, "GPU-2": 0.03}
    agent.end()


def test_a_target_without_cards_of_its_own_gets_no_work() -> None:
    machine = Machine(ManualClock())
    agent = Running(machine, None, TargetConfig(name="a", url="http://a", gpus=("7",)))
    agent.run(600.0)
    assert agent.history.cards._watched == {}
    assert machine.asked == 0
    assert agent.reading("gpu_ageing_drift")["reason"] == "not_mapped"


def test_a_card_that_does_not_answer_shows_nothing(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    agent = Running(machine, state)
    agent.run(300.0)
    assert agent.drift() is not None
    machine.cards = ()
    agent.run(60.0)
    assert agent.drift() is None
    agent.end()


def test_nobody_looks_for_an_hour(learned: Learned, tmp_path: Path) -> None:
    machine, state = resumed(learned, tmp_path)
    machine.clock.now += HOUR + 60
    machine._at = machine.clock.now
    agent = Running(machine, state)
    assert agent.drift() is None
    assert agent.baseline() is None  # nothing was looked at yet
    agent.run(60.0)
    assert agent.baseline() == pytest.approx(0.4, abs=1e-3)
    drifts = agent.run(HOUR)
    assert abs(drifts[-1] or 1) < 0.01
    agent.end()


@pytest.mark.parametrize("which", ["reset-ageing", "reset-ageing-GPU-1", "reset-ageing-GPU-2"])
def test_a_card_begins_anew_when_asked(learned: Learned, tmp_path: Path, which: str) -> None:
    machine, state = resumed(learned, tmp_path)
    agent = Running(machine, state)
    (state / which).touch()
    agent.run(300.0)
    agent.save()
    assert not (state / which).exists()
    agent.run(60.0)
    assert (agent.drift() is None) == (not which.endswith("2"))
    agent.run(HOUR)
    agent.end()
    again = Running(machine, state)
    assert (again.drift() is None) == (not which.endswith("2"))
    assert again.history.misses["a"].usual.days >= 3  # what is usual for the target was not asked about
    again.end()


def test_what_the_configuration_expects_is_shown_from_the_start() -> None:
    machine = Machine(ManualClock())
    agent = Running(machine, None, TargetConfig(name="a", url="http://a", expected_miss=0.25))
    agent.run(60.0)
    assert agent.baseline() == 0.25
    reading = agent.reading("page_table_miss_baseline")
    assert (reading["value"], reading["source"], reading["quality"]) == (0.25, "config", "exact")


def test_too_few_lookups_and_too_few_days_are_no_baseline() -> None:
    machine = Machine(ManualClock())
    machine.lookups_per_second = 1000 / HOUR * 1.2
    agent = Running(machine)
    agent.run(HOUR / 2)  # to the end of an hour
    for day in range(5):
        if day == 3:
            machine.lookups_per_second = 1000 / HOUR * 0.7
        agent.run(24 * HOUR, every=60.0)
        assert (agent.baseline() is None) == (day < 2), day
        if day < 2:
            assert agent.reading("page_table_miss_baseline")["reason"] == "warming_up"
    agent.run(3 * 24 * HOUR, every=60.0)
    assert agent.baseline() is None  # of seven days, only two are left that had enough


def test_without_a_state_directory_it_lives_as_long_as_the_process() -> None:
    machine = Machine(ManualClock())
    agent = Running(machine)
    agent.run(3.1 * DAY, every=60.0)
    assert agent.baseline() == pytest.approx(0.4, abs=1e-3)
    ageing = agent.history.cards.sets["GPU-1"]
    assert (agent.history.misses["a"].unsaved, ageing.dirty, ageing.fresh) == ({}, set(), [])  # nothing piles up
    assert ageing.cells
    agent.save()
    agent.end()
    again = Running(machine)
    again.run(60.0)
    assert again.baseline() is None
