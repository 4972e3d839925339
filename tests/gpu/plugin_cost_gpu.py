"""What ufwatch-vllm costs a server, A/B: two vLLM servers at once on one GPU, the same but for the plugin.

    python3 tests/gpu/plugin_cost_gpu.py --pack DIR [--seconds 560]

DIR is the one of ``plugin_vllm_gpu.py``. Windows of load go to one server at a time, A B B A …; in each, STREAMS
requests of equally many tokens, the same in both windows of a pair. CPU is user and system time of the server's session
over its own window, less its idle rate, measured while the other is driven. What an exporter puts off until then (it
writes each 5 s) is lost in that rate: ``all_cpu`` ratios subtract nothing and count a server's CPU in both windows of a
pair. Ratios are with / without. ``control_*`` are the same within the server without the plugin: neighbouring windows
(each second ratio turned over), second half against first. ``per_pair``: CPU µs per token with, without; both ratios.
If time is left both start again with ports changed over, and the rounds are pooled, each with the same weight. Results
so far are always printed (one JSON line, the last) and written below ``$OUT``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu import vllm_load, vllm_site  # noqa: E402 - the path comes first
from tests.gpu.plugin_figures import exported  # noqa: E402
from tests.gpu.plugin_vllm_gpu import PRINTED, Trial  # noqa: E402
from tests.gpu.vllm_server import CACHES, QUIET, Place, Server, cpu_seconds, end  # noqa: E402

WITH, WITHOUT, PORTS = "with", "without", (8441, 8442)
FLAGS = (
    *("--dtype", "bfloat16", "--max-model-len", "2048", "--load-format", "dummy", "--gpu-memory-utilization", "0.35"),
    *("--kv-cache-memory-bytes", str(2 << 30)),  # without it each start would take the other's memory for its own
)
STREAMS, BOOTSTRAPS = 16, 4000
WINDOW_SECONDS, ROUND_SECONDS = 3.9, 205.0
TOKENS = (300, 1800)  # least and most of one request: with the prompt it must fit into --max-model-len
START_SECONDS, AGAIN_SECONDS, SPARE_SECONDS = 270.0, 170.0, 25.0
"""At most until both answer; what the round with changed ports needs in all; at the end, for stopping and writing."""


class Window(NamedTuple):
    """One window: whose, its tokens, and both servers' CPU seconds meanwhile."""

    who: str
    tokens: int
    cpu: float
    other_cpu: float
    wall: float


class OneOfTwo(Server):
    """One ``vllm serve``: nothing but the port and the plugin tells it from the other."""

    def __init__(self, place: Place, name: str, who: str, port: int) -> None:
        folder = place.work / f"{name}-{who}"
        self.name, self.exports, self.log = folder.name, folder / "exports", folder / "vllm.log"
        self.exports.mkdir(parents=True)
        self.url, self.driven = f"http://127.0.0.1:{port}", 0
        caches = {variable: str(place.work / "cache" / who / variable) for variable in CACHES}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("UFWATCH_") and k != "LD_PRELOAD"}
        env = {**kept, **QUIET, **caches, "PYTHONPATH": f"{place.plugins}:{place.site}"}
        env |= {"UFWATCH_EXPORT_DIR": str(self.exports)} if who == WITH else {"VLLM_PLUGINS": "none"}
        command = [
            *(place.python, "-m", "vllm.entrypoints.cli.main", "serve", str(place.work / vllm_load.MODEL)),
            *("--served-model-name", vllm_load.MODEL, "--host", "127.0.0.1", "--port", str(port), *FLAGS),
        ]
        self.begun = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def drive(self, tokens: int, seed: int) -> dict[str, Any]:
        """STREAMS requests of so many tokens, once each. Raises RuntimeError when any went wrong."""
        vllm_load.TOKENS = (tokens, tokens)
        seen = asyncio.run(vllm_load.load(self.url, STREAMS, 0.3, seed))  # all begin by then, none ends
        self.driven += seen["tokens"] - seen["requests"]
        if seen["failed"] or seen["tokens"] != STREAMS * tokens:
            raise RuntimeError(f"client: {seen['tokens']} of {STREAMS * tokens} tokens, {seen['error']}")
        return seen


