"""Whether ufwatch-vllm can harm: ``python tests/e2e/plugin_harm.py --vllm-dir DIR [--only NAME]``.

DIR is what ``vllm_cpu.sh`` made, with ``pip install --no-deps exporters/vllm`` done in its ``venv``.

``broken``: a real vLLM starts and answers as without the plugin while each of its hooks raises, its disk is full, its
folder cannot be, or what it hooks has another name in vLLM. The faults are made by a ``sitecustomize`` of this test;
the product has no switch for them. ``cost``: CPU seconds of all the server's processes per generated token, with the
hooks' work done 50 times and with none of it in turn (with, without, without, with), in one server; a fiftieth of the
difference is what the plugin costs, with its 95 % interval.

One line a check, one JSON line last; exit 1 if one fails. Full disk needs root (it mounts a tmpfs of 64 KiB).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.arrangement import PORT
from tests.e2e.checks import Checks
from tests.e2e.load import Load, drive
from tests.e2e.server import Server
from tests.exporters.vllm.faults import COMPILED, FAULTS, SITE, TIMES, TOGGLE, Fault

NONE = {"VLLM_PLUGINS": "none"}
"""No plugin at all: the allowlist names none that exists."""
LIMIT = 1.01
WINDOW = Load(requests=8, at_once=8, prompt=(40, 60), tokens=(60, 60), prefix=16)
STEADY = (*COMPILED, "--distributed-executor-backend", "uni")
UNI = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""For the cost, the worker within the engine core (the CPU platform allows it only so): as processes of their own both
spin for up to a second when they wait for each other, and most of their CPU time is that, now more and now less."""
STREAM = Load(requests=1, at_once=1, prompt=(40, 40), tokens=(80, 80), prefix=16)
"""One token a step, so that a step's hooks weigh most. Short, so that neighbours meet the same moment of a machine that
has other work."""


def _server(directory: Path, work: Path, env: Mapping[str, str], flags: Sequence[str]) -> Server:
    """A server whose environment has ``env`` in it."""
    work.mkdir(parents=True, exist_ok=True)
    before = dict(os.environ)
    os.environ.update(env)
    try:
        server = Server(directory, PORT, flags, work, plugin=False)
    finally:
        os.environ.clear()
        os.environ.update(before)
    if "HARM_TEST" in env:
        site = work / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        server._env["PYTHONPATH"] = str(site)
    return server


async def _answers(server: Server) -> list[str]:
    """What greedy sampling says to a few prompts, one after another: the same from every sound server."""
    texts = []
    async with aiohttp.ClientSession() as session:
        for n in range(6):
            body = {"model": "tiny", "prompt": [10 + n * 7 + i % 50 for i in range(40)], "max_tokens": 40}
            body |= {"temperature": 0.0, "ignore_eos": True}
            async with session.post(f"{server.url}/v1/completions", json=body) as answer:
                texts.append(
                    (await answer.json())["choices"][0]["text"] if answer.status == 200 else await answer.text()
                )
    return texts


@contextlib.contextmanager
def _folder(fault: Fault, work: Path) -> Iterator[Path]:
    if fault.folder != "full":
        yield work / fault.folder
        return
    full = work / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(full)], check=True)
    try:
        with contextlib.suppress(OSError):
            (full / "filler").write_bytes(b"x" * (1 << 20))
        yield full
    finally:
        subprocess.run(["umount", "-l", str(full)], check=True)


async def broken(directory: Path, work: Path, checks: Checks, only: Sequence[str] | None) -> None:
    wanted: dict[Sequence[str], list[str]] = {}
    for fault in FAULTS:
        if only and fault.name not in only:
            continue
        if fault.flags not in wanted:
            plain = _server(directory, work / f"plain-{len(wanted)}", NONE, fault.flags)
            try:
                await plain.start()
                wanted[fault.flags] = await _answers(plain)
            finally:
                await plain.stop()
        place = work / fault.name.replace(" ", "-")
        place.mkdir()
        with _folder(fault, place) as folder:
            env = {"UFWATCH_EXPORT_DIR": str(folder), **({"HARM_TEST": fault.code} if fault.code else {})}
            server = _server(directory, place, env, fault.flags)
            try:
                checks.figures[fault.name] = round(await server.start(), 1)
                said = await _answers(server)
                used = await drive(server.url, WINDOW)
                await asyncio.sleep(5.0)
                files = sorted(folder.glob("*.prom")) if folder.is_dir() else []
                text = "".join(path.read_text() for path in files)
            except Exception as error:
                checks.that(False, f"{fault.name}: starts and serves", repr(error), "no exception")
                continue
            finally:
                await server.stop()
        log = (place / "vllm.log").read_text(errors="replace")
        checks.that(said == wanted[fault.flags], f"{fault.name}: answers", said[0][:40], wanted[fault.flags][0][:40])
        checks.that(not used.failed, f"{fault.name}: requests finished", used.finished, WINDOW.requests)
        missing = [proof for proof in fault.proof if proof not in log + text]
        checks.that(not missing, f"{fault.name}: happened (not found: …)", missing, [])
        ours = [line for line in log.splitlines() if "ufwatch: " in line]
        checks.that(len(ours) < 40, f"{fault.name}: lines of ours in the log", len(ours), "a few")


