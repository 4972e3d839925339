"""What was learned through full disks, damaged files, second agents, kills and clocks that jump."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.history.pages import Machine, Running
from tests.processes import environment
from ufwatch.clock import ManualClock
from ufwatch.core.baseline import HourCount
from ufwatch.errors import SourceError
from ufwatch.history.store import FILE, Batch, HourRow, Store, Takes
from ufwatch.slo.store import Store as SloStore
from ufwatch.statefile import StoreError

HOUR, DAY = 3600.0, 86400.0
ROOT = Path(__file__).parents[2]


def short_days(state: Path, days: int = 4) -> tuple[Machine, Running]:
    """An agent that has seen the same hour of so many days, and nothing between."""
    machine = Machine(ManualClock())
    agent = Running(machine, state)
    agent.run(HOUR / 2, every=60.0)
    for _ in range(days):
        agent.run(HOUR, every=60.0)
        agent.run(23 * HOUR, every=1800.0)
    agent.run(120.0, every=60.0)
    return machine, agent


def test_a_full_disk_is_told_once_and_made_up_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine, agent = short_days(tmp_path, 1)
    agent.save()
    store = agent.history._store
    assert store is not None
    used = store._connect().execute("PRAGMA page_count").fetchone()[0]
    original = store._connect

    def full() -> sqlite3.Connection:
        connection = original()
        connection.execute(f"PRAGMA max_page_count={used}")
        return connection

    store._connect = full  # type: ignore[method-assign]
    for _ in range(3):
        agent.run(23 * HOUR, every=60.0)
        agent.run(HOUR, every=20.0)
        agent.save()
    failed = "learned baselines cannot be saved; they are kept in memory"
    assert [r.getMessage() for r in caplog.records if r.name == "ufwatch.history"] == [failed]
    up = {s.labels[0][1]: s.value for s in agent.history.samples() if s.metric == "source_up"}
    assert up == {"history_store": 0.0}
    known = agent.baseline()
    assert known == pytest.approx(0.4, abs=1e-3)
    store._connect = original  # type: ignore[method-assign]
    store._disconnect()
    agent.save()
    agent.end()
    again = Running(machine, tmp_path)
    again.run(60.0)
    assert again.baseline() == known
    again.end()


@pytest.mark.parametrize("damage", ["text", "torn", "page"])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    machine, agent = short_days(tmp_path)
    assert agent.baseline() is not None
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
    again = Running(machine, tmp_path)
    assert "the learned baselines could not be read and begin anew" in [r.getMessage() for r in caplog.records]
    assert (tmp_path / f"{FILE}.corrupt").exists()
    again.run(60.0)
    assert again.baseline() is None
    again.save()
    assert again.history._keeper.life.health.up
    again.end()


def test_damage_while_running_costs_nothing(tmp_path: Path) -> None:
    machine, agent = short_days(tmp_path)
    known = agent.baseline()
    assert known is not None
    agent.save()
    store = agent.history._store
    assert store is not None
    store._disconnect()
    (tmp_path / FILE).write_bytes(b"this is no database at all" * 40)
    agent.save()  # finds it out …
    agent.save()  # … and writes everything into a new file
    agent.end()
    again = Running(machine, tmp_path)
    again.run(60.0)
    assert again.baseline() == known
    assert again.history.cards.sets["GPU-1"].cells
    again.end()


def test_a_file_that_cannot_be_read_yet_is_read_later(tmp_path: Path) -> None:
    machine, agent = short_days(tmp_path)
    known = agent.baseline()
    agent.end()
    hidden = tmp_path.with_name("hidden")
    tmp_path.rename(hidden)
    tmp_path.write_bytes(b"")  # where the directory should be mounted
    late = Running(machine, tmp_path)
    late.run(300.0, every=60.0)
    late.save()
    assert late.baseline() is None
    tmp_path.unlink()
    hidden.rename(tmp_path)
    late.save()
    late.run(60.0)
    assert late.baseline() == known
    late.end()


def test_one_directory_is_one_agents(tmp_path: Path) -> None:
    machine, agent = short_days(tmp_path, 0)
    with pytest.raises(SourceError, match="another ufwatch keeps its history there; give each its own --state-dir"):
        Running(machine, tmp_path)
    # The budgets of the same agent lie beside it.
    beside = SloStore(tmp_path)
    beside.load(lambda _: None)
    beside.close()
    agent.end()


def test_a_clock_that_was_wrong_at_the_start_takes_nothing_away(tmp_path: Path) -> None:
    machine, agent = short_days(tmp_path)
    known = agent.baseline()
    agent.end()
    left = machine.clock.now
    for wrong in (-30 * 365 * DAY, 30 * 365 * DAY):
        machine.clock.wall_offset += wrong
        lost = Running(machine, tmp_path)
        lost.run(HOUR, every=60.0)
        assert lost.baseline() is None
        lost.save()
        machine.clock.wall_offset -= wrong
        lost.run(300.0, every=60.0)  # not believed at once, as it may be the new one that is wrong
        lost.run(900.0, every=60.0)
        lost.end()
        machine.clock.now = left
        again = Running(machine, tmp_path)
        machine._at = machine.clock.now
        again.run(60.0)
        assert again.baseline() == known
        again.end()


@pytest.mark.parametrize("jump", [3 * DAY, -3 * DAY])
def test_a_clock_that_jumps_for_a_moment_changes_nothing(tmp_path: Path, jump: float) -> None:
    machine, agent = short_days(tmp_path)
    known = agent.baseline()
    machine.clock.wall_offset += jump
    agent.run(300.0, every=60.0)
    agent.save()
    assert agent.baseline() == known
    machine.clock.wall_offset -= jump
    agent.run(300.0, every=60.0)
    assert agent.baseline() == known
    agent.end()


def test_old_hours_are_thrown_away_by_a_steady_clock_alone(tmp_path: Path) -> None:
    machine, agent = short_days(tmp_path, 1)
    agent.end()
    machine.clock.now += 20 * DAY
    machine._at = machine.clock.now
    again = Running(machine, tmp_path)

    def kept() -> int:
        with sqlite3.connect(tmp_path / FILE) as database:
            (found,) = database.execute("SELECT count(*) FROM hour").fetchone()
            return int(found)

    again.run(HOUR, every=60.0)
    again.save()
    before = kept()
    again.run(6 * HOUR, every=60.0)
    again.save()
    assert before > 1
    assert kept() <= 9
    again.end()


def test_a_batch_that_was_held_up_does_not_undo_a_later_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(Batch(2, hours=(HourRow("a", HourCount(5, 2000, 200)),)))
    store.save(Batch(1, hours=(HourRow("a", HourCount(5, 3000, 100)),)))
    found: list[HourRow] = []
    store.load(Takes(found.append, lambda *_: None, lambda _: None))
    assert found == [HourRow("a", HourCount(5, 2000, 200))]
    store.close()


def test_a_store_that_fails_delays_no_look(tmp_path: Path) -> None:
    """A disk that hangs holds its thread, and nothing else."""
    machine, agent = short_days(tmp_path, 0)
    store = agent.history._store
    assert store is not None
    saved = store.save

    def slow(batch: Batch) -> frozenset[str]:
        time.sleep(0.5)
        return saved(batch)

    store.save = slow  # type: ignore[method-assign]

    async def look_while_it_saves() -> float:
        saving = asyncio.create_task(agent.history.save())
        await asyncio.sleep(0)
        begun = time.monotonic()
        for _ in range(5):
            machine.clock.advance(5.0)
            machine.work()
            await agent.agent.cycle(agent.agent.targets["a"])
        took = time.monotonic() - begun
        assert not saving.done()
        await saving
        return took

    assert asyncio.run(look_while_it_saves()) < 0.4
    store.save = saved  # type: ignore[method-assign]
    agent.end()


WORKER = """
import sys
from pathlib import Path
from tests.history.pages import Machine, Running
from ufwatch.clock import ManualClock
machine = Machine(ManualClock(now=float(sys.argv[2])))
agent = Running(machine, Path(sys.argv[1]))
print("up", flush=True)
while True:
    agent.run(60.0, every=10.0)
    agent.save()
    print(machine.clock.now, sum(r.sums[0] for r in agent.history.cards.sets["GPU-1"].cells.values()), flush=True)
