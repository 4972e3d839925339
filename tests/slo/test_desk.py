"""Budgets over restarts: requests are recovered once, slices and probes of the time without an agent are unknown."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

import pytest

from tests.slo.pages import Running, done
from ufwatch.clock import ManualClock
from ufwatch.config import Objective
from ufwatch.core.counting import Tally
from ufwatch.errors import SourceError
from ufwatch.render.slos import slo_text
from ufwatch.slo import offline
from ufwatch.slo.store import FILE, HOUR, Batch, Row, Store
from ufwatch.statefile import StoreError

GOOD, BAD = 0.1, 5.0


def test_two_hours_without_the_agent(tmp_path: Path) -> None:
    clock = ManualClock()
    first = Running(tmp_path, clock)
    first.look([])
    first.look([GOOD] * 10)
    first.probe()
    first.end()
    clock.advance(7200)
    second = Running(tmp_path, clock)
    second.probe(None)  # not looked at yet: unknown
    second.look([GOOD] * 10 + [BAD] * 3)
    second.save()
    ttft = second.slo("ttft")
    assert (ttft["events"], ttft["bad_low"], ttft["bad_high"]) == (13, 3, 3)
    assert second.counter("ttft") == (0, 0, 0)  # the counters of the new process begin at 0 all the same
    assert second.slo("ttft")["burn"]["1h"] is None  # when in the two hours it was, nobody knows
    availability, smoothness = second.slo("availability"), second.slo("smoothness")
    assert (availability["events"], availability["unknown"]) == (1, 7201)
    assert (smoothness["events"], smoothness["unknown"]) == (0, 720)
    assert smoothness["state"] == "no_data"
    # Nothing is recovered a second time, neither in this process nor in the next.
    second.look([GOOD] * 11 + [BAD] * 3)
    assert second.counter("ttft") == (1, 0, 0)
    second.end()
    third = Running(tmp_path, clock)
    third.look([GOOD] * 11 + [BAD] * 3)
    assert third.slo("ttft")["events"] == 14
    third.end()


def test_an_engine_that_restarted_meanwhile_is_not_guessed_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    first = Running(tmp_path, clock)
    first.look([GOOD] * 5)
    first.end()
    second = Running(tmp_path, clock)
    with caplog.at_level(logging.INFO):
        second.look([BAD] * 9, start=60.0)
    assert second.slo("ttft")["events"] == 0
    assert "Requests of a time without an agent are missing" in slo_text(second.desk.report())
    assert [r.fields["why"] for r in caplog.records if hasattr(r, "fields")] == ["it has been restarted meanwhile"]
    second.end()


def test_what_a_kill_takes_is_found_again(tmp_path: Path) -> None:
    clock = ManualClock()
    first = Running(tmp_path, clock)
    first.look([GOOD])
    first.look([GOOD] * 4)
    first.save()
    first.look([GOOD] * 4 + [BAD] * 6)  # counted, never saved
    first.killed()
    second = Running(tmp_path, clock)
    second.look([GOOD] * 5 + [BAD] * 6)
    assert second.slo("ttft")["events"] == 10
    assert second.slo("ttft")["bad_low"] == 6
    second.end()


def test_a_full_disk_is_told_once_and_made_up_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite itself is told that no page is left, which is what a full disk is to it."""
    clock = ManualClock()
    agent = Running(tmp_path, clock)
    agent.look([])
    agent.save()
    store = agent.desk._store
    assert store is not None

    used = store._connect().execute("PRAGMA page_count").fetchone()[0]
    original = store._connect

    def full() -> sqlite3.Connection:
        connection = original()
        connection.execute(f"PRAGMA max_page_count={used}")
        return connection

    store._connect = full  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        for hour in range(200):
            clock.advance(3600)
            agent.look([GOOD] * hour)
            agent.save()
            if not agent.desk._life.health.up:
                break
        agent.save()
        agent.save()
    assert [r.message for r in caplog.records] == ["error budgets cannot be saved; they are kept in memory"]
    assert "full" in str(caplog.records[0].fields)  # type: ignore[attr-defined]
    up = {s.metric: s.value for s in agent.desk.samples() if dict(s.labels).get("source") == "slo_store"}
    assert up["source_up"] == 0
    held = agent.slo("ttft")["events"]
    assert held == hour
    store._connect = original  # type: ignore[method-assign]
    store._disconnect()
    agent.save()
    assert agent.desk._life.health.up
    agent.end()
    again = Running(tmp_path, clock)
    assert again.slo("ttft")["events"] == held
    again.end()


