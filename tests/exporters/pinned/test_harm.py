"""Everything that can go wrong with the file: it is made up for, and the engine never notices."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exporters.pinned.built import ALLOC, Built, counts, files, only, run, running, until
from ufwatch.sources.textfile import read_directory


@pytest.mark.parametrize("harm", ["truncate", "lengthen", "remove", "replace", "swap", "directory_gone"])
def test_a_file_harmed_by_somebody_is_made_again_and_counts_on(
    built: Built, exports: Path, tmp_path: Path, harm: str
) -> None:
    does = (*ALLOC, "wait", *ALLOC, "wait", *ALLOC)
    with running(built.program(), *does, library=built.library(), directory=exports) as program:
        program.waiting()
        until(lambda: bool(files(exports)))
        ((name, before),) = files(exports).items()
        path, theirs = exports / name, tmp_path / "theirs"
        size = path.stat().st_size
        if harm == "truncate":
            os.truncate(path, 100)
        elif harm == "lengthen":
            with path.open("ab") as file:
                file.write(b"ufwatch_kv_evictions_total 1\n")
        elif harm == "replace":
            path.unlink()
            path.symlink_to("/etc/passwd")
        elif harm == "swap":
            path.unlink()
            theirs.write_bytes(b"x" * size)
            path.hardlink_to(theirs)
        else:
            path.unlink()
            if harm == "directory_gone":
                exports.rmdir()
        program.go_on()
        program.waiting()
        until(lambda: any(counts(f)["attempts"] == 2 for f in read_directory(exports).files.values()))
        ((again, after),) = files(exports).items()
        assert (again, after.start_wall) == (name, before.start_wall)
        assert set(after.values) == set(before.values)
        assert path.stat().st_size == size
        assert harm != "swap" or theirs.read_bytes() == b"x" * size
        program.go_on()
        assert program.end() == 0
    assert only(exports)["attempts"] == 3


def test_a_directory_that_comes_later_gets_all_counts(built: Built, tmp_path: Path) -> None:
    directory = tmp_path / "not" / "yet"
    does = (*ALLOC, "active", "wait", *ALLOC, "wait", "active", *ALLOC)
    with running(built.program(), *does, library=built.library(), directory=directory) as program:
        program.waiting()
        directory.parent.mkdir()
        program.go_on()
        program.waiting()
        until(lambda: directory.is_dir() and bool(files(directory)))
        program.go_on()
        assert program.end() == 0
    assert only(directory)["attempts"] == 3


def test_no_directory_at_all(built: Built, exports: Path) -> None:
    there = exports / "file"
    there.write_text("in the way")
    assert run(built.program(), *ALLOC, *ALLOC, "active", library=built.library(), directory=there) == ["0", "0", "2"]
    assert there.read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not write")
def test_a_directory_that_may_not_be_written_yet(built: Built, exports: Path) -> None:
    does = ("euid", "65534", *ALLOC, "wait", *ALLOC, "wait", "euid", "0", "wait")
    exports.chmod(0o755)
    with running(built.program(), *does, library=built.library(), directory=exports) as program:
        program.waiting()
        program.go_on()
        program.waiting()
        assert os.listdir(exports) == []
        program.go_on()
        program.waiting()
        until(lambda: bool(files(exports)))
        assert only(exports)["attempts"] == 2


def test_a_limit_on_file_sizes_does_not_kill(built: Built, exports: Path) -> None:
    """A write past RLIMIT_FSIZE raises SIGXFSZ, which ends a process that has not asked for it."""
    does = ("fsize", "16", *ALLOC, "wait", *ALLOC, "fsize", "-1", "wait", "fsize", "16", *ALLOC, "wait")
    with running(built.program(), *does, library=built.library(), directory=exports) as program:
        program.waiting()
        program.go_on()
        program.waiting()
        until(lambda: bool(files(exports)) and only(exports)["attempts"] == 2)
        program.go_on()
        program.waiting()
        program.go_on()
        assert program.end() == 0
    assert only(exports)["attempts"] in (2, 3)


@contextlib.contextmanager
def _small_disk(directory: Path) -> Iterator[Path]:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "ufwatch", str(directory)], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a file system here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_full_disk_is_waited_for(built: Built, exports: Path) -> None:
    with _small_disk(exports) as disk:
        filler = disk / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(b"x" * (1 << 20))
        does = (*ALLOC, "wait", *ALLOC, "wait", *ALLOC, "wait")
        with running(built.program(), *does, library=built.library(), directory=disk) as program:
            program.waiting()
            program.go_on()
            program.waiting()
            assert os.listdir(disk) == ["filler"]
            filler.unlink()
            until(lambda: bool(files(disk)))
            assert only(disk)["attempts"] == 2
            with contextlib.suppress(OSError):
                filler.write_bytes(b"x" * (1 << 20))
            program.go_on()
            program.waiting()
            until(lambda: only(disk)["attempts"] == 3)
            program.go_on()
            assert program.end() == 0


def test_descriptors_closed_by_the_program_are_not_written_to(built: Built, exports: Path, tmp_path: Path) -> None:
    mine = [str(tmp_path / f"mine{i}") for i in range(8)]
    opens = [word for path in mine for word in ("open", path)]
    does = (*ALLOC, "wait", "close_all", *opens, *ALLOC, "wait")
    with running(built.program(), *does, library=built.library(), directory=exports) as program:
        program.waiting()
        until(lambda: bool(files(exports)))
        program.go_on()
        program.waiting()
        until(lambda: only(exports)["attempts"] == 2)
    assert [Path(path).read_bytes() for path in mine] == [b""] * 8


def test_files_of_writers_long_gone_are_removed(built: Built, exports: Path) -> None:
    now = int(time.time())
    old, young = exports / "pinned-0123456789ab.prom", exports / "pinned-0123456789ac.prom"
    old.write_text(f"# ufwatch {now - 4000}.5 {now - 9000}\n")
    young.write_text(f"# ufwatch {now - 3000}.5 {now - 9000}\n")
    kept = [
        young,
        exports / "pinned-0123456789ad.prom",
        exports / "worker-0123456789ab.prom",
        exports / "pinned-x.prom",
    ]
    kept[1].write_text("not of ours\n")
    kept[2].write_text(old.read_text())
    kept[3].write_text(old.read_text())
    run(built.program(), *ALLOC, library=built.library(), directory=exports)
    assert not old.exists()
    assert all(path.exists() for path in kept)
    assert len(os.listdir(exports)) == len(kept) + 1
