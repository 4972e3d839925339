"""What the interposer of pinned allocations costs. Run as a script; ufwatch need not be installed.

    python tests/gpu/interposer_overhead.py [--rounds 12] [--fake]

Child processes take turns, one with the interposer preloaded and one without. Small calls: nanoseconds that one costs
more, between the children (paired) and within one child (the hooked function beside the real one). Engine-like loop
(torch): pinned staging allocated and freed at each step, copied over, a CUDA graph of a decode step replayed, tokens
copied back; its time per step with the interposer over that without: within one child, blocks of steps over the hooked
function and over the real one in turn, and between children (which differ by more than the hook costs). All with a
95 % bootstrap interval of the mean. The last line is JSON. Exit code 1 when the ratio within a child is over 1.01 at
the upper end of its interval, 2 when something could not be measured.
``--fake`` needs neither a GPU nor torch: a library that does no work, so the hook alone. About five minutes with a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "exporters" / "pinned").glob("*.c"))
BENCH = ROOT / "tests" / "exporters" / "pinned" / "bench.c"
FAKE = ROOT / "tests" / "exporters" / "pinned" / "fake_cuda.c"
BAR = 1.01
BATCHES, CALLS = 200, 50
LAYERS, HIDDEN, BATCH = 16, 2048, 32
STAGING_BYTES = (4 << 10, 64 << 10, 1 << 20)
"""Of one step: block tables and token ids, embeddings of a prompt, a swapped block."""
WARM_UP_STEPS, BLOCKS, STEPS_PER_BLOCK = 200, 200, 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="pairs of children of each kind")
    parser.add_argument("--fake", action="store_true", help="without a GPU: the hook alone")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_decode_loop()))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = _measure(Path(folder), options.rounds, fake=options.fake)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            result = {"ok": None, "error": str(error), "output": str(getattr(error, "stderr", "") or "")[-2000:]}
    print(json.dumps({"test": "interposer_overhead", **result}))
    return 2 if result["ok"] is None else 0 if result["ok"] else 1


def _measure(folder: Path, rounds: int, *, fake: bool) -> dict[str, Any]:
    library = _compile(folder / "ufwatch_pinned.so", "-fPIC", "-shared", *SOURCES, "-ldl", "-lpthread")
    if fake:
        runtime = _compile(folder / "libcudart.so.12", "-fPIC", "-shared", "-DRUNTIME", "-DSPIN=0", FAKE)
        batches, calls = BATCHES, 2000
    else:
        runtime, batches, calls = _torch_runtime(), BATCHES, CALLS
    bench = _compile(folder / "bench", BENCH, runtime, f"-Wl,-rpath,{runtime.parent}", "-ldl")
    exports = folder / "exports"
    command = [str(bench), str(runtime), str(batches), str(calls)]
    pairs = [_pair(command, library, exports, number) for number in range(rounds)]
    result: dict[str, Any] = {
        "runtime": runtime.name,
        "rounds": rounds,
        "calls_per_round_at_most": 2 * batches * calls,
        "ns_per_call": {case: _case(case, pairs) for case in pairs[0][0]},
    }
    if fake:
        return {**result, "ok": bool(result["ns_per_call"])}
    loop = [sys.executable, __file__, "--child"]
    _child(loop, None, exports)  # fills the caches of the file system and of the driver
    steps = [_pair(loop, library, exports, number) for number in range(rounds)]
    if not all(with_["attempts_seen"] for with_, _ in steps):
        raise ValueError("the interposer saw nothing of the loop: a ratio would mean nothing")
    within = _ratio([ratio for with_, _ in steps for ratio in with_["ratios"]])
    control = _ratio([ratio for _, without in steps for ratio in without["ratios"]])
    between = _ratio([with_["step_us"] / without["step_us"] for with_, without in steps])
    result["engine_loop"] = {
        "step_us_without": statistics.median(without["step_us"] for _, without in steps),
        "step_us_with": statistics.median(with_["step_us"] for with_, _ in steps),
        "ratio_within_a_child": within,
        "control_without_preload": control,
        "ratio_between_children": between,
        "pinned_calls_per_step": len(STAGING_BYTES),
        "steps_per_child": 2 * BLOCKS * STEPS_PER_BLOCK,
        "bar": BAR,
        "attempts_seen": sorted({with_["attempts_seen"] for with_, _ in steps}),
        "attempts_made": sorted({with_["attempts_made"] for with_, _ in steps}),
        "device": steps[0][0]["device"],
        "torch": steps[0][0]["torch"],
    }
    return {**result, "ok": within["high_95"] <= BAR and bool(result["ns_per_call"])}


def _ratio(ratios: Sequence[float]) -> dict[str, float]:
    mean, low, high = _interval([math.log(ratio) for ratio in ratios], draws=2000)
    return {"mean": round(math.exp(mean), 5), "low_95": round(math.exp(low), 5), "high_95": round(math.exp(high), 5)}


def _case(case: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """Medians of each child's batches, so that an interrupt does not count."""
    without = [statistics.median(bare[case]["symbol"]) for _, bare in pairs]
    with_ = [statistics.median(hooked[case]["symbol"]) for hooked, _ in pairs]
    same = [_beside(hooked[case]) for hooked, _ in pairs]
    control = [_beside(bare[case]) for _, bare in pairs]
    between = [a - b for a, b in zip(with_, without, strict=True)]
    return {
        "without": statistics.median(without),
        "added_between_children": _named(between),
        "added_within_a_child": _named(same),
        "control_without_preload": _named(control),
    }