@pytest.mark.parametrize("damage", ["text", "torn", "page"])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    clock = ManualClock()
    agent = Running(tmp_path, clock)
    agent.look([])
    agent.look([GOOD] * 3)
    agent.end()
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(
        b"this is no database at all" * 40
        if damage == "text"
        else whole[: len(whole) // 2]
        if damage == "torn"
        else whole[:4096] + os.urandom(len(whole) - 4096)
    )
    again = Running(tmp_path, clock)
    assert "the error budgets could not be read and begin anew" in [r.message for r in caplog.records]
    assert (tmp_path / f"{FILE}.corrupt").exists()
    again.look([GOOD] * 3)
    again.look([GOOD] * 5)
    again.end()
    third = Running(tmp_path, clock)
    assert third.slo("ttft")["events"] == 2
    third.end()


def test_damage_while_running_costs_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    agent = Running(tmp_path, clock)
    agent.look([])
    agent.look([GOOD] * 3)
    agent.save()
    store = agent.desk._store
    assert store is not None
    store._disconnect()
    (tmp_path / FILE).write_bytes(b"x" * 9000)
    agent.save()
    assert agent.healthy() == (False,)
    agent.save()
    assert agent.healthy() == (True,)
    agent.end()
    again = Running(tmp_path, clock)
    assert again.slo("ttft")["events"] == 3
    again.end()


def test_a_directory_is_one_agents(tmp_path: Path) -> None:
    first = Running(tmp_path, ManualClock())
    with pytest.raises(SourceError, match="another ufwatch keeps its budgets there; give each its own --state-dir"):
        Running(tmp_path, ManualClock())
    first.end()
    Running(tmp_path, ManualClock()).end()


def test_a_directory_that_cannot_be_made_leaves_the_counts_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    clock = ManualClock()
    agent = Running(tmp_path / "file" / "state", clock)
    agent.look([])
    agent.look([GOOD])
    agent.save()
    assert agent.slo("ttft")["events"] == 1
    assert [r.message for r in caplog.records] == ["error budgets cannot be saved; they are kept in memory"]
    # Once it can be made, nothing that was counted is lost, nor what an earlier agent had kept.
    (tmp_path / "file").unlink()
    before = Store(tmp_path / "file" / "state")
    start = int(clock.wall() // 3600 * 3600)
    before.save(Batch(number=1, rows=(Row("t", "ttft", HOUR, start, Tally(7, 1, 2)),)))
    before.close()
    agent.save()
    assert agent.slo("ttft")["events"] == 8
    agent.end()
    assert Running(tmp_path / "file" / "state", clock).slo("ttft")["events"] == 8


def test_the_clock_set_back_over_a_restart_loses_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    first = Running(tmp_path, clock)
    first.look([])
    first.look([GOOD] * 3 + [BAD])
    first.end()
    clock.wall_offset -= 50 * 86400
    second = Running(tmp_path, clock)
    second.look([GOOD] * 3 + [BAD])
    assert second.slo("ttft")["events"] == 4
    clock.advance(700)  # it stays so, and is believed
    assert second.slo("ttft")["events"] == 4
    second.end()
    third = Running(tmp_path, clock)
    assert third.slo("ttft")["events"] == 4
    third.end()
    with sqlite3.connect(tmp_path / FILE) as database:
        (ahead,) = database.execute("SELECT count(*) FROM bucket WHERE start > ?", (clock.wall(),)).fetchone()
    database.close()
    assert ahead == 0


def test_a_moment_of_a_wrong_clock_ages_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    agent = Running(tmp_path, clock)
    agent.look([])
    agent.look([GOOD] * 3)
    clock.wall_offset += 400 * 86400
    agent.look([GOOD] * 5)
    agent.save()
    clock.wall_offset -= 400 * 86400
    agent.look([GOOD] * 6)
    assert agent.slo("ttft")["events"] == 6
    agent.end()


def test_events_leave_the_budget_after_its_window(tmp_path: Path) -> None:
    clock = ManualClock()
    week = Objective(id="ttft", metric="ttft", threshold_seconds=1.0, ratio=0.95, window_days=7)
    agent = Running(tmp_path, clock, [week])
    agent.look([])
    agent.look([BAD] * 10)
    clock.advance(8 * 86400)
    assert agent.slo("ttft")["state"] == "no_data"
    agent.end()
    assert Running(tmp_path, clock, [week]).slo("ttft")["events"] == 0


def test_an_objective_that_means_something_else_begins_anew(tmp_path: Path) -> None:
    clock = ManualClock()
    one = Objective(id="ttft", metric="ttft", threshold_seconds=1.0, ratio=0.95)
    first = Running(tmp_path, clock, [one])
    first.look([])
    first.look([GOOD] * 3)
    first.end()
    stricter = Objective(id="ttft", metric="ttft", threshold_seconds=1.0, ratio=0.99)
    second = Running(tmp_path, clock, [stricter])
    assert second.slo("ttft")["events"] == 3  # the same events, judged by another share
    second.end()
    other = Objective(id="ttft", metric="ttft", threshold_seconds=0.5, ratio=0.95)
    third = Running(tmp_path, clock, [other])
    assert third.slo("ttft")["events"] == 0
    third.end()


def test_a_target_that_comes_back_finds_its_budget() -> None:
    clock = ManualClock()
    agent = Running(None, clock)
    agent.look([])
    agent.look([GOOD] * 3)
    agent.desk.close("t")
    assert agent.desk.report()["targets"] == []
    clock.advance(600)
    assert agent.desk.open("t") is agent.book
    agent._feed = type(agent._feed)(whole_run=False, began=clock.monotonic())
    agent.look([GOOD] * 5)
    assert agent.slo("ttft")["events"] == 5
    assert agent.slo("availability")["unknown"] == 600
    assert agent.counter("ttft") == (3, 0, 0)


def test_a_store_is_read_beside_a_running_agent(tmp_path: Path) -> None:
    clock = ManualClock()
    agent = Running(tmp_path, clock)
    agent.look([])
    agent.look([GOOD] * 3 + [BAD])
    agent.save()
    told = offline.report(tmp_path, clock.wall())
    live = agent.desk.report()
    assert [t["slos"] for t in told["targets"]] == [t["slos"] for t in live["targets"]]
    agent.end()
    with pytest.raises(SourceError, match="no such file; give the --state-dir of the agent"):
        offline.report(tmp_path / "nowhere", clock.wall())


def test_a_batch_that_was_held_up_does_not_undo_a_later_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows: list[Row] = []
    store.save(Batch(number=2, rows=(Row("t", "ttft", HOUR, 3600, Tally(2)),)))
    store.save(Batch(number=1, rows=(Row("t", "ttft", HOUR, 3600, Tally(1)),)))
    store.load(rows.append)
    assert [row.tally.events for row in rows] == [2]
    store.close()


def test_another_version_is_left_alone(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / FILE)
    database.execute("PRAGMA user_version=9")
    database.close()
    store = Store(tmp_path)
    with pytest.raises(StoreError, match="written by another version of ufwatch"):
        store.save(Batch(number=1))
    store.close()


def test_the_last_save_is_made_at_the_end_and_counted_once(tmp_path: Path) -> None:
    clock = ManualClock()
    agent = Running(tmp_path, clock)
    agent.look([])
    agent.save()
    agent.look([GOOD])
    agent.desk.close("t")  # as the agent does before its last save
    done(agent.desk.finish())
    assert offline.report(tmp_path, clock.wall())["targets"][0]["slos"][0]["events"] == 1
    again = Running(tmp_path, clock)
    again.look([GOOD] * 2)
    assert again.slo("ttft")["events"] == 2
    again.end()
