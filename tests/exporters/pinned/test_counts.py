"""What is counted: each hook, each code, many threads, nothing twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.exporters.pinned.built import FAST, SOURCES, STRICT, Built, counts, files, only, run
from tests.tools import require_tool
from ufwatch.decode.textfile import PINNED_CODES, TextfileState, step
from ufwatch.decode.textfile_format import SeriesKey

TOO_LARGE = str(1 << 42)


def test_every_hook_counts_and_gives_back_what_it_got(built: Built, exports: Path) -> None:
    printed = run(
        built.program(),
        *("alloc", "1", "0"),
        *("malloc", "20"),
        *("register", "300", "0"),
        *("cu_alloc", "4000", "0"),
        *("cu_malloc_v2", "50000"),
        *("cu_malloc", "600000"),
        *("cu_register_v2", "7000000", "0"),
        *("cu_register", "80000000", "0"),
        *("malloc", TOO_LARGE),
        *("alloc", TOO_LARGE, "0"),
        library=built.library(),
        directory=exports,
    )
    assert printed == ["0"] * 8 + ["2"] * 2
    found = only(exports)
    assert 0 < found.pop("seconds") < 1
    assert found == {"attempts": 10, "bytes": 87654321, "out_of_memory": 2}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1, "invalid_value"),
        (2, "out_of_memory"),
        (35, "no_device"),
        (100, "no_device"),
        (304, "operating_system"),
        (712, "already_registered"),
        (801, "not_supported"),
        (999, "other"),
    ],
)
@pytest.mark.parametrize("function", ["register", "cu_register_v2"])
def test_a_failure_goes_to_its_code(built: Built, exports: Path, function: str, number: int, code: str) -> None:
    flags = str(number + 1000)
    printed = run(built.program(), function, "4096", flags, library=built.library(), directory=exports)
    assert printed == [str(number)]
    found = only(exports)
    del found["seconds"]
    assert found == {"attempts": 1, "bytes": 0, code: 1}


def test_every_code_is_there_from_the_start_and_the_agent_sums_the_files(built: Built, exports: Path) -> None:
    for _ in range(2):
        run(built.program(), "alloc", "4096", "0", "alloc", TOO_LARGE, "0", library=built.library(), directory=exports)
    read = files(exports)
    assert len(read) == 2
    for file in read.values():
        failures = {SeriesKey("pinned_alloc_failures_total", (("code", code),)) for code in PINNED_CODES}
        others = {SeriesKey(f"pinned_alloc_{name}_total", ()) for name in ("attempts", "bytes", "seconds")}
        assert set(file.values) == failures | others
    now = max(file.heartbeat_wall for file in read.values())
    _, snapshot = step(TextfileState(), read, agent_start_wall=0.0, now_wall=now)
    assert snapshot.health.up
    assert snapshot.totals[SeriesKey("pinned_alloc_attempts_total", ())] == 4
    assert snapshot.totals[SeriesKey("pinned_alloc_failures_total", (("code", "out_of_memory"),))] == 2
    assert snapshot.absolute[SeriesKey("pinned_alloc_bytes_total", ())] == 8192


def test_threads_lose_nothing(built: Built, exports: Path) -> None:
    run(built.program(), "threads", "8", "10000", library=built.library(), directory=exports)
    (file,) = files(exports).values()
    found = counts(file)
    assert (found["attempts"], found["bytes"]) == (80_000, 80_000 * 4096)


def test_a_runtime_that_reaches_the_driver_by_its_symbol_counts_once(built: Built, exports: Path) -> None:
    driver = built.driver("nested")
    built.runtime(12, "-DNESTED", str(driver), folder="nested")
    program = built.program(name="nested_program", folder="nested")
    run(program, "alloc", "4096", "0", "alloc", TOO_LARGE, "0", library=built.library(), directory=exports)
    found = only(exports)
    del found["seconds"]
    assert found == {"attempts": 2, "bytes": 4096, "out_of_memory": 1}


def test_errno_is_left_alone(built: Built, exports: Path) -> None:
    assert run(built.program(), "errno", library=built.library(), directory=exports) == ["77"]
    broken = exports / "file"
    broken.write_text("no directory")
    assert run(built.program(), "errno", library=built.library(), directory=broken) == ["77"]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    command = [compiler, *STRICT, "-O2", "-fPIC", "-shared", "-o", str(tmp_path / "x.so")]
    result = subprocess.run([*command, *map(str, SOURCES), "-ldl", "-lpthread"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(built: Built, exports: Path, sanitizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linked before the fake libraries instead of preloaded: a sanitizer has to come first among the preloaded."""
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g")
    name = sanitizer.split(",")[0]
    trivial = built.root / "trivial.c"
    trivial.write_text("int main(void) { return 0; }\n")
    try:
        works = subprocess.run([built.compile(f"trivial_{name}", trivial, *flags)], capture_output=True)
    except subprocess.CalledProcessError:
        pytest.skip(f"this compiler has no -fsanitize={sanitizer}")
    if works.returncode:
        pytest.skip(f"-fsanitize={sanitizer} does not run here: {works.stderr.decode()[:100]}")
    library = built.library(*flags, FAST, name=f"{name}.so")
    program = built.program(*flags, library, f"-Wl,-rpath,{built.root}", name=f"program_{name}")
    does = ("threads", "4", "2000", "alloc", TOO_LARGE, "0")
    assert run(program, *does, library=None, directory=exports) == ["2"]
    monkeypatch.setenv("TSAN_OPTIONS", "die_after_fork=0")
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")  # looks for the parent's threads in the child
    child = ("fork", "threads", "2", "500", "end")
    assert run(program, *does, *child, library=None, directory=exports) == ["2"]
    assert sorted(counts(file)["attempts"] for file in files(exports).values()) == [1000, 8001, 8001]


def test_what_a_call_costs() -> None:
    """Some 70 ns were measured; the bound only tells a lock or a system call from none on a busy machine."""
    require_tool("cc")
    script = Path(__file__).parents[2] / "gpu" / "interposer_overhead.py"
    command = [sys.executable, str(script), "--fake", "--rounds", "2"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert set(result["ns_per_call"]) == {"alloc_and_free", "register_and_unregister", "refused"}
    assert all(0 < case["added_within_a_child"]["mean"] < 2000 for case in result["ns_per_call"].values())
