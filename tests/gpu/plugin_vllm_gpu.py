"""ufwatch-vllm inside a real vLLM on a GPU, against what it does not know. Run as a script on the GPU machine:

    python3 tests/gpu/plugin_vllm_gpu.py --pack DIR [--seconds 540] [--only cold --only warm …]

DIR holds ``a`` and ``b`` of ``vllm_gpu_pack.sh`` and ``c``: a tokenizer in ``c/model``, further pure wheels that vLLM
needs in ``c/site`` (on 2026-12-01: httpcore2, truststore, lazy-importer) and, where they are not to be made there, the
interposer's ``.so`` and the plugin's wheel. Starts of the server, while the time lasts: ``cold``, ``warm`` (same
caches), ``v1-runner`` (vLLM's other model runner, which captures some graphs twice), ``bare`` (nothing of ufwatch in
it: what the plugin costs, one sample). Each is loaded by a client of its own. A stage that fails is told and the next
one begins; what was found so far is always printed (one JSON line, the last) and written below ``$OUT``.

``--site DIR --python FILE`` takes a vLLM that is installed already; with ``--cpu`` a tiny model on the CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu import vllm_site  # noqa: E402 - the path comes first
from tests.gpu.plugin_figures import compare, exported, log_lines, witnessed  # noqa: E402
from tests.gpu.vllm_load import MODEL, Removals  # noqa: E402
from tests.gpu.vllm_server import AGENT, EVENTS, Place, Server, end, get, readings, start_agent  # noqa: E402

STARTS: dict[str, dict[str, str]] = {
    "cold": {},
    "warm": {},
    "v1-runner": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    "bare": {},
}
"""Each with what its environment adds."""
START_SECONDS = {"cold": 240.0, "warm": 150.0, "v1-runner": 180.0, "bare": 150.0}
LOADS = {"steady": 24, "pressed": 100}
"""Streams of each."""
LOAD_SECONDS = {"cold": 29.0, "warm": 10.0, "v1-runner": 8.0, "bare": 10.0}
"""Of each load. The agent's page needs a minute after the start to say how even the tokens came."""
SETTLE_SECONDS = 6.0
"""An exporter writes within 5 s of a change."""
SPARE_SECONDS = 45.0
"""At the end, for stopping a server and writing."""
PRINTED = 11_000
"""Characters: only the last 12,000 of the output come back."""
SIGNALS = ("graph_compile", "pinned_alloc_success", "token_jitter", "kv_evictions")
METRICS = tuple(
    f"ufwatch_{name}"
    for name in (
        "graph_comp",
        "pinned_alloc",
        "token_jitter_s",
        "kv_evictions",
        "token_intervals_total",
        "ttft_",
        "jitter_sl",
    )
)


