"""What a state directory may hold that no agent of today has written: another time, other targets, other values."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.slo.pages import Running
from ufwatch.clock import ManualClock
from ufwatch.config import Objective
from ufwatch.errors import SourceError
from ufwatch.slo import offline
from ufwatch.slo.store import FILE

GOOD, BAD = 0.1, 5.0


def test_a_machine_that_boots_without_the_time_loses_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    first = Running(tmp_path, clock)
    first.look([])
    first.look([GOOD] * 90 + [BAD] * 10)
    first.end()
    right, clock.wall_offset = clock.wall_offset, 946_684_800.0
    second = Running(tmp_path, clock)
    second.look([GOOD] * 91 + [BAD] * 10)
    second.save()
    clock.advance(300)
    clock.wall_offset = right + 3600
    second.look([GOOD] * 92 + [BAD] * 10)
    clock.advance(700)
    second.save()
    assert (second.slo("ttft")["events"], second.slo("ttft")["bad_low"]) == (102, 10)
    second.end()
    assert Running(tmp_path, clock).slo("ttft")["events"] == 102


def test_a_target_or_an_objective_that_is_gone_is_not_reported(tmp_path: Path) -> None:
    clock = ManualClock()
    one = Objective(id="ttft", metric="ttft", threshold_seconds=1.0, ratio=0.95)
    other = Objective(id="e2e", metric="e2e", threshold_seconds=30.0, ratio=0.95)
    first = Running(tmp_path, clock, [one, other], name="old")
    first.look([])
    first.look([BAD] * 10)
    first.end()
    clock.advance(3600)
    second = Running(tmp_path, clock, [other], name="new")
    second.look([])
    second.end()
    (target,) = offline.report(tmp_path, clock.wall())["targets"]
    assert (target["target"], [slo["slo"] for slo in target["slos"]]) == ("new", ["e2e"])
    back = Running(tmp_path, clock, [one], name="old")
    assert back.slo("ttft")["bad_low"] == 10  # it had not been forgotten
    back.end()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE bucket SET events = 'many'",
        "UPDATE bucket SET events = 9e999",
        "UPDATE bucket SET events = -5",
        "UPDATE bucket SET high = events + 1",
        "INSERT INTO bucket VALUES('t', 'ttft', 0, -300, 1, 0, 0, 0)",
        "INSERT INTO bucket VALUES('t', 'ttft', 7, 0, 1, 0, 0, 0)",
        "UPDATE last SET wall = 'yesterday'",
        "UPDATE last SET engines = 'null'",
        "UPDATE objective SET ratio = 1.0",
        "UPDATE objective SET definition = 'ttft<=soon'",
        "UPDATE objective SET days = -30",
    ],
)
def test_values_that_were_never_saved_are_damage(tmp_path: Path, change: str) -> None:
    clock = ManualClock()
    first = Running(tmp_path, clock)
    first.look([])
    first.look([GOOD] * 3)
    first.end()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(change)
    database.close()
    with pytest.raises(SourceError, match="cannot be what was saved"):
        offline.report(tmp_path, clock.wall())
    second = Running(tmp_path, clock)
    assert second.slo("ttft")["state"] == "no_data"
    assert (tmp_path / f"{FILE}.corrupt").exists()
    second.end()