def _cpu_seconds(server: Server) -> float:
    """Of every thread of the server's session so far, by the scheduler's own nanoseconds."""
    assert server._process is not None
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == server._process.pid:
                total += sum(int(path.read_text().split()[0]) for path in entry.glob("task/*/schedstat"))
    return total / 1e9


def _toggle(server: Server) -> None:
    """Takes the hooks out, or puts them back, in every process of the server that has them."""
    assert server._process is not None
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            status = (entry / "status").read_text()
            caught = int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGUSR2 - 1) & 1
            if caught and os.getsid(int(entry.name)) == server._process.pid:
                os.kill(int(entry.name), signal.SIGUSR2)


async def _window(server: Server) -> float:
    """CPU seconds per generated token of one load."""
    before = _cpu_seconds(server)
    used = await drive(server.url, STREAM)
    if used.failed:
        raise RuntimeError(f"{used.failed} requests failed")
    return (_cpu_seconds(server) - before) / used.generated


async def cost(directory: Path, work: Path, checks: Checks, rounds: int) -> None:
    """One server, the stat logger's and the writers' work done ``TIMES`` times and not at all in turn: two servers
    of one program differ by several per cent for life, whichever has the plugin."""
    env = {"UFWATCH_EXPORT_DIR": str(work / "export"), "HARM_TEST": TOGGLE, **UNI}
    server = _server(directory, work / "cost", env, STEADY)
    ratios, without = [], 0.0
    try:
        await server.start()
        for _ in range(2):
            await _window(server)
            _toggle(server)
        await asyncio.sleep(6.0)
        counted = _intervals(work / "export")
        for _ in range(rounds):
            spent = [await _window(server)]
            _toggle(server)
            spent += [await _window(server), await _window(server)]
            _toggle(server)
            spent.append(await _window(server))
            ratios.append((spent[0] + spent[3]) / (spent[1] + spent[2]))
            without += spent[1] + spent[2]
        await asyncio.sleep(6.0)
        counted = _intervals(work / "export") - counted
    finally:
        await server.stop()
    wanted = TIMES * 2 * rounds * (STREAM.tokens[0] - 1)
    checks.that(counted == wanted, "intervals counted: those of the windows with hooks only", counted, wanted)
    many = _interval(ratios)
    low, middle, high = (round(1 + (ratio - 1) / TIMES, 6) for ratio in many)
    checks.figures["cost"] = {"ratio": middle, "low": low, "high": high, "rounds": rounds, f"{TIMES}-fold": many}
    checks.figures["cost"]["ms_a_token_without"] = 1000 * without / rounds / 2
    checks.that(high <= LIMIT, "CPU per token with the plugin over without, 95 %", [low, middle, high], LIMIT)


def _intervals(export: Path) -> int:
    found = [re.search(r"token_intervals_total\{.*\} (\d+)", path.read_text()) for path in export.glob("api-*.prom")]
    return sum(int(matched[1]) for matched in found if matched)


def _interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median within its 95 % interval, by ranks: no shape is assumed, and a disturbed round weighs as any other."""
    n, ordered = len(ratios), sorted(ratios)
    off = 0.98 * math.sqrt(n)
    low, high = ordered[max(0, math.floor(n / 2 - off))], ordered[min(n - 1, math.ceil(n / 2 + off))]
    return low, statistics.median(ordered), high


async def _run(args: argparse.Namespace, work: Path) -> Checks:
    checks = Checks("harm")
    directory = args.vllm_dir.resolve()
    if args.part != "cost":
        await broken(directory, work, checks, args.only)
    if args.part != "broken":
        await cost(directory, work, checks, args.rounds)
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-dir", type=Path, required=True)
    parser.add_argument("--part", choices=["broken", "cost"], help="one of the two only")
    parser.add_argument("--only", action="append", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--rounds", type=int, default=60, help="of with, without, without, with")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it")
    args = parser.parse_args()
    os.environ.update({"VLLM_CPU_KVCACHE_SPACE": "1"})
    with contextlib.ExitStack() as stack:
        work = args.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ufwatch-harm-")))
        checks: Any = asyncio.run(_run(args, work))
    print(json.dumps({"passed": not checks.failed, "failed": checks.failed, "figures": checks.figures}))
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