class Trial:
    """All stages of one run, their time and their findings."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.end = time.monotonic() + args.seconds - SPARE_SECONDS
        self.work = Path(tempfile.mkdtemp(prefix="ufwatch-gpu-"))
        self.out = Path(os.environ.get("OUT") or self.work / "out")
        self.out.mkdir(parents=True, exist_ok=True)
        self.site = args.site or self.work / "site"
        self.plugins = self.work / "plugins"
        self.pythons = (args.python, args.agent_python)
        self.interposer: Path | None = None
        self.found: dict[str, Any] = {"seconds": {}, "failed": {}, "skipped": [], "starts": {}}
        self.full: dict[str, Any] = {}

    def left(self) -> float:
        return float(self.end - time.monotonic())

    def stage(self, name: str, need_seconds: float, do: Callable[[], None]) -> None:
        """Does one stage; its failure is noted and goes no further."""
        if self.left() < need_seconds:
            self.found["skipped"].append(f"{name}: {self.left():.0f} s left of {need_seconds:.0f}")
            return
        begun = time.monotonic()
        try:
            do()
        except BaseException as error:
            self.found["failed"][name] = repr(error)[:400]
            self.full[f"{name}: traceback"] = traceback.format_exc()
            if isinstance(error, KeyboardInterrupt):
                self.end = time.monotonic()
        self.found["seconds"][name] = round(time.monotonic() - begun, 1)
        print(name, self.found["seconds"][name], "s", self.found["failed"].get(name, ""), file=sys.stderr, flush=True)
        self.save()

    def save(self) -> None:
        with contextlib.suppress(OSError):
            (self.out / "result.json").write_text(json.dumps(self.found | {"full": self.full}, indent=1, default=str))

    def prepare(self) -> None:
        if self.args.site is None:
            vllm_site.unpack(self.site, self.args.pack)
            sys.path.append(str(self.site))  # the subscriber needs zmq and msgspec
        self.plugins.mkdir(exist_ok=True)
        vllm_site.install_witness(self.plugins)
        small = 4 if self.args.cpu else None
        vllm_site.make_model(self.work / MODEL, self.args.pack / "c" / "model", small)

    def plugin(self) -> None:
        self.found["plugin"] = vllm_site.install_plugin(self.plugins, self.args.pack, self.args.python)

    def interpose(self) -> None:
        self.interposer, self.found["interposer"] = vllm_site.build_interposer(self.work, self.args.pack)

    def start(self, name: str, extra: dict[str, str], *, bare: bool = False) -> None:
        """One server from start to end, its loads between, and the comparison."""
        figures: dict[str, Any] = {}
        self.found["starts"][name] = figures
        args = self.args
        agent = once = None
        place = Place(self.work, self.out, self.site, self.plugins, *self.pythons, args.cpu, self.interposer)
        removals = Removals(f"tcp://127.0.0.1:{EVENTS}")
        removals.start()  # before vLLM, which connects
        server = Server(place, name, extra, bare=bare)
        try:
            if not bare:
                agent = start_agent(place, server)
            figures["ready_seconds"] = round(server.wait(min(START_SECONDS[name], self.left() - 35)), 1)
            for load, streams in LOADS.items():
                if args.cpu:
                    streams = streams // 8 + 1
                if load == "pressed" and not bare:
                    once = start_agent(place, server, "once", "--samples", "2", "--interval", "4", "--json")
                figures[load] = server.load(streams, LOAD_SECONDS[name] * (0.4 if args.cpu else 1.0))
            figures["errors"] = server.log.read_text(errors="replace").count(" ERROR ")
            if once is not None:
                self.tell(name, lambda: figures.update(once=readings(once, SIGNALS)))
            time.sleep(SETTLE_SECONDS)
            figures["events"] = {
                n: getattr(removals, n) for n in ("removed", "batches", "gaps", "cleared", "first", "error")
            }
            if agent is not None:
                self.tell(f"{name}: page", lambda: self.page(name))
        finally:
            removals.stop()
            for process in (once, agent, server.process):
                if process is not None:
                    end(process)
            self.gather(name, server, figures)

    def gather(self, name: str, server: Server, figures: dict[str, Any]) -> None:
        """Reads what the server left. Its exporters have written a last time by now, so nothing is missing."""
        figures["log"] = log_lines(server.log)
        shutil.copy(server.log, self.out / f"{name}.log")
        if "ready_seconds" not in figures:
            text = server.log.read_text(errors="replace")
            self.found["failed"][f"{name}: log"] = text[-1500:]
        ours, texts = exported(server.exports)
        seen = witnessed(server.witness)
        self.full[name] = {"ours": ours, "witness": seen}
        with (self.out / "exports.txt").open("a") as out:
            out.write("".join(f"==== {name}: {file}\n{text}\n" for file, text in texts.items()))
        if ours:
            figures["checks"] = compare(ours, seen, figures)

    def page(self, name: str) -> None:
        """The agent's own page, kept whole, and its lines of the exporters' signals."""
        text = get(f"http://127.0.0.1:{AGENT}/metrics")
        lines = [
            line
            for line in text.splitlines()
            if line.startswith(METRICS)
            or (line.startswith("ufwatch_signal_available") and any(f'signal="{s}"' in line for s in SIGNALS))
        ]
        self.full[f"{name}: page"] = lines
        if "page" not in self.found:
            (self.out / "page.prom").write_text(text)
            self.found["page"] = [line for line in lines if "_bucket" not in line][:40]

    def tell(self, name: str, do: Callable[[], None]) -> None:
        """Does something less than a stage, whose failure must not end the stage."""
        try:
            do()
        except Exception as error:
            self.found["failed"][name] = repr(error)[:300]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=540.0, help="wall time for everything")
    parser.add_argument("--only", action="append", choices=list(START_SECONDS))
    parser.add_argument("--site", type=Path, help="a folder with vllm in it; not unpacked then")
    parser.add_argument("--python", default=sys.executable, help="that runs vLLM")
    parser.add_argument("--agent-python", default=sys.executable, help="that runs ufwatch")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    args.pack = args.pack.resolve()
    trial = Trial(args)

    def too_late(*_: object) -> None:
        raise KeyboardInterrupt("out of time")

    signal.signal(signal.SIGALRM, too_late)
    signal.signal(signal.SIGTERM, too_late)
    signal.alarm(int(args.seconds - SPARE_SECONDS))
    try:
        trial.stage("prepare", 60, trial.prepare)
        trial.stage("plugin", 20, trial.plugin)
        trial.stage("interposer", 20, trial.interpose)
        for name, extra in STARTS.items():
            if not args.only or name in args.only:
                need_seconds = 60 + 2 * LOAD_SECONDS[name] + SETTLE_SECONDS
                trial.stage(name, need_seconds, partial(trial.start, name, extra, bare=name == "bare"))
    except KeyboardInterrupt:
        trial.found["skipped"].append("out of time")
    finally:
        signal.alarm(0)
        trial.found["passed"] = passed = ok(trial.found)
        trial.save()
        print(printed(trial.found), flush=True)
        shutil.rmtree(trial.work, ignore_errors=True)
    return 0 if passed else 1


def printed(found: dict[str, Any]) -> str:
    """One line of JSON that fits; what is left out is in ``result.json``."""
    line = json.dumps(found, default=str)
    if len(line) > PRINTED:
        line = json.dumps({key: value for key, value in found.items() if key != "page"}, default=str)
    if len(line) > PRINTED:
        starts = {name: start.get("checks", start) for name, start in found["starts"].items()}
        line = json.dumps({key: found[key] for key in ("passed", "failed", "skipped", "seconds")} | starts, default=str)
    return line[:PRINTED]


def ok(found: dict[str, Any]) -> bool:
    checks = [check for start in found["starts"].values() for check in start.get("checks", [])]
    return bool(checks) and all(agrees is not False for *_, agrees in checks) and not found["failed"]


if __name__ == "__main__":
    sys.exit(main())
