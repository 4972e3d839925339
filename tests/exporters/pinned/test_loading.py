"""Finding the real functions, and what happens where there are none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exporters.pinned.built import Built, only, run

REAL_RUNTIMES = sorted(Path("/usr/local").glob("cuda-*/lib*/libcudart.so.1?"))


@pytest.mark.parametrize(
    "command",
    [
        ["/bin/true"],
        [sys.executable, "-c", "import os; assert len(os.listdir('/proc/self/task')) == 1"],
        ["/bin/sh", "-c", "/bin/true && echo on"],
    ],
)
def test_a_process_without_cuda_notices_nothing(built: Built, exports: Path, command: list[str]) -> None:
    run(*command, library=built.library(), directory=exports)
    assert os.listdir(exports) == []


@pytest.mark.parametrize(
    "does", [["alloc", "4096", "0"], ["malloc", "4096"], ["register", "4096", "0"], ["cu_alloc", "4096", "0"]]
)
def test_where_there_is_no_cuda_a_call_is_refused_and_not_counted(built: Built, exports: Path, does: list[str]) -> None:
    assert run(built.unlinked(), *does, "active", library=built.library(), directory=exports) == ["3", "2"]
    assert os.listdir(exports) == []


def test_python_asks_whether_it_is_there(built: Built, exports: Path) -> None:
    code = "import ctypes; print(ctypes.CDLL(None).ufwatch_pinned_active())"
    assert run(sys.executable, "-c", code, library=built.library(), directory=exports) == ["2"]
    assert run(sys.executable, "-c", code, library=built.library(), directory=None) == ["0"]
    code = "import ctypes; print(hasattr(ctypes.CDLL(None), 'ufwatch_pinned_active'))"
    assert run(sys.executable, "-c", code, library=None, directory=exports) == ["False"]


@pytest.mark.parametrize("directory", [None, ""])
def test_without_a_directory_calls_pass_through(built: Built, exports: Path, directory: str | None) -> None:
    does = ("alloc", "4096", "0", "alloc", "4096", "1712", "active")
    assert run(built.program(), *does, library=built.library(), directory=directory, cwd=exports) == ["0", "712", "0"]
    assert os.listdir(exports) == []


def test_a_relative_directory_is_that_of_the_start(built: Built, exports: Path, tmp_path: Path) -> None:
    does = ("chdir", "/", "alloc", "4096", "0")
    run(built.program(), *does, library=built.library(), directory="exports", cwd=tmp_path)
    assert only(exports)["attempts"] == 1


def test_a_directory_with_too_long_a_name_is_none(built: Built) -> None:
    does = ("alloc", "4096", "0", "active")
    assert run(built.program(), *does, library=built.library(), directory="/" + "x" * 5000) == ["0", "0"]


def test_a_runtime_opened_locally_is_found(built: Built, exports: Path) -> None:
    printed = run(built.unlinked(), "plugin", str(built.plugin(12)), library=built.library(), directory=exports)
    assert printed == ["0 from 12"]
    assert (only(exports)["attempts"], only(exports)["bytes"]) == (1, 4096)


def test_of_two_runtimes_each_caller_reaches_its_own(built: Built, exports: Path) -> None:
    """The program itself has 12 in the global scope, where a plain look-up would end for 13 too."""
    does = ("plugin", str(built.plugin(13)), "plugin", str(built.plugin(12)), "alloc", "4096", "0")
    without = run(built.program(), *does, library=None, directory=None)
    assert without == ["0 from 13", "0 from 12", "0"]
    assert run(built.program(), *does, library=built.library(), directory=exports) == without
    assert only(exports)["attempts"] == 3


def test_a_caller_that_asked_for_the_symbol_itself_reaches_some_runtime(built: Built, exports: Path) -> None:
    """Through ctypes the caller is libffi, which depends on no CUDA."""
    runtime = built.runtime(12)
    code = f"import ctypes; ctypes.CDLL({str(runtime)!r}); print(ctypes.CDLL(None).cudaHostAlloc(None, 4096, 1712))"
    assert run(sys.executable, "-c", code, library=built.library(), directory=exports) == ["712"]
    assert only(exports)["already_registered"] == 1


@pytest.mark.skipif(not REAL_RUNTIMES, reason="no CUDA toolkit in /usr/local")
def test_a_real_runtime_without_a_driver(built: Built, exports: Path) -> None:
    (runtime, *_) = REAL_RUNTIMES
    source = Path(__file__).with_name("plugin.c")
    plugin = built.compile("real.so", "-fPIC", "-shared", source, runtime, f"-Wl,-rpath,{runtime.parent}")
    without = run(built.unlinked(), "plugin", str(plugin), library=None, directory=None)
    assert run(built.unlinked(), "plugin", str(plugin), library=built.library(), directory=exports) == without
    found = only(exports)
    assert found["attempts"] == 1
    assert without != ["35 from 0"] or found["no_device"] == 1


def test_the_makefile_builds_it(tmp_path: Path, built: Built, exports: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    source = Path(__file__).parents[3] / "exporters" / "pinned"
    copy = tmp_path / "pinned"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("*.so"))
    subprocess.run(["make", "-s", "-C", str(copy), "check", "ufwatch_pinned.so"], check=True)
    run(built.program(), "alloc", "4096", "0", library=copy / "ufwatch_pinned.so", directory=exports)
    assert only(exports)["attempts"] == 1