def _named(values: Sequence[float]) -> dict[str, float]:
    mean, low, high = _interval(values)
    return {"mean": round(mean, 2), "low_95": round(low, 2), "high_95": round(high, 2)}


def _beside(took: Mapping[str, Sequence[float]]) -> float:
    return statistics.median(a - b for a, b in zip(took["symbol"], took["handle"], strict=True))


def _interval(values: Sequence[float], draws: int = 10_000) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval; the seed is fixed, so the same values give the same interval."""
    source = random.Random(1)
    means = sorted(statistics.fmean(source.choices(values, k=len(values))) for _ in range(draws))
    return statistics.fmean(values), means[round(draws * 0.025)], means[round(draws * 0.975) - 1]


def _pair(command: Sequence[str], library: Path, exports: Path, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """One child with and one without, in an order that alternates."""
    if number % 2:
        with_ = _child(command, library, exports)
        return with_, _child(command, None, exports)
    without = _child(command, None, exports)
    return _child(command, library, exports), without


def _child(command: Sequence[str], library: Path | None, exports: Path) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment["UFWATCH_EXPORT_DIR"] = str(exports)
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if not answer:
        raise ValueError(f"no case was answered as it should be; is there a GPU? {done.stderr}")
    return answer


def _compile(product: Path, *arguments: str | Path) -> Path:
    command = ["cc", "-O2", "-o", str(product), "-Wl,--no-as-needed", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return product


def _torch_runtime() -> Path:
    code = "import torch; torch.cuda.init(); print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    return _loaded_runtime(done.stdout)


def _loaded_runtime(maps: str) -> Path:
    found = re.search(r"/\S*/libcudart\S*\.so\S*", maps)
    if found is None:
        raise ValueError("torch loads no libcudart of its own (statically linked): the interposer would see nothing")
    return Path(found[0])


def _decode_loop() -> dict[str, Any]:
    """In the child: microseconds per step by the process's own symbol, and the ratio to the real function's.

    Each ratio is of two neighbouring blocks of steps, whose order alternates.
    """
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(1)
    device = torch.device("cuda")
    weights = [torch.randn(HIDDEN, HIDDEN, device=device, dtype=torch.bfloat16) / 45 for _ in range(LAYERS)]
    state = torch.randn(BATCH, HIDDEN, device=device, dtype=torch.bfloat16)
    logits = torch.empty(BATCH, HIDDEN, device=device, dtype=torch.bfloat16)
    staged = [torch.empty(size, device=device, dtype=torch.uint8) for size in STAGING_BYTES]
    answers = torch.empty(BATCH, dtype=torch.int64, pin_memory=True)

    def forward() -> None:
        hidden = state
        for weight in weights:
            hidden = torch.nn.functional.silu(hidden @ weight)
        logits.copy_(hidden)

    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    runtime = _loaded_runtime(Path("/proc/self/maps").read_text())
    real = ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)  # by its handle: past any interposer
    process = ctypes.CDLL(None)  # the process's own scope, in which the interposer comes first
    process.cudaFreeHost.argtypes = [ctypes.c_void_p]
    made = 0

    def step(allocate: Any) -> None:
        nonlocal made
        addresses = []
        for size, target in zip(STAGING_BYTES, staged, strict=True):
            address = ctypes.c_void_p()
            code = allocate(ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_uint(0))
            if code or address.value is None:
                raise RuntimeError(f"cudaHostAlloc of {size} bytes: {code}")
            made += allocate is symbol
            buffer = (ctypes.c_uint8 * size).from_address(address.value)
            target.copy_(torch.frombuffer(buffer, dtype=torch.uint8), non_blocking=True)
            addresses.append(address)
        graph.replay()
        answers.copy_(logits.argmax(dim=-1), non_blocking=True)
        torch.cuda.synchronize()
        for address in addresses:
            process.cudaFreeHost(address)

    def block(allocate: Any) -> float:
        begin = time.perf_counter()
        for _ in range(STEPS_PER_BLOCK):
            step(allocate)
        return (time.perf_counter() - begin) / STEPS_PER_BLOCK * 1e6

    symbol, handle = process.cudaHostAlloc, real.cudaHostAlloc
    for _ in range(WARM_UP_STEPS):
        step(symbol)
    blocks = []
    for number in range(BLOCKS):
        if number % 2:
            after = block(handle)
            blocks.append((block(symbol), after))
        else:
            blocks.append((block(symbol), block(handle)))
    made += torch.cuda.host_memory_stats()["num_host_alloc"]
    return {
        "step_us": statistics.median(first for first, _ in blocks),
        "ratios": [first / second for first, second in blocks],
        "attempts_made": made,
        "attempts_seen": _attempts_seen(made),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def _attempts_seen(made: int) -> int | None:
    """What this process's file says once it has been written again; None without the interposer."""
    if not hasattr(ctypes.CDLL(None), "ufwatch_pinned_active"):
        return None
    seen = 0
    deadline = time.monotonic() + 5
    directory = Path(os.environ["UFWATCH_EXPORT_DIR"])
    while seen < made and time.monotonic() < deadline:
        time.sleep(0.1)
        newest = max(directory.glob("pinned-*.prom"), key=lambda path: path.stat().st_mtime)
        found = re.search(r"^ufwatch_pinned_alloc_attempts_total (\d+)", newest.read_text(), re.MULTILINE)
        seen = int(found[1]) if found else 0
    return seen


if __name__ == "__main__":
    sys.exit(main())
