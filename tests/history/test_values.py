"""Values in the history that no agent has written are damage, and no reason to fall over."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.history.pages import Running
from tests.history.test_desk import short_days
from ufwatch.history.store import FILE


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO hour VALUES('t', 'noon', 2000, 1000)",
        "UPDATE hour SET lookups = 'many'",
        "UPDATE hour SET misses = 9e999",
        "INSERT INTO reference VALUES('GPU-1', 'e', 'c', 1.0, 1, zeroblob(8 * (SELECT 27)))",
        "INSERT INTO stretch VALUES('GPU-1', 'now', 'e', 'c', zeroblob(48))",
    ],
)
def test_values_that_were_never_saved_are_damage(tmp_path: Path, change: str) -> None:
    machine, agent = short_days(tmp_path)
    agent.end()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(change)
    database.close()
    again = Running(machine, tmp_path)
    assert (tmp_path / f"{FILE}.corrupt").exists()
    again.run(60.0)
    assert again.baseline() is None
    again.end()


def test_a_reset_of_no_known_card_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, agent = short_days(tmp_path, 1)
    (tmp_path / "reset-ageing-GPU-typo").touch()
    (tmp_path / "reset-ageing.bak").touch()
    agent.save()
    assert [path.name for path in tmp_path.glob("reset*")] == ["reset-ageing.bak"]  # that one asks for nothing
    assert "no such card is known, nothing begins anew" in [record.getMessage() for record in caplog.records]
    agent.end()
