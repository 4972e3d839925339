"""Ten minutes under fifty targets that misbehave. Run ``python -m tests.performance.endurance [--minutes 10]``.

One process simulates fifty vLLM servers of all kinds. Every second one suffers cut bodies, hangs, errors, resets and
restarts at random times; the others are left alone. Another process is ``ufwatch run`` at 1 s, two of its targets with
a directory of text files, with a clock whose wall time is set forward by an hour and back by two. Every 5 s its page is
compared with what the simulators know to be true. The last line is JSON:

- ``slope_mb_per_min``: least-squares slope of resident memory after the first two minutes (< 0.1);
- ``crashes``: processes that ended, pages that did not come, and errors in the agent's log (0);
- ``invented``: values that cannot be (0): negative or not finite; a counter that fell or is above the truth since the
  agent's start; a rate of a server left alone outside of what is true of its window, give or take one scrape's time;
- ``checked``: values that were compared with a truth; ``scrapes`` and ``failures``: what the agent counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tests.performance.faulty_fleet import TARGETS
from tests.performance.judge import Judge
from tests.performance.process import resident_mb

LOOK_SECONDS = 5.0
MARGIN_SECONDS = 1.0
"""A page is made at most one deadline before the agent has all of it."""
WITH_TEXTFILE = ("sim-00", "sim-01")


def ask(process: subprocess.Popen[str], question: object) -> Any:
    """One line to a process, and its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def main(minutes: float, seed: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("w"))
        simulators = stack.enter_context(_child("faulty_fleet", str(seed), errors=sys.stderr))
        assert simulators.stdout is not None
        told = json.loads(simulators.stdout.readline())
        names = [f"sim-{at:02}" for at in range(TARGETS)]
        folders = {name: folder / name for name in WITH_TEXTFILE}
        for path in folders.values():
            path.mkdir()
        config = folder / "ufwatch.yaml"
        targets = [
            {"name": name, "url": t["url"], **({"textfile": str(folders[name])} if name in folders else {})}
            for name, t in zip(names, told, strict=True)
        ]
        config.write_text(json.dumps({"interval": 1, "gpu": {"enabled": False}, "targets": targets}))
        ask(simulators, [])  # from here on counts are the agent's
        agent = stack.enter_context(
            _child("watched_agent", str(config), str(60.0 * minutes), *map(str, folders.values()), errors=log)
        )
        judge = Judge({name: t["alone"] for name, t in zip(names, told, strict=True)})
        memory = list(looks(agent, simulators, judge, folder / "log", 60.0 * minutes))
        crashes = sum(process.poll() is not None for process in (agent, simulators))
        agent.terminate()
        agent.wait()
        lines = (folder / "log").read_text().splitlines()
        bad = [line for line in lines if "level=error" in line or "Traceback" in line]
        print(*bad[:5], sep="\n")
    steady = [(at, mb) for at, mb in memory if at >= 2.0 or minutes < 4.0]
    slope = statistics.linear_regression(*zip(*steady, strict=True)).slope if len(steady) > 1 else 0.0
    print(
        json.dumps(
            {
                "slope_mb_per_min": round(slope, 3),
                "crashes": crashes + len(bad) + judge.unanswered,
                "invented": judge.invented,
                "checked": judge.checked,
                "scrapes": int(judge.totals.get("scrapes_total", 0)),
                "failures": int(judge.totals.get("scrape_failures_total", 0)),
                "minutes": minutes,
                "rss_mb": [round(mb, 1) for _, mb in memory[:: max(1, len(memory) - 1)]],
            }
        )
    )


def looks(
    agent: subprocess.Popen[str], simulators: subprocess.Popen[str], judge: Judge, log: Path, seconds: float
) -> Iterator[tuple[float, float]]:
    """Compares every few seconds; yields minutes since the start and resident megabytes."""
    began = time.monotonic()
    due, url = began, ""
    while time.monotonic() < began + seconds and agent.poll() is None:
        due += LOOK_SECONDS
        time.sleep(max(0.0, due - time.monotonic()))
        url = url or _address(log)
        try:
            page = _read(f"{url}/metrics")
        except OSError as error:
            print(f"NO ANSWER {error}", flush=True)
            judge.unanswered += 1
            return
        said = ask(agent, "rates")
        positions = [
            (int(rate["target"].removeprefix("sim-")), int(rate["engine"]), *rate["ends"]) for rate in said["rates"]
        ]
        questions = [(at, engine, start - MARGIN_SECONDS, stop) for at, engine, start, stop in positions]
        questions += [(at, engine, start, stop - MARGIN_SECONDS) for at, engine, start, stop in positions]
        truth = ask(simulators, questions)
        judge.page(page, truth["since_start"], said["attempts"])
        windows = truth["windows"]
        for rate, most, least in zip(said["rates"], windows[: len(positions)], windows[len(positions) :], strict=True):
            judge.rate(rate, most, least)
        minutes, mb = (time.monotonic() - began) / 60.0, resident_mb(agent.pid)
        print(f"{minutes:5.2f} min  {mb:6.1f} MB  {judge.checked} checked, {judge.invented} invented", flush=True)
        yield minutes, mb


def _address(log: Path) -> str:
    found = re.search(r"address=(http://\S+)", log.read_text())
    assert found is not None, log.read_text()
    return found[1]


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


@contextlib.contextmanager
def _child(module: str, *arguments: str, errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", f"tests.performance.{module}", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, stderr=errors, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ten minutes under fifty targets that misbehave.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    main(given.minutes, given.seed)
