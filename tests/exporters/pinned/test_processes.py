"""Fork, exec and many processes in one directory: a file for each that pins, and no count in two of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.exporters.pinned.built import ALLOC, FAST, HERE, Built, counts, environment, files, run, running, until


def _attempts(directory: Path) -> list[float]:
    return sorted(counts(file)["attempts"] for file in files(directory).values())


def test_a_forked_child_counts_from_0_in_a_file_of_its_own(built: Built, exports: Path) -> None:
    does = (*ALLOC, *ALLOC, *ALLOC, "fork", *ALLOC, *ALLOC, "end", *ALLOC)
    run(built.program(), *does, library=built.library(), directory=exports)
    assert _attempts(exports) == [2, 4]
    assert len({file.start_wall for file in files(exports).values()}) == 2


def test_a_child_that_does_not_pin_has_no_file_and_leaves_the_parents_alone(built: Built, exports: Path) -> None:
    does = (*ALLOC, "wait", "fork", "active", "end", "wait")
    with running(built.program(), *does, library=built.library(), directory=exports) as program:
        program.waiting()
        until(lambda: bool(files(exports)))
        ((_, before),) = files(exports).items()
        program.go_on()
        program.waiting()
        until(lambda: next(iter(files(exports).values())).heartbeat_wall > before.heartbeat_wall)
        ((_, after),) = files(exports).items()
        assert (after.start_wall, counts(after)["attempts"]) == (before.start_wall, 1)


def test_a_child_forked_before_the_first_call(built: Built, exports: Path) -> None:
    run(built.program(), "fork", *ALLOC, "end", *ALLOC, *ALLOC, library=built.library(), directory=exports)
    assert _attempts(exports) == [1, 2]


def test_forks_amid_counting_threads(built: Built, exports: Path) -> None:
    """A fork at any moment of another thread's count must leave the child able to count and to end."""
    code = f"""
import ctypes, os, threading
ctypes.CDLL({str(built.runtime(12))!r})
alloc = ctypes.CDLL(None).cudaHostAlloc
stop = []
def count():
    while not stop:
        alloc(None, 4096, 0)
threads = [threading.Thread(target=count) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        for _ in range(7): alloc(None, 4096, 0)
        ctypes.CDLL(None).exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.append(1)
for thread in threads: thread.join()
"""
    run(sys.executable, "-W", "ignore", "-c", code, library=built.library(), directory=exports)
    attempts = _attempts(exports)
    assert attempts[:20] == [7] * 20
    assert len(attempts) == 21


def test_the_writer_never_allocates(built: Built, exports: Path) -> None:
    """A fork while it did would leave the child an allocator that stays locked, if that is not glibc's: seen with
    AddressSanitizer's, where the child's own writer then waited for ever and half of its counts were lost."""
    stale = exports / "pinned-000000000001.prom"
    stale.write_text("# ufwatch 1000 1000\n# seq 00000000000000000002\n")
    allocator = built.compile("allocator.so", "-fPIC", "-shared", HERE / "allocator.c")
    does = (*ALLOC, "threads", "2", "500", "fork", *ALLOC, "end", *ALLOC)
    run(built.program(), *does, library=f"{allocator}:{built.library(FAST, name='fast.so')}", directory=exports)
    assert not stale.exists()
    assert _attempts(exports) == [1, 1002]


def test_an_executed_program_inherits_it_and_starts_anew(built: Built, exports: Path) -> None:
    library, program = built.library(), str(built.program())
    code = f"import subprocess; subprocess.run([{program!r}, *{ALLOC!r}], check=True, stdout=subprocess.DEVNULL)"
    run(sys.executable, "-c", code + ";" + code, library=library, directory=exports)
    assert _attempts(exports) == [1, 1]


def test_many_at_once(built: Built, exports: Path) -> None:
    library, program = built.library(), str(built.program())
    does = [program, "threads", "2", "1000"]
    processes = [subprocess.Popen(does, env=environment(library, exports)) for _ in range(8)]
    assert [process.wait(60) for process in processes] == [0] * 8
    assert _attempts(exports) == [2000] * 8