class Cost(Trial):
    """The rounds and their windows; the rest is Trial's."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self.end = time.monotonic() + args.seconds - SPARE_SECONDS
        self.tokens = self.seed = 0  # each pair its own prompts: none is in the prefix cache

    def prepare(self) -> None:
        vllm_site.unpack(self.site, self.args.pack)
        self.plugins.mkdir(exist_ok=True)  # without the witness, which would cost something too
        vllm_site.make_model(self.work / vllm_load.MODEL, self.args.pack / "c" / "model")

    def both(self, name: str, ports: tuple[int, int]) -> None:
        """Both servers from start to end, and the windows between."""
        figures: dict[str, Any] = {"failures": 0}
        self.found["starts"][name] = figures
        place = Place(self.work, self.out, self.site, self.plugins, *self.pythons, self.args.cpu, None)
        servers: dict[str, OneOfTwo] = {}
        pairs: list[list[Window]] = self.full.setdefault(name, [])
        signal.alarm(max(1, int(self.left())))
        try:
            for who, port in zip((WITH, WITHOUT), ports, strict=True):
                servers[who] = OneOfTwo(place, name, who, port)
            ready = {who: server.wait(min(START_SECONDS, self.left() - 60)) for who, server in servers.items()}
            figures["ready_seconds"] = {who: round(seconds, 1) for who, seconds in ready.items()}
            self.warm(servers)
            until = time.monotonic() + min(ROUND_SECONDS, self.left() - 5) - 2 * WINDOW_SECONDS
            while time.monotonic() < until and figures["failures"] < 4:
                self.seed += 1
                try:
                    pairs.append([self.window(servers, who) for who in (WITH, WITHOUT)[:: (-1) ** len(pairs)]])
                    self.save()
                except (RuntimeError, OSError) as error:
                    figures["failures"] += 1
                    self.found["failed"][f"{name}: window {len(pairs)}"] = repr(error)[:300]
        finally:
            signal.alarm(0)  # from here on nothing takes long
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda server: end(server.process), servers.values()))
            if pairs:
                self.tell(f"{name}: result", lambda: figures.update(judge(pairs)))
            self.tell(f"{name}: files", lambda: self.gather_two(servers, figures))

    def warm(self, servers: dict[str, OneOfTwo]) -> None:
        """Loads both twice; the second time, once, tells how many tokens fill a window."""
        for tokens in (300, self.tokens or 600):
            self.seed += 1
            rate = min(tokens / server.drive(tokens, self.seed)["seconds"] for server in servers.values())
        self.tokens = self.tokens or max(TOKENS[0], min(TOKENS[1], int(rate * WINDOW_SECONDS)))
        self.found["tokens_per_stream"] = self.tokens

    def window(self, servers: dict[str, OneOfTwo], who: str) -> Window:
        mine, other = servers[who], servers[WITHOUT if who == WITH else WITH]
        begun, before = time.monotonic(), (cpu_seconds(mine.process.pid), cpu_seconds(other.process.pid))
        seen = mine.drive(self.tokens, self.seed)
        time.sleep(0.1)  # for what the server does once the last token is out
        spent = [cpu_seconds(s.process.pid) - was for s, was in zip((mine, other), before, strict=True)]
        return Window(who, seen["tokens"], spent[0], spent[1], time.monotonic() - begun)

    def gather_two(self, servers: dict[str, OneOfTwo], figures: dict[str, Any]) -> None:
        """Both logs, and what the plugin counted: its hooks worked."""
        for server in servers.values():
            shutil.copy(server.log, self.out / f"{server.name}.log")
            if figures["failures"] or not figures.get("pairs"):
                self.found["failed"][f"{server.name}: log"] = server.log.read_text(errors="replace")[-1200:]
        sums, _ = exported(servers[WITH].exports)
        names = {"intervals": "token_intervals_total", "hook_errors": "exporter_hook_errors_total"}
        counted = {n: sum(v for k, v in sums.items() if k.startswith(name)) for n, name in names.items()}
        figures["plugin"] = counted | {"client_intervals": servers[WITH].driven}


def judge(pairs: Sequence[Sequence[Window]]) -> dict[str, Any]:
    """One round's figures."""
    idle: dict[str, float] = {}
    cost: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    all_cpu: list[float] = []
    for who in cost:
        others = [window for pair in pairs for window in pair if window.who != who]
        idle[who] = sum(window.other_cpu for window in others) / sum(window.wall for window in others)
    for pair in pairs:
        by = {window.who: window for window in pair}
        for who, window in by.items():
            cost[who].append(1e6 * (window.cpu - idle[who] * window.wall) / window.tokens)
        all_cpu.append((by[WITH].cpu + by[WITHOUT].other_cpu) / (by[WITHOUT].cpu + by[WITH].other_cpu))
    plain, half = cost[WITHOUT], len(pairs) // 2
    rows = [[round(a, 1), round(b, 1), a / b, c] for a, b, c in zip(cost[WITH], plain, all_cpu, strict=True)]
    near = [(a / b) ** (-1) ** n for n, (a, b) in enumerate(zip(plain[::2], plain[1::2], strict=False))]
    return {
        "pairs": len(pairs),
        "cpu_us_per_token": {who: round(sum(values) / len(values), 2) for who, values in cost.items()},
        "idle_cpu_percent": {who: round(100 * rate, 2) for who, rate in idle.items()},
        "ratio": spread([[row[2] for row in rows]]),
        "all_cpu_ratio": spread([all_cpu]),
        "control_neighbours": spread([near]),
        "control_halves": spread([[b / a for a, b in zip(plain[:half], plain[half:], strict=False)]]),
        "per_pair": [[round(value, 5) for value in row] for row in rows],
    }


