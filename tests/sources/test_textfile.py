"""The textfile directory on a real file system, and a file system that does not answer."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
from pathlib import Path

import pytest

import ufwatch.sources.textfile as module
from ufwatch.clock import ManualClock
from ufwatch.decode.textfile import SeriesKey, TextfileSnapshot
from ufwatch.model import Reason
from ufwatch.sources.textfile import DirectoryRead, TextfileSource, read_directory

ATTEMPTS = SeriesKey("pinned_alloc_attempts_total", ())


def write(directory: Path, name: str, attempts: object, *, heartbeat: float, start: float = 1.0) -> None:
    beside = directory / f".{name}.new"
    beside.write_text(f"# ufwatch {heartbeat} {start}\nufwatch_pinned_alloc_attempts_total {attempts}\n")
    beside.replace(directory / name)


def poll(source: TextfileSource) -> TextfileSnapshot:
    return asyncio.run(source.poll())


def test_files_written_beside_and_renamed_are_summed(tmp_path: Path) -> None:
    clock = ManualClock()
    source = TextfileSource(tmp_path, clock, clock.wall())
    write(tmp_path, "worker-1.prom", 10, heartbeat=clock.wall())
    write(tmp_path, "worker-2.prom", 20, heartbeat=clock.wall())
    assert poll(source).totals == {ATTEMPTS: 0.0}
    clock.advance(5)
    write(tmp_path, "worker-1.prom", 13, heartbeat=clock.wall())
    snapshot = poll(source)
    assert snapshot.health.up
    assert snapshot.totals == {ATTEMPTS: 3.0}
    assert snapshot.absolute == {ATTEMPTS: 33.0}
    assert (snapshot.heartbeat_age_seconds, snapshot.files) == (0.0, 2)


def test_only_regular_files_with_a_fitting_name_are_read(tmp_path: Path) -> None:
    clock = ManualClock()
    write(tmp_path, "worker-1.prom", 1, heartbeat=clock.wall())
    os.mkfifo(tmp_path / "worker-fifo.prom")
    (tmp_path / "worker-link.prom").symlink_to(tmp_path / "worker-1.prom")
    (tmp_path / "worker-dir.prom").mkdir()
    (tmp_path / "noid.prom").write_text("nothing")
    (tmp_path / "worker-1.prom.tmp").write_text("nothing")
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{short}/s")
        os.rename(f"{short}/s", tmp_path / "worker-socket.prom")
        read = read_directory(tmp_path)
    assert set(read.files) == {"worker-1.prom"}
    assert read.faults == {}


def test_a_fifo_put_in_place_after_the_listing_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "worker-1.prom")
    monkeypatch.setattr(module, "_names", lambda _handle, _read: ["worker-1.prom", "worker-gone.prom"])
    read = read_directory(tmp_path)
    assert (read.files, read.faults) == ({}, {})


def test_a_cut_off_and_a_huge_file_harm_only_themselves(tmp_path: Path) -> None:
    clock = ManualClock()
    write(tmp_path, "worker-1.prom", 1, heartbeat=clock.wall())
    (tmp_path / "worker-cut.prom").write_bytes(b"# ufwatch 1 1\nufwatch_pinned_alloc_attempts_total 1")
    (tmp_path / "worker-huge.prom").write_bytes(b"#" * (module.MAX_FILE_BYTES + 1))
    snapshot = poll(TextfileSource(tmp_path, clock, clock.wall()))
    assert snapshot.health.up
    assert (snapshot.files, snapshot.faults) == (1, 2)
    reasons = {name: fault.reason for name, fault in read_directory(tmp_path).faults.items()}
    assert reasons == {"worker-cut.prom": Reason.TRUNCATED, "worker-huge.prom": Reason.OUT_OF_RANGE}


def test_of_too_many_files_the_newest_are_read_and_it_is_said(tmp_path: Path) -> None:
    clock = ManualClock()
    for number in range(module.MAX_FILES + 3):
        write(tmp_path, f"worker-{number}.prom", 1, heartbeat=clock.wall())
        os.utime(tmp_path / f"worker-{number}.prom", (number, number))
    read = read_directory(tmp_path)
    assert len(read.files) == module.MAX_FILES
    assert "worker-2.prom" not in read.files
    assert [fault.reason for fault in read.faults.values()] == [Reason.OUT_OF_RANGE]


def test_a_directory_that_is_missing_or_no_directory(tmp_path: Path) -> None:
    clock = ManualClock()
    missing = poll(TextfileSource(tmp_path / "nowhere", clock, clock.wall())).health
    assert (missing.reason, "nowhere" in missing.detail) == (Reason.NO_SOURCE, True)
    (tmp_path / "file").write_text("")
    assert poll(TextfileSource(tmp_path / "file", clock, clock.wall())).health.reason is Reason.NO_SOURCE
    assert poll(TextfileSource(tmp_path, clock, clock.wall())).health.reason is Reason.NO_SOURCE


def test_no_permission_for_the_directory_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    write(tmp_path, "worker-1.prom", 1, heartbeat=clock.wall())
    real = os.open
    refused: set[str] = {str(tmp_path)}

    def refuse(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
        if str(path) in refused:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, dir_fd=dir_fd)

    # Not by mode bits: tests may run as root, for whom they do not count.
    monkeypatch.setattr(os, "open", refuse)
    source = TextfileSource(tmp_path, clock, clock.wall())
    assert poll(source).health.reason is Reason.PERMISSION
    refused = {"worker-1.prom"}
    assert poll(source).health.reason is Reason.PERMISSION


def test_totals_outlive_a_directory_that_goes_and_comes_back(tmp_path: Path) -> None:
    clock = ManualClock()
    directory = tmp_path / "run"
    directory.mkdir()
    source = TextfileSource(directory, clock, clock.wall())
    write(directory, "worker-1.prom", 10, heartbeat=clock.wall())
    poll(source)
    write(directory, "worker-1.prom", 12, heartbeat=clock.wall())
    poll(source)
    directory.rename(tmp_path / "away")
    away = poll(source)
    assert (away.health.up, away.totals, away.absolute) == (False, {ATTEMPTS: 2.0}, {})
    (tmp_path / "away").rename(directory)
    write(directory, "worker-1.prom", 15, heartbeat=clock.wall())
    assert poll(source).totals == {ATTEMPTS: 5.0}


def test_a_wall_clock_set_right_after_the_start_makes_no_old_writer_young(tmp_path: Path) -> None:
    clock = ManualClock(wall_offset=0.0)
    source = TextfileSource(tmp_path, clock, clock.wall())
    clock.wall_offset = 1_700_000_000.0
    write(tmp_path, "worker-1.prom", 1_000, heartbeat=clock.wall(), start=clock.wall() - 3600)
    assert poll(source).totals == {ATTEMPTS: 0.0}


def in_place(sequence: int, attempts: int, heartbeat: float) -> bytes:
    return (
        f"# ufwatch {heartbeat:<20} {1:<20}\n# seq {sequence:020}\nufwatch_pinned_alloc_attempts_total {attempts:<20}\n"
    ).encode()


def test_a_file_left_half_written_in_place_is_given_up_and_read_again_later(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "pinned-1.prom"
    source = TextfileSource(tmp_path, clock, clock.wall())
    path.write_bytes(in_place(3, 5, clock.wall()))
    snapshot = poll(source)
    assert (snapshot.health.reason, snapshot.faults) == (Reason.INCONSISTENT, 1)
    path.write_bytes(in_place(4, 5, clock.wall()))
    assert poll(source).absolute == {ATTEMPTS: 5.0}


def test_a_change_between_two_reads_of_the_sequence_number_means_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pinned-1.prom"
    path.write_bytes(in_place(2, 5, 1.0))
    real = module._pread_all
    calls = 0

    def changed_behind_the_read(handle: int) -> bytes:
        nonlocal calls
        calls += 1
        data = real(handle)
        if calls < 3:
            path.write_bytes(in_place(2 + 2 * calls, 5 + calls, 1.0))
        return data

    monkeypatch.setattr(module, "_pread_all", changed_behind_the_read)
    read = read_directory(tmp_path)
    assert calls == 3
    assert read.files["pinned-1.prom"].values == {ATTEMPTS: 7.0}


def test_a_busy_writer_in_place_is_never_seen_torn(tmp_path: Path) -> None:
    path = tmp_path / "pinned-1.prom"
    allocated = SeriesKey("pinned_alloc_bytes_total", ())

    def content(sequence: int, value: int) -> bytes:
        return in_place(sequence, value, 1.0) + f"ufwatch_pinned_alloc_bytes_total {value:<20}\n".encode()

    path.write_bytes(content(0, 0))
    stop = threading.Event()

    def keep_writing() -> None:
        first = content(0, 0).find(b"# seq ") + len(b"# seq ")
        with path.open("r+b", buffering=0) as file:
            value = 0
            while not stop.is_set():
                value += 1
                body = content(0, value)
                lines = body.split(b"\n")
                at = len(lines[0]) + 1 + len(lines[1]) + 1
                os.pwrite(file.fileno(), f"{2 * value - 1:020}".encode(), first)
                os.pwrite(file.fileno(), lines[2] + b"\n", at)
                os.pwrite(file.fileno(), lines[3] + b"\n", at + len(lines[2]) + 1)
                os.pwrite(file.fileno(), f"{2 * value:020}".encode(), first)
                stop.wait(0.0005)

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        seen = [read_directory(tmp_path).files.get("pinned-1.prom") for _ in range(300)]
    finally:
        stop.set()
        writer.join()
    whole = [file.values for file in seen if file is not None]
    assert whole
    assert all(values[ATTEMPTS] == values[allocated] for values in whole)


def test_a_hung_file_system_blocks_nothing_and_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    write(tmp_path, "worker-1.prom", 10, heartbeat=clock.wall())
    answer, calls = threading.Event(), 0
    real = read_directory

    def hung(directory: Path) -> DirectoryRead:
        nonlocal calls
        calls += 1
        answer.wait(30)
        return real(directory)

    monkeypatch.setattr(module, "read_directory", hung)

    async def scenario() -> None:
        source = TextfileSource(tmp_path, clock, clock.wall(), timeout_seconds=0.05)
        polled = asyncio.create_task(source.poll())
        await asyncio.sleep(0)  # the loop turns while the read hangs
        assert not polled.done()
        assert (await polled).health.reason is Reason.TIMEOUT
        assert (await source.poll()).health.reason is Reason.TIMEOUT
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await source.poll()
        assert calls == 1
        answer.set()
        source._timeout_seconds = 30
        assert (await source.poll()).absolute == {ATTEMPTS: 10.0}
        assert (await source.poll()).health.up
        assert calls == 2

    asyncio.run(scenario())


def test_an_answer_after_the_loop_is_gone_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(module, "read_directory", lambda _directory: answer.wait(30) and DirectoryRead())
    clock = ManualClock()
    before = set(threading.enumerate())
    assert poll(TextfileSource(tmp_path, clock, clock.wall(), timeout_seconds=0.01)).health.reason is Reason.TIMEOUT
    (reader,) = set(threading.enumerate()) - before
    answer.set()
    reader.join(30)
    assert not reader.is_alive()


def test_a_bug_in_reading_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_directory: Path) -> DirectoryRead:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "read_directory", broken)
    clock = ManualClock()
    source = TextfileSource(tmp_path, clock, clock.wall())
    with pytest.raises(ZeroDivisionError):
        poll(source)
    monkeypatch.undo()
    assert poll(source).health.reason is Reason.NO_SOURCE


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    write(tmp_path, "worker-1.prom", 1, heartbeat=1.0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        read_directory(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
