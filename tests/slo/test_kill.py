"""kill -9 in a loop while events arrive: nothing counted twice, nothing lost."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.page_server import PageServer
from tests.processes import COMMAND, environment, until
from tests.slo.worker import COUNTS, page
from ufwatch.slo import offline

KILLS = int(os.environ.get("UFWATCH_TEST_KILLS", "8"))
ROOT = Path(__file__).parents[2]


def test_a_process_killed_while_it_saves(tmp_path: Path) -> None:
    """It is killed at any instant of a loop that does nothing but count and save."""
    chance = random.Random(7)
    counts, state = tmp_path / "counts", tmp_path / "state"
    begun = (100, 20)
    counts.write_bytes(COUNTS.pack(*begun))
    stop, happened = threading.Event(), [*begun]

    def arrive() -> None:
        with counts.open("r+b", buffering=0) as file:
            while not stop.wait(0.001):
                happened[0] += chance.randrange(3)
                happened[1] += chance.randrange(2)
                os.pwrite(file.fileno(), COUNTS.pack(*happened), 0)

    arriving = threading.Thread(target=arrive)
    for life in range(KILLS + 1):
        command = [sys.executable, "-W", "error", "-m", "tests.slo.worker", str(state), str(counts)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, env=environment()) as worker:
            try:
                assert worker.stdout is not None
                assert worker.stdout.readline() == b"up\n"
                if life == 0:
                    until(lambda: _saved(state))
                    arriving.start()
                if life < KILLS:
                    time.sleep(chance.random() * 0.15)
                else:  # the last one sees everything
                    stop.set()
                    arriving.join()
                    until(lambda: _events(state) == sum(happened) - sum(begun))
            finally:
                worker.kill()
    ttft = _ttft(state)
    assert ttft["events"] == sum(happened) - sum(begun)
    assert ttft["bad_low"] == ttft["bad_high"] == happened[1] - begun[1]


def test_the_agent_killed_while_requests_arrive(tmp_path: Path) -> None:
    """``ufwatch run`` over HTTP; also while nobody looks, requests go on."""
    chance = random.Random(8)
    happened = [1000, 50]
    stop = threading.Event()
    with PageServer(page(*happened)) as server:

        def arrive() -> None:
            while not stop.wait(0.01):
                happened[0] += chance.randrange(3)
                happened[1] += chance.randrange(2)
                server.body = page(*happened)

        arriving = threading.Thread(target=arrive)
        arguments = ["run", "--target", f"t={server.url}", "--interval", "1s", "--port", "0", "--no-gpu"]
        command = [*COMMAND, *arguments, "--state-dir", str(tmp_path), "--log-level", "error"]
        begun = tuple(happened)
        for life in range(3):
            with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as agent:
                try:
                    if life == 0:
                        until(lambda: _saved(tmp_path))
                        arriving.start()
                    if life < 2:
                        time.sleep(1.0 + chance.random())
                    else:
                        stop.set()
                        arriving.join()
                        until(lambda: _events(tmp_path) == sum(happened) - sum(begun), 25)
                finally:
                    agent.kill()
                    errors = agent.stderr.read() if agent.stderr is not None else b""
                assert errors == b""
    ttft = _ttft(tmp_path)
    assert ttft["events"] == sum(happened) - sum(begun)
    assert ttft["bad_low"] == ttft["bad_high"] == happened[1] - begun[1]


def _ttft(state: Path) -> dict[str, float]:
    (target,) = offline.report(state, time.time())["targets"]
    (found,) = (slo for slo in target["slos"] if slo["slo"] == "ttft")
    result: dict[str, float] = found
    return result


def _events(state: Path) -> float:
    return _ttft(state)["events"]


def _saved(state: Path) -> bool:
    """Whether the engine has been saved once."""
    try:
        database = sqlite3.connect(f"file:{state}/slo.sqlite?mode=ro", uri=True)
        try:
            return bool(database.execute("SELECT 1 FROM last WHERE engines != '{}'").fetchone())
        finally:
            database.close()
    except sqlite3.Error:
        return False


def test_a_clean_end_saves_the_last_state_once(tmp_path: Path) -> None:
    with PageServer(page(10, 5)) as server:
        arguments = ["run", "--target", f"t={server.url}", "--interval", "1s", "--port", "0", "--no-gpu"]
        with subprocess.Popen([*COMMAND, *arguments, "--state-dir", str(tmp_path)], env=environment()) as agent:
            until(lambda: _saved(tmp_path))
            server.body = page(12, 8)
            asked = server.asked
            until(lambda: server.asked > asked + 3)
            agent.terminate()
            assert agent.wait(10) == 0
        assert (_ttft(tmp_path)["events"], _ttft(tmp_path)["bad_low"]) == (5, 3)
        server.body = page(20, 8)
        with subprocess.Popen([*COMMAND, *arguments, "--state-dir", str(tmp_path)], env=environment()) as agent:
            until(lambda: _events(tmp_path) == 13)
            agent.terminate()
            assert agent.wait(10) == 0
    assert (_ttft(tmp_path)["events"], _ttft(tmp_path)["bad_low"]) == (13, 3)
