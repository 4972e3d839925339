"""The writer where the host's world breaks: full disks, vanished directories, forks, ends."""

from __future__ import annotations

import errno
import logging
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ufwatch_torch import textfile
from ufwatch_torch.textfile import Exporter

from tests.exporters.torch.reading import read, values, write


def _no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["open", "write", "fchmod", "replace"])
def test_a_failing_file_system_is_said_once_and_tried_again(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    write(exporter)
    with caplog.at_level(logging.INFO, "ufwatch"), monkeypatch.context() as broken:
        exporter.add("pinned_alloc_attempts_total", 3)
        broken.setattr(os, call, _no_space)
        for _ in range(5):
            exporter._turn()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert values(exporter.path) == {}
    assert os.listdir(exporter.directory) == [Path(exporter.path).name]
    with caplog.at_level(logging.INFO, "ufwatch"):
        exporter._turn()
        exporter._turn()
    assert values(exporter.path) == {"pinned_alloc_attempts_total": 3.0}
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_file_size_limit_is_like_a_full_disk(exporter: Exporter) -> None:
    """The kernel's own short write, then its refusal: the old file stays."""
    write(exporter)
    for number in range(200):
        exporter.add("kv_evictions_total", engine=str(number))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        exporter._turn()
        assert values(exporter.path) == {}
        assert os.listdir(exporter.directory) == [Path(exporter.path).name]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    exporter._turn()
    assert len(values(exporter.path)) == 200


def test_a_vanished_directory_comes_back(exporter: Exporter, caplog: pytest.LogCaptureFixture) -> None:
    write(exporter)
    os.unlink(exporter.path)
    os.rmdir(exporter.directory)
    exporter.add("pinned_alloc_attempts_total")
    exporter._turn()
    assert values(exporter.path) == {"pinned_alloc_attempts_total": 1.0}
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["a file", "below a file", "/proc"])
def test_an_impossible_directory_does_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    (tmp_path / "file").write_text("")
    where = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "d", "/proc": Path("/proc/none/d")}[kind]
    exporter = Exporter(str(where), "engine")
    exporter.add("pinned_alloc_attempts_total")
    for _ in range(3):
        exporter._turn()
    exporter.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_unwritable_directory_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as directory:

        def body() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            exporter = Exporter(directory, "engine")
            exporter._turn()
            exporter._turn()
            exporter.close()
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert "Permission denied" in caplog.text

        os.chmod(directory, 0o555)
        _in_child(body)
        assert os.listdir(directory) == []


def _in_child(body: Callable[[], None]) -> None:
    """Runs ``body`` in a forked child; its assertions fail the test."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_its_own_file_and_counts_from_0(tmp_path: Path) -> None:
    now = [1000.0]
    exporter = Exporter(str(tmp_path), "engine", wall=lambda: now[0])
    exporter.add("pinned_alloc_attempts_total", 5)
    exporter.start()
    parent = exporter.path
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with exporter._lock:
            holding.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait(10)

    def body() -> None:
        # The lock was held by a thread that does not exist here.
        threads = threading.active_count()
        assert exporter.path != parent
        exporter.add("pinned_alloc_attempts_total", 2)
        assert threading.active_count() == threads + 1
        exporter.close()

    now[0] = 2000.0
    _in_child(body)
    release.set()
    holder.join()
    exporter.close()
    files = {read(path).start_wall: values(path) for path in tmp_path.glob("*.prom")}
    assert files == {1000.0: {"pinned_alloc_attempts_total": 5.0}, 2000.0: {"pinned_alloc_attempts_total": 2.0}}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_counts_nothing_leaves_no_file(tmp_path: Path) -> None:
    exporter = Exporter(str(tmp_path), "engine")
    exporter.start()

    def body() -> None:
        assert threading.active_count() == 1
        exporter.close()

    _in_child(body)
    exporter.close()
    assert os.listdir(tmp_path) == [Path(exporter.path).name]


def _python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    source = str(Path(textfile.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(directory)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_end_of_the_process_writes_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from ufwatch_torch.textfile import Exporter; e = Exporter(sys.argv[1], 'engine'); e.start()\n"
        "e.collect(lambda: e.total('pinned_alloc_bytes_total', 9)); e.add('pinned_alloc_attempts_total')"
    )
    done = _python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    [path] = tmp_path.glob("*.prom")
    assert values(path) == {"pinned_alloc_attempts_total": 1.0, "pinned_alloc_bytes_total": 9.0}


def test_a_hanging_file_system_does_not_hold_up_the_end(tmp_path: Path) -> None:
    code = (
        "import sys, threading, time; from ufwatch_torch import textfile\n"
        "hangs = threading.Event()\n"
        "def hang(*_): hangs.set(); time.sleep(1000)\n"
        "textfile.replace = hang; e = textfile.Exporter(sys.argv[1], 'engine'); e.start(); hangs.wait()"
    )
    began = time.monotonic()
    assert _python(code, tmp_path).returncode == 0
    assert time.monotonic() - began < 20


def test_the_host_waits_for_no_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for the directory to be made: on a mount that hangs that would be for ever."""
    asked = []
    monkeypatch.setattr(os, "makedirs", lambda *_, **__: asked.append(threading.current_thread().name))
    exporter = Exporter(str(tmp_path / "d"), "engine")
    assert asked == []
    exporter.start()
    exporter.close()
    assert set(asked) == {"ufwatch-export"}


def test_a_log_handler_that_raises_does_not_end_the_writer(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raising(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            raise ValueError("deliberate")

    handler = Raising()
    monkeypatch.setattr(textfile.LOG, "handlers", [handler])
    turns = iter([False, False, True])
    exporter._given_wait = lambda _: next(turns)
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", _no_space)
        exporter._run()
    assert next(turns, None) is None, "three turns, though each failed to say that it failed"
    exporter._turn()
    assert values(exporter.path) == {}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_begins_with_its_first_count(tmp_path: Path) -> None:
    """An agent that starts between the fork and the count has missed nothing, so the file counts from 0 for it."""
    now = [1000.0]
    exporter = Exporter(str(tmp_path), "engine", wall=lambda: now[0])
    exporter.start()

    def body() -> None:
        now[0] = 1500.0
        exporter.add("pinned_alloc_attempts_total", 2)
        exporter.close()

    _in_child(body)
    exporter.close()
    assert sorted(read(path).start_wall for path in tmp_path.glob("*.prom")) == [1000.0, 1500.0]


def test_close_is_final_and_may_be_called_again(exporter: Exporter) -> None:
    exporter.add("pinned_alloc_attempts_total")
    exporter.close()
    exporter.close()
    exporter.start()
    exporter.add("pinned_alloc_attempts_total")
    assert values(exporter.path) == {"pinned_alloc_attempts_total": 1.0}
    assert exporter._thread is None


def test_a_process_that_cannot_have_another_thread_goes_on(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", refuse)
        exporter.start()
    exporter.add("pinned_alloc_attempts_total")
    assert "can't start new thread" in caplog.text