def spread(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Mean and geometric mean of ratios, with what resampling each round makes of the latter 95 times in 100."""
    logs = [[math.log(ratio) for ratio in ratios] for ratios in rounds if ratios]
    if not logs:
        return {"n": 0}

    def centre(drawn: Sequence[Sequence[float]]) -> float:
        return math.exp(sum(sum(values) / len(values) for values in drawn) / len(drawn))

    chosen = random.Random(1)
    again = sorted(centre([chosen.choices(values, k=len(values)) for values in logs]) for _ in range(BOOTSTRAPS))
    return {
        "n": sum(map(len, logs)),
        "mean": round(sum(sum(map(math.exp, values)) / len(values) for values in logs) / len(logs), 5),
        "geometric": round(centre(logs), 5),
        "interval_95": [round(again[int(BOOTSTRAPS * part)], 5) for part in (0.025, 0.975)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560.0, help="wall time for everything")
    parser.set_defaults(site=None, python=sys.executable, agent_python=sys.executable, cpu=False)
    args = parser.parse_args()
    args.pack = args.pack.resolve()
    cost = Cost(args)

    def too_late(*_: object) -> None:
        raise KeyboardInterrupt("out of time")

    signal.signal(signal.SIGALRM, too_late)
    signal.signal(signal.SIGTERM, too_late)
    found = cost.found
    try:
        cost.stage("prepare", 60, cost.prepare)
        cost.stage("plugin", 20, cost.plugin)
        cost.stage("first", 150, partial(cost.both, "first", PORTS))
        cost.stage("changed", AGAIN_SECONDS, partial(cost.both, "changed", PORTS[::-1]))
    except KeyboardInterrupt:
        found["skipped"].append("out of time")
    finally:
        rounds = [start for start in found["starts"].values() if start.get("pairs")]
        for column, name in ((2, "ratio"), (3, "all_cpu_ratio")):
            found[f"pooled_{name}"] = spread([[pair[column] for pair in start["per_pair"]] for start in rounds])
        counted = all(start.get("plugin", {}).get("intervals", 0) > 0 for start in rounds)
        found["passed"] = passed = bool(rounds) and counted and not found["failed"]
        cost.save()
        print(json.dumps(found, default=str)[:PRINTED], flush=True)
        shutil.rmtree(cost.work, ignore_errors=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
