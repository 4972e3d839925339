"""The PyTorch exporter against truth on a real GPU: ``python tests/gpu/torch_observers_truth.py [--interposer X.so]``.

Plain PyTorch and the standard library, no network. Each part runs in a process of its own, which observes itself with
``exporters/torch`` and reads the text file that comes out. Prints one JSON line: ``{"ok": …, "checks": [{"name",
"expected", "got", "ok"}, …]}``; checks with ``expected`` null are findings, not tests. Ends with 1 if one is not ok.
"""

from __future__ import annotations

import argparse
import glob
import importlib
import json
import mmap
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = str(Path(__file__).parents[2] / "exporters" / "torch")
HUGE = 4 << 40
Check = dict[str, Any]


def near(name: str, expected: float, got: float, relative: float, absolute: float = 0.0) -> Check:
    within = abs(got - expected) <= max(relative * expected, absolute)
    return {"name": name, "expected": expected, "got": got, "ok": within, "tolerance": [relative, absolute]}


def same(name: str, expected: object, got: object) -> Check:
    return {"name": name, "expected": expected, "got": got, "ok": expected == got}


def holds(name: str, condition: bool, got: object) -> Check:
    return {"name": name, "expected": "true", "got": got, "ok": bool(condition)}


def finding(name: str, got: object) -> Check:
    return {"name": name, "expected": None, "got": got, "ok": True}


def read(directory: str, in_place: bool = False) -> dict[str, float]:
    """Series → value, summed over the ordinary files, or over those that are updated in place."""
    found: dict[str, float] = {}
    for path in glob.glob(os.path.join(directory, "*.prom")):
        text = _whole(path)
        assert re.match(r"# ufwatch \d+(\.\d+)? *\d+(\.\d+)? *\n", text), text[:80]
        if ("\n# seq " in text) is not in_place:
            continue
        for line in text.splitlines():
            if line.startswith("ufwatch_"):
                series, value = line.rsplit(None, 1)
                found[series.removeprefix("ufwatch_")] = found.get(series.removeprefix("ufwatch_"), 0.0) + float(value)
    return found


def settled(directory: str) -> dict[str, float]:
    """What files updated in place say once each has been written again: the interposer's thread writes by itself."""
    now, deadline = time.time(), time.monotonic() + 10
    while time.monotonic() < deadline:
        texts = [_whole(path) for path in glob.glob(os.path.join(directory, "pinned-*.prom"))]
        if texts and all(float(text.split(None, 3)[2]) > now for text in texts):
            break
        time.sleep(0.05)
    return read(directory, in_place=True)


def _whole(path: str) -> str:
    """The text; of a file that is updated in place, between two updates."""
    for _ in range(1000):
        text, again = Path(path).read_text(), Path(path).read_text()
        number = re.search(r"^# seq (\d+)$", text, re.MULTILINE)
        if number is None or (text == again and int(number[1]) % 2 == 0):
            break
        time.sleep(0.001)
    return text


def graphed(found: dict[str, float], phase: str, cache: str, what: str = "compiles_total") -> float:
    name = "graph_" + ("compiles_total" if what == "compiles_total" else "compile_seconds_total")
    return found.get(f'{name}{{cache="{cache}",phase="{phase}"}}', 0.0)


class Observed:
    """This process, observed since before torch was imported."""

    def __init__(self) -> None:
        sys.path.insert(0, SOURCE)
        self.directory = os.environ["UFWATCH_EXPORT_DIR"]
        self.exporter: Any = importlib.import_module("ufwatch_torch").observe()
        # From here on turns are taken by ``written`` alone, so that nothing has to be waited for.
        self.exporter._stop.set()
        self.exporter._thread.join(10)
        self.torch: Any = importlib.import_module("torch")

    def written(self) -> dict[str, float]:
        """What the file says after one more turn of the writer."""
        self.exporter._turn(True)
        return read(self.directory)


# -- graphs ------------------------------------------------------------------------------------------------------------


