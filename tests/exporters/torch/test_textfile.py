"""The writer against the agent's own reader, with clock and waiting in the test's hand."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from ufwatch_torch import textfile
from ufwatch_torch.textfile import Exporter

from tests.exporters.torch.reading import Steps, read, values, write
from ufwatch.decode.textfile_format import SeriesKey


def test_counts_reach_the_agent(exporter: Exporter) -> None:
    exporter.add("graph_compiles_total", phase="capture", cache="cold")
    exporter.add("graph_compiles_total", 2, cache="cold", phase="capture")
    exporter.total("pinned_alloc_bytes_total", 8192)
    exporter.total("pinned_alloc_bytes_total", 4096)
    exporter.set("graph_compile_last_start_seconds", 3.5, phase="compile", cache="warm")
    exporter.set("graph_compile_last_start_seconds", 1e-7, phase="compile", cache="warm")
    exporter.add("pinned_alloc_failures_total", code="2")
    exporter.add("pinned_alloc_seconds_total", 0.0)
    write(exporter)
    found = read(exporter.path)
    assert found.unknown == 0
    assert (found.heartbeat_wall, found.start_wall) == (1000.0, 1000.0)
    assert found.values == {
        SeriesKey("graph_compiles_total", (("phase", "capture"), ("cache", "cold"))): 3.0,
        SeriesKey("pinned_alloc_bytes_total", ()): 8192.0,
        SeriesKey("graph_compile_last_start_seconds", (("phase", "compile"), ("cache", "warm"))): 1e-7,
        SeriesKey("pinned_alloc_failures_total", (("code", "out_of_memory"),)): 1.0,
        SeriesKey("pinned_alloc_seconds_total", ()): 0.0,
    }


def test_the_name_and_the_exact_text(exporter: Exporter, tmp_path: Path, steps: Steps) -> None:
    exporter.absent("pinned_alloc_bytes_total", "CUDA is\nnot there")
    exporter.add("kv_evictions_total", 2.5, engine="0")
    exporter.add("free_text_total", what='a"b\\c\nd')
    steps.now = 1001.5
    write(exporter)
    assert Path(exporter.path).parent == tmp_path / "d"
    assert re.fullmatch(r"engine-[0-9a-f]{12}\.prom", Path(exporter.path).name)
    assert Path(exporter.path).read_text() == (
        "# ufwatch 1001.500 1000.000\n"
        "# absent pinned_alloc_bytes_total: CUDA is not there\n"
        'ufwatch_free_text_total{what="a\\"b\\\\c\\nd"} 1\n'
        'ufwatch_kv_evictions_total{engine="0"} 2.5\n'
    )


def test_absent_is_void_once_there_is_a_value_and_is_logged_once(
    exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ufwatch"):
        for _ in range(3):
            exporter.absent("kv_evictions_total", "no hook")
    assert [record.levelname for record in caplog.records] == ["INFO"]
    exporter.add("kv_evictions_total", engine="0")
    write(exporter)
    assert "absent" not in Path(exporter.path).read_text()


@pytest.mark.parametrize("amount", [-1.0, math.nan, math.inf, -math.inf, "x", None, 10**400])
def test_an_amount_that_is_none_changes_nothing(exporter: Exporter, amount: float) -> None:
    for put in (exporter.add, exporter.total, exporter.set):
        put("kv_evictions_total", 1.0, engine="0")
        put("kv_evictions_total", amount, engine="0")
    write(exporter)
    assert values(exporter.path) == {"kv_evictions_total{'engine': '0'}": 1.0}


def test_labels_that_are_no_text_do_not_spoil_the_file(exporter: Exporter) -> None:
    exporter.add("kv_evictions_total", engine="0")
    exporter.add("kv_evictions_total", engine=0)  # type: ignore[arg-type]
    exporter.add("surrogate_total", what="\udc80")
    exporter.add("kv_evictions_total", engine=[])  # type: ignore[arg-type]
    write(exporter)
    assert values(exporter.path) == {"kv_evictions_total{'engine': '0'}": 2.0}
    assert 'hook_errors_total{hook="add"} 1\n' in Path(exporter.path).read_text()


def test_memory_is_bounded(exporter: Exporter) -> None:
    for number in range(textfile.MAX_SERIES + 500):
        exporter.add("runaway_total", code=str(number))
        exporter.failed(f"hook{number}")
    assert len(exporter._values) <= textfile.MAX_SERIES + 50


def test_an_idle_writer_renews_its_heartbeat_every_4_seconds(exporter: Exporter, steps: Steps) -> None:
    exporter.start()
    exporter.start()
    steps.settle()
    seen = []
    for _ in range(12):
        seen.append(read(exporter.path).heartbeat_wall)
        steps.turn()
    assert seen == [1000, 1000, 1000, 1000, 1004, 1004, 1004, 1004, 1008, 1008, 1008, 1008]


def test_a_change_is_written_at_the_next_turn_once(exporter: Exporter, steps: Steps) -> None:
    exporter.start()
    steps.settle()
    for _ in range(1000):
        exporter.add("pinned_alloc_attempts_total")
    assert values(exporter.path) == {}
    steps.turn()
    assert read(exporter.path).heartbeat_wall == 1001.0
    assert values(exporter.path) == {"pinned_alloc_attempts_total": 1000.0}
    steps.turn()
    exporter.total("pinned_alloc_attempts_total", 1000)
    steps.turn()
    assert read(exporter.path).heartbeat_wall == 1001.0


def test_readers_see_whole_files_only(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte a write: after each the directory's ``.prom`` file is the old whole one."""
    write(exporter)
    before = Path(exporter.path).read_bytes()
    real, seen = os.write, []

    def one_byte(handle: int, data: bytes) -> int:
        done = real(handle, data[:1])
        seen.append(Path(exporter.path).read_bytes())
        return done

    exporter.add("pinned_alloc_attempts_total", 7)
    monkeypatch.setattr(os, "write", one_byte)
    write(exporter)
    monkeypatch.undo()
    assert set(seen) == {before}
    assert len(seen) > 20
    assert values(exporter.path) == {"pinned_alloc_attempts_total": 7.0}
    assert os.listdir(exporter.directory) == [Path(exporter.path).name]