"""


def test_a_process_killed_while_it_saves_loses_nothing_it_has_saved(tmp_path: Path) -> None:
    chance, now, stretches = random.Random(9), 1000.0, 0.0
    for _ in range(4):
        command = [sys.executable, "-W", "error", "-c", WORKER, str(tmp_path), str(now)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment(), text=True) as worker:
            assert worker.stdout is not None
            try:
                assert worker.stdout.readline() == "up\n"
                time.sleep(0.2 + 0.3 * chance.random())
            finally:
                worker.kill()
            lines = [line.split() for line in worker.stdout.read().splitlines() if len(line.split()) == 2]
        assert lines
        now, saved = float(lines[-1][0]), float(lines[-1][1])
        assert saved > stretches
        stretches = saved
        now += 120.0
        held = Running(Machine(ManualClock(now=now)), tmp_path)
        kept = sum(each.sums[0] for each in held.history.cards.sets["GPU-1"].cells.values())
        assert kept in (stretches, stretches + 1)  # one may have been saved and not printed
        stretches = kept
        held.end()


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("PRAGMA user_version=99")
    store = Store(tmp_path)
    with pytest.raises(StoreError, match="another version of ufwatch"):
        store.save(Batch(1))
    store.close()


def test_what_was_looked_up_is_counted_in_its_hour_to_the_scrape(tmp_path: Path) -> None:
    machine = Machine(ManualClock())
    agent = Running(machine, tmp_path)
    agent.run(3 * HOUR, every=7.0)
    agent.end()
    with sqlite3.connect(tmp_path / FILE) as database:
        counts = [lookups for (lookups,) in database.execute("SELECT lookups FROM hour ORDER BY hour")]
    assert len(counts) == 4
    assert counts[1:-1] == pytest.approx([5 * HOUR] * 2, abs=2 * 7.0 * 5)
    assert sum(counts) == pytest.approx(5 * 3 * HOUR, abs=5 * 70.0)  # from the second look to the last fold
