"""Builds the interposer with what it is tried against, runs programs under it and reads what it wrote."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.tools import require_tool
from ufwatch.decode.textfile import TextFile
from ufwatch.sources.textfile import read_directory

HERE = Path(__file__).parent
SOURCES = sorted((HERE.parents[2] / "exporters" / "pinned").glob("*.c"))
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")
FAST = "-DTURN_NS=200000u"
"""Turns of 0.2 ms: as many writes in a test as in hours of an engine."""


ALLOC = ("alloc", "4096", "0")
"""One allocation that succeeds, for program.c."""


class Built:
    """Products by name under ``root``, each built when first asked for."""

    def __init__(self, root: Path) -> None:
        self._compiler = require_tool("cc")
        self.root = root

    def compile(self, product: str, *arguments: str | Path) -> Path:
        path = self.root / product
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            command = [self._compiler, "-O2", "-o", str(path), *map(str, arguments)]
            subprocess.run(command, check=True, cwd=self.root)
        return path

    def library(self, *flags: str, name: str = "ufwatch_pinned.so") -> Path:
        return self.compile(name, *STRICT, "-fPIC", "-shared", *flags, *SOURCES, "-ldl", "-lpthread")

    def runtime(self, version: int = 12, *flags: str, folder: str = "fake", spin: int = 200) -> Path:
        """A libcudart whose symbols carry the version node that NVIDIA's carry."""
        name = f"libcudart.so.{version}"
        script = self.root / f"{version}.map"
        script.write_text(f"{name} {{ global: *; }};\n", encoding="ascii")
        options = (f"-DTAG={version}", f"-DSPIN={spin}", f"-Wl,-soname,{name}", f"-Wl,--version-script={script}")
        return self.compile(f"{folder}/{name}", "-fPIC", "-shared", "-DRUNTIME", *options, HERE / "fake_cuda.c", *flags)

    def driver(self, folder: str = "fake") -> Path:
        options = ("-DSPIN=200", "-Wl,-soname,libcuda.so.1")
        return self.compile(f"{folder}/libcuda.so.1", "-fPIC", "-shared", "-DDRIVER", *options, HERE / "fake_cuda.c")

    def program(self, *flags: str | Path, name: str = "program", folder: str = "fake", spin: int = 200) -> Path:
        """Linked to the fake libraries as an engine is to the real ones."""
        libraries = (self.runtime(folder=folder, spin=spin), self.driver(folder))
        # A library of weak symbols alone is not "needed".
        options = ("-Wl,--no-as-needed", f"-Wl,-rpath,{self.root / folder}", "-pthread")
        return self.compile(name, *options, HERE / "program.c", *flags, *libraries)

    def unlinked(self) -> Path:
        """The same program without any CUDA library."""
        return self.compile("unlinked", HERE / "program.c", "-pthread", "-ldl")

    def plugin(self, version: int) -> Path:
        folder = f"cuda{version}"
        runtime = self.runtime(version, folder=folder)
        rpath = f"-Wl,-rpath,{self.root / folder}"
        return self.compile(f"plugin{version}.so", "-fPIC", "-shared", HERE / "plugin.c", runtime, rpath)


def environment(library: Path | str | None, directory: Path | str | None) -> dict[str, str]:
    cleared = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "UFWATCH_EXPORT_DIR")}
    if library is not None:
        cleared["LD_PRELOAD"] = str(library)
    if directory is not None:
        cleared["UFWATCH_EXPORT_DIR"] = str(directory)
    return cleared


def run(
    program: Path | str,
    *does: str,
    library: Path | str | None,
    directory: Path | str | None,
    cwd: Path | None = None,
) -> list[str]:
    """Runs to the end; what it printed, by line. An exit code or anything on stderr is a failure of the test."""
    result = subprocess.run(
        [str(program), *does],
        env=environment(library, directory),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    return result.stdout.split("\n")[:-1]


class Running:
    """A program that goes on until it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def waiting(self) -> None:
        """Until it says that it waits."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == "waiting\n":
                return
        raise AssertionError(f"ended with {self.process.wait(10)} instead of waiting")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        return self.process.wait(30)


@contextlib.contextmanager
def running(program: Path, *does: str, library: Path | str, directory: Path) -> Iterator[Running]:
    process = subprocess.Popen(
        ["nice", "-n", "10", str(program), *does],
        env=environment(library, directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.01)


def files(directory: Path) -> dict[str, TextFile]:
    """The files as the agent reads them; any fault, refused or unknown line is a failure of the test."""
    read = read_directory(directory)
    assert read.problem is None
    assert read.faults == {}
    assert all(file.refused == file.unknown == 0 and file.sequence is not None for file in read.files.values())
    return read.files


def counts(file: TextFile) -> dict[str, float]:
    """Values by the short name, zeros of the failures left out: ``attempts``, ``bytes``, ``seconds``, codes."""
    short = {key: key.labels[0][1] if key.labels else key.metric[len("pinned_alloc_") : -6] for key in file.values}
    return {short[key]: value for key, value in file.values.items() if value or not key.labels}


def only_path(directory: Path) -> Path:
    (path,) = directory.glob("*.prom")
    return path


def only(directory: Path) -> dict[str, float]:
    (file,) = files(directory).values()
    return counts(file)