def test_the_agent_may_be_another_user(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        exporter = Exporter(str(tmp_path / "d"), "engine")
        write(exporter)
    finally:
        os.umask(before)
    assert os.stat(exporter.path).st_mode & 0o777 == 0o644


def test_the_role_cannot_leave_the_directory(tmp_path: Path) -> None:
    exporter = Exporter(str(tmp_path), "../x y")
    write(exporter)
    assert Path(exporter.path).parent == tmp_path
    assert Path(exporter.path).name.startswith("___x_y-")


def test_files_of_the_long_dead_are_removed_by_heartbeat(exporter: Exporter, steps: Steps) -> None:
    steps.now = 10_000.0
    directory = Path(exporter.directory)
    texts = {
        "engine-old.prom": "# ufwatch 6399.9 1\n",
        "pinned-old.prom": "# ufwatch 0000000005.000      1.5        \n# seq 00000000000000000002\n",
        "engine-young.prom": "# ufwatch 6400.1 1\n",
        "engine-future.prom": "# ufwatch 999999 1\n",
        "node.prom": "# HELP x y\nx 1\n",
        "empty.prom": "",
        "notes.txt": "# ufwatch 1 1\n",
        ".engine-0123456789ab.prom.tmp": "# ufw",
        ".engine-0123456789ac.prom.tmp": "# ufw",
    }
    directory.mkdir()
    os.mkfifo(directory / "pipe-1.prom")  # whoever opens it to read waits for its writer
    for name, text in texts.items():
        (directory / name).write_text(text)
        os.utime(directory / name, (9_999, 9_999))
    os.utime(directory / ".engine-0123456789ab.prom.tmp", (1, 1))
    (directory / "directory.prom").mkdir()
    exporter.start()
    steps.settle()
    gone = {"engine-old.prom", "pinned-old.prom", ".engine-0123456789ab.prom.tmp"}
    assert set(os.listdir(directory)) == set(texts) - gone | {"directory.prom", "pipe-1.prom", Path(exporter.path).name}


def test_callbacks_run_before_each_write_and_are_dropped_after_five_exceptions(exporter: Exporter) -> None:
    calls = {"good": 0, "bad": 0}

    def good() -> None:
        calls["good"] += 1
        exporter.total("pinned_alloc_attempts_total", calls["good"])

    def bad() -> None:
        calls["bad"] += 1
        raise ValueError("deliberate")

    exporter.collect(bad)
    exporter.collect(good)
    for _ in range(8):
        exporter._turn()
    assert calls == {"good": 8, "bad": 5}
    assert values(exporter.path) == {"pinned_alloc_attempts_total": 8.0}
    assert f'hook_errors_total{{hook="collect:{bad.__qualname__}"}} 5\n' in Path(exporter.path).read_text()


def test_a_host_that_is_told_to_end_ends(exporter: Exporter) -> None:
    """KeyboardInterrupt and SystemExit are the host's, raised by a signal while a hook happens to run."""

    def body() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exporter.guard("hook", body)


def test_eight_threads_lose_nothing(exporter: Exporter) -> None:
    rounds = 5_000
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def count(number: int) -> None:
        for _ in range(rounds):
            exporter.add("pinned_alloc_attempts_total")
            exporter.add("kv_evictions_total", 2, engine=str(number % 2))

    try:
        threads = [threading.Thread(target=count, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            write(exporter)
            read(exporter.path)
            threads[-1].join(0.01)
    finally:
        sys.setswitchinterval(interval)
    write(exporter)
    assert values(exporter.path) == {
        "pinned_alloc_attempts_total": 8.0 * rounds,
        "kv_evictions_total{'engine': '0'}": 8.0 * rounds,
        "kv_evictions_total{'engine': '1'}": 8.0 * rounds,
    }


def test_a_count_within_a_count_does_not_lock_up(exporter: Exporter) -> None:
    """A finaliser or signal handler that counts while its own thread holds the lock."""
    with exporter._lock:
        exporter.add("pinned_alloc_attempts_total")
    write(exporter)
    assert values(exporter.path) == {"pinned_alloc_attempts_total": 1.0}


def test_the_cost_of_a_count(exporter: Exporter) -> None:
    """About 0.5 µs; the bound is wide because machines that test are busy."""
    best = math.inf
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(10_000):
            exporter.add("kv_evictions_total", engine="0")
        best = min(best, (time.perf_counter() - began) / 10_000)
    assert best < 10e-6