def part_graphs() -> list[Check]:
    seen = Observed()
    torch = seen.torch
    torch.cuda.init()
    weights = torch.randn(512, 512, device="cuda")
    values = torch.randn(512, 512, device="cuda")

    def body(rounds: int = 200) -> Any:
        out = values
        for _ in range(rounds):
            out = torch.tanh(out @ weights)
        return out

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        body()
    torch.cuda.synchronize()
    checks = []
    timed, kept = 0.0, []
    for _ in range(20):
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            began = time.perf_counter()
            graph.capture_begin()
            body()
            graph.capture_end()
            timed += time.perf_counter() - began
        kept.append(graph)
    direct = seen.written()
    checks.append(same("20 captures by capture_begin/capture_end", 20, graphed(direct, "capture", "unknown")))
    seconds = graphed(direct, "capture", "unknown", "seconds")
    checks.append(near("their seconds beside a timer around them", timed, seconds, 0.01, 0.001))
    outer = 0.0
    for _ in range(17):
        graph = torch.cuda.CUDAGraph()
        began = time.perf_counter()
        with torch.cuda.graph(graph):
            body()
        outer += time.perf_counter() - began
        kept.append(graph)
    managed = seen.written()
    checks.append(same("17 more by torch.cuda.graph", 37, graphed(managed, "capture", "unknown")))
    inner = graphed(managed, "capture", "unknown", "seconds") - seconds
    checks.append(holds("their seconds are within a timer around torch.cuda.graph", 0 < inner <= outer, [inner, outer]))
    for graph in kept:
        graph.replay()
    torch.cuda.synchronize()

    def raises(fault: Any) -> str:
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                body(5)
                fault()
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        return "nothing"

    checks.append(finding("a capture in which python raises", raises(lambda: 1 // 0)))
    failed = seen.written()
    checks.append(same("is no graph", 37, graphed(failed, "capture", "unknown")))
    took = graphed(failed, "capture", "unknown", "seconds") - graphed(managed, "capture", "unknown", "seconds")
    checks.append(holds("but its seconds count", took > 0, took))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    graph.replay()
    torch.cuda.synchronize()
    checks.append(same("a capture after it is counted", 38, graphed(seen.written(), "capture", "unknown")))
    gauge = 'graph_compile_last_start_seconds{cache="unknown",phase="capture"}'
    importlib.import_module("ufwatch_torch").started()
    at_start = seen.written()
    checks.append(same("start-up gauge", graphed(at_start, "capture", "unknown", "seconds"), at_start.get(gauge)))
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        body()
    later = seen.written()
    checks.append(same("it stays when the host has said that it started", at_start.get(gauge), later.get(gauge)))
    # Last: torch may not be fit for another capture after this one.
    checks.append(finding("a capture in which CUDA refuses", raises(torch.cuda.synchronize)))
    broken = seen.written()
    checks.append(same("is no graph either", 39, graphed(broken, "capture", "unknown")))
    took = graphed(broken, "capture", "unknown", "seconds") - graphed(later, "capture", "unknown", "seconds")
    checks.append(holds("and its seconds count", took > 0, took))
    again = raises(lambda: None)
    checks.append(finding("a capture after that raises", again))
    checks.append(same("counted or not", 39 + int(again == "nothing"), graphed(seen.written(), "capture", "unknown")))
    return checks


# -- compile -----------------------------------------------------------------------------------------------------------


def part_compile() -> list[Check]:
    """Run twice over one cache directory; ``UFWATCH_TRUTH`` is the label that is right."""
    label = os.environ["UFWATCH_TRUTH"]
    seen = Observed()
    torch = seen.torch
    importlib.import_module("torch._dynamo")
    values = torch.randn(64, 256, device="cuda")
    weights = torch.randn(256, 256, device="cuda", requires_grad=True)

    def forward(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = torch.nn.functional.gelu(x @ w).softmax(-1)
        return x

    def timed(call: Any) -> tuple[Any, float]:
        torch.cuda.synchronize()
        began = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        return result, time.perf_counter() - began

    timed(lambda: forward(values, weights).sum().backward())  # loads cuBLAS
    compiled = torch.compile(forward)  # imports Inductor, which is no compile
    out, ahead = timed(lambda: compiled(values, weights))
    _, back = timed(lambda: out.sum().backward())
    found = seen.written()
    labels = {c: graphed(found, "compile", c, "seconds") for c in ("cold", "warm", "unknown")}
    counts = {c: graphed(found, "compile", c) for c in ("cold", "warm", "unknown")}
    wall = ahead + back
    checks = [
        finding(f"{label}: wall of forward and backward", [ahead, back]),
        finding(f"{label}: seconds by cache", labels),
        # A warm start loads the backward's code together with the forward's.
        same(f"{label}: compiles", {"cold": 2, "warm": 1}[label], counts[label]),
        holds(f"{label}: no other compile", sum(counts.values()) == counts[label], counts),
        holds(f"{label}: seconds are not above wall", sum(labels.values()) <= wall, [sum(labels.values()), wall]),
    ]
    if label == "cold":
        checks.append(near("cold: seconds beside wall", wall, sum(labels.values()), 0.05))
    before = seen.written()
    graphs = torch.compile(lambda x: (x.sin() @ x.T).cos(), mode="reduce-overhead")
    _, whole = timed(lambda: [graphs(values) for _ in range(4)])
    after = seen.written()
    parts = {
        f"{phase} {cache}": graphed(after, phase, cache, "seconds") - graphed(before, phase, cache, "seconds")
        for phase, cache in (("compile", "cold"), ("compile", "warm"), ("compile", "unknown"), ("capture", "unknown"))
    }
    captures = graphed(after, "capture", "unknown") - graphed(before, "capture", "unknown")
    checks += [
        holds(f"{label}: inductor's own CUDA graphs are captures", captures >= 1, captures),
        holds(f"{label}: with them no second is counted twice", sum(parts.values()) <= whole, [parts, whole]),
    ]
    recompiled = graphed(after, "compile", "cold") + graphed(after, "compile", "warm")
    compiled(torch.randn(32, 256, device="cuda"), weights)
    again = seen.written()
    now = graphed(again, "compile", "cold") + graphed(again, "compile", "warm")
    checks.append(holds(f"{label}: a recompile for another shape is counted", now > recompiled, [recompiled, now]))
    return checks


# -- pinned ------------------------------------------------------------------------------------------------------------


def pin_everything(torch: Any) -> dict[str, Any]:
    """Allocations that succeed, then ones that are refused; what torch itself said to each."""
    told: dict[str, Any] = {}
    kept = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in (1, 4096, 5000, 1 << 20, 3 << 20)]
    kept += [torch.ones(size, dtype=torch.uint8).pin_memory() for size in (100, 70_000, 9 << 20)]
    del kept[3:5]
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True))  # from the pool: no allocation
    for name, refused in (("torch.empty", _empty), ("Tensor.pin_memory", _pin)):
        try:
            refused(torch)
            told[name] = "not refused"
        except Exception as error:
            told[name] = f"{type(error).__name__}({getattr(error, 'error_code', None)}): {str(error).splitlines()[0]}"
    memory = mmap.mmap(-1, 1 << 20)
    plain = torch.frombuffer(memory, dtype=torch.uint8)
    plain.fill_(1)
    cudart = torch.cuda.cudart()
    told["register"] = [int(cudart.cudaHostRegister(plain.data_ptr(), 1 << 20, 0)) for _ in range(2)]
    told["unregister"] = int(cudart.cudaHostUnregister(plain.data_ptr()))
    # The machine may not give 4 TiB of addresses; then nobody was asked to pin them.
    told["refusals"] = 1 if told["Tensor.pin_memory"].startswith("OSError") else 2
    told["stats"] = {
        key: value
        for key, value in torch.cuda.host_memory_stats().items()
        if key in ("num_host_alloc", "allocated_bytes.allocated", "reserved_bytes.allocated", "host_alloc_time.total")
    }
    del kept
    return told


def _empty(torch: Any) -> None:
    torch.empty(HUGE, dtype=torch.uint8, pin_memory=True)


def _pin(torch: Any) -> None:
    """4 TiB of address space without memory behind: the copy is never begun."""
    reserved = mmap.mmap(-1, HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    torch.frombuffer(reserved, dtype=torch.uint8).pin_memory()


def _size(stats: dict[str, float]) -> float:
    return stats.get("reserved_bytes.allocated", stats["allocated_bytes.allocated"])


def part_pinned() -> list[Check]:
    seen = Observed()
    torch = seen.torch
    early = seen.written()
    torch.cuda.init()
    told = pin_everything(torch)
    found = seen.written()
    stats = told["stats"]
    by_text = {series: value for series, value in found.items() if "failures" in series}
    return [
        holds("no series before CUDA is initialised", not any("pinned" in name for name in early), sorted(early)),
        finding("what torch said", told),
        same("double registration as CUDA tells it", [0, 712], told["register"]),
        same(
            "attempts: successes, one seen refusal, two registrations",
            stats["num_host_alloc"] + told["refusals"] - 1 + 2,
            found["pinned_alloc_attempts_total"],
        ),
        same("bytes: torch's and the registered MiB", _size(stats) + (1 << 20), found["pinned_alloc_bytes_total"]),
        same("refused Tensor.pin_memory of 4 TiB (torch.empty's is missed)", told["refusals"], sum(by_text.values())),
        finding("failures by code", by_text),
        same("already registered", 1, found.get('pinned_alloc_failures_total{code="712"}')),
        holds("seconds", found["pinned_alloc_seconds_total"] * 1e6 >= stats["host_alloc_time.total"], found),
    ]


def part_interposed() -> list[Check]:
    seen = Observed()
    torch = seen.torch
    torch.cuda.init()
    before = read(seen.directory, in_place=True)
    told = pin_everything(torch)
    own, found = seen.written(), settled(seen.directory)
    stats = told["stats"]
    failures = {series: value for series, value in found.items() if "failures" in series and value}
    return [
        holds("ufwatch_torch exports nothing beside it", not any("pinned" in name for name in own), sorted(own)),
        finding("interposer: before the first pin", before),
        finding("interposer: what torch said", told),
        same(
            "interposer: attempts: successes, two refusals, two registrations",
            stats["num_host_alloc"] + told["refusals"] + 2,
            found.get("pinned_alloc_attempts_total", 0) - before.get("pinned_alloc_attempts_total", 0),
        ),
        same("interposer: refusals", told["refusals"] + 1, sum(failures.values())),
        same("interposer: already registered", 1, found.get('pinned_alloc_failures_total{code="already_registered"}')),
        finding("interposer: failures by code", failures),
        same(
            "interposer: bytes: torch's and the registered MiB",
            _size(stats) + (1 << 20),
            found.get("pinned_alloc_bytes_total", 0) - before.get("pinned_alloc_bytes_total", 0),
        ),
        holds("interposer: seconds", found.get("pinned_alloc_seconds_total", 0) > 0, found),
    ]


def part_memlock() -> list[Check]:
    """RLIMIT_MEMLOCK of 64 KiB: does it refuse anything, and is that what the interposer counts?"""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    seen = Observed()
    torch = seen.torch
    torch.cuda.init()
    before = read(seen.directory, in_place=True)
    said: dict[str, Any] = {}
    kept = []
    try:
        kept.append(torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True))
        said["cudaHostAlloc 64 MiB"] = "granted"
    except Exception as error:
        said["cudaHostAlloc 64 MiB"] = str(error).splitlines()[0]
    memory = mmap.mmap(-1, 64 << 20)
    plain = torch.frombuffer(memory, dtype=torch.uint8)
    plain.fill_(1)
    code = int(torch.cuda.cudart().cudaHostRegister(plain.data_ptr(), 64 << 20, 0))
    said["cudaHostRegister 64 MiB"] = code
    found = settled(seen.directory)
    refused = sum(value for series, value in found.items() if "failures" in series)
    expected = int(said["cudaHostAlloc 64 MiB"] != "granted") + int(code != 0)
    attempts = found.get("pinned_alloc_attempts_total", 0) - before.get("pinned_alloc_attempts_total", 0)
    said["uid"] = os.getuid()
    return [
        finding("memlock limit of 64 KiB", said),
        same("memlock: refusals as torch met them", expected, refused),
        same("memlock: attempts", 2, attempts),
    ]


# -- all ---------------------------------------------------------------------------------------------------------------


def run(part: str, directory: str, **env: str) -> list[Check]:
    export = tempfile.mkdtemp(dir=directory)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--part", part],
        env={**os.environ, "UFWATCH_EXPORT_DIR": export, **env},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    seconds = round(time.perf_counter() - began, 2)
    lines = done.stdout.splitlines()
    try:
        checks: list[Check] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return [{"name": part, "expected": "checks", "got": (done.stdout + done.stderr)[-3000:], "ok": False}]
    return [*checks, same(f"{part}: the process ends well ({seconds} s)", 0, done.returncode)]


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--interposer", help="the C interposer's shared object, to be preloaded")
    arguments.add_argument("--part", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.part:
        checks = globals()[f"part_{given.part}"]()
        failed = {series: value for series, value in read(os.environ["UFWATCH_EXPORT_DIR"]).items() if "hook" in series}
        print(json.dumps([*checks, same(f"{given.part}: no hook failed", {}, failed)]))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        checks = run("graphs", directory)
        cache = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(directory, "inductor"), "TRITON_CACHE_DIR": directory + "/tr"}
        for label in ("cold", "warm"):
            checks += run("compile", directory, UFWATCH_TRUTH=label, **cache)
        checks += run("pinned", directory)
        if given.interposer:
            preload = {"LD_PRELOAD": os.path.abspath(given.interposer)}
            checks += run("interposed", directory, **preload)
            checks += run("memlock", directory, **preload)
    ok = all(check["ok"] for check in checks)
    print(json.dumps({"ok": ok, "failed": [check["name"] for check in checks if not check["ok"]], "checks": checks}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
