"""On a GPU with GPM: is our SM utilization the truth? Run as a script; ufwatch need not be installed.

    python tests/gpu/h200_truth.py [--pynvml DIR] [--points 2.0] [--loads cupy|nvcc]

Kernels occupy a known number of streaming multiprocessors and stamp when each block began and ended by the card's own
timer; from the stamps, cut to the windows between our polls, follows the truth. Takes about 75 s. The last line is
JSON; exit code 1 when a load is more than ``--points`` off or was polled fewer than five times.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ufwatch.clock import SystemClock  # noqa: E402 - the path comes first
from ufwatch.config import TargetConfig  # noqa: E402
from ufwatch.core.gpu import mapping, mapping_samples  # noqa: E402
from ufwatch.decode.gpu import GpuSnapshot  # noqa: E402
from ufwatch.sources.nvml import NvmlSource  # noqa: E402

SOURCE = Path(__file__).with_name("spin.cu")
SHARED_BYTES = 120 * 1024  # an H200's SM has 228 KiB: a second block does not fit
POLLS = 6
POLL_SECONDS = 1.0
SETTLE_SECONDS = 1.5
BUSY_SECONDS = SETTLE_SECONDS + (POLLS + 2) * POLL_SECONDS
DUTY_NS, PERIOD_NS = 5_000_000, 10_000_000


class Stamp(NamedTuple):
    """One block, in seconds of ``time.monotonic``."""

    begin: float
    end: float
    sm: int


class Loads(Protocol):
    """A way to run the kernels. ``run`` blocks until they are done."""

    sms: int

    def run(self, blocks: int, busy_ns: int, period_ns: int, repeats: int) -> list[Stamp]: ...


class CupyLoads:
    """Kernels compiled by nvrtc, launched from a thread of this process."""

    def __init__(self) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        module = self._cupy.RawModule(code=SOURCE.read_text())
        self._spin, self._now = module.get_function("spin"), module.get_function("now")
        self._spin.max_dynamic_shared_size_bytes = SHARED_BYTES
        self.sms = int(self._cupy.cuda.Device().attributes["MultiProcessorCount"])

    def run(self, blocks: int, busy_ns: int, period_ns: int, repeats: int) -> list[Stamp]:
        cupy = self._cupy
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            offset = self._offset(stream)
            stamps = cupy.zeros((repeats, blocks, 3), dtype=cupy.uint64)
            due = time.monotonic_ns()
            for repeat in range(repeats):
                arguments = (cupy.uint64(busy_ns), stamps[repeat])
                self._spin((blocks,), (64,), arguments, shared_mem=SHARED_BYTES)
                stream.synchronize()
                due += period_ns
                if repeat + 1 < repeats:
                    time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
            rows = cupy.asnumpy(stamps, stream=stream).reshape(-1, 3).tolist()
        return _stamps(rows, offset)

    def _offset(self, stream: Any) -> int:
        tick = self._cupy.zeros(1, dtype=self._cupy.uint64)
        best: tuple[int, int] | None = None
        for _ in range(50):
            stream.synchronize()
            before = time.monotonic_ns()
            self._now((1,), (1,), (tick,))
            stream.synchronize()
            took = time.monotonic_ns() - before
            if best is None or took < best[0]:
                best = took, before + took // 2 - int(tick.get()[0])
        assert best is not None
        return best[1]


class NvccLoads:
    """The same file compiled by nvcc and run as a process of its own."""

    def __init__(self) -> None:
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        self._program = Path(tempfile.mkdtemp()) / "spin"
        subprocess.run([nvcc, "-O2", "-arch=native", "-o", self._program, SOURCE], check=True)
        torch: Any = importlib.import_module("torch")
        self.sms = int(torch.cuda.get_device_properties(0).multi_processor_count)

    def run(self, blocks: int, busy_ns: int, period_ns: int, repeats: int) -> list[Stamp]:
        words = [str(word) for word in (blocks, busy_ns, period_ns, repeats, SHARED_BYTES)]
        done = subprocess.run([self._program, *words], check=True, capture_output=True, text=True)
        first, *rows = done.stdout.splitlines()
        return _stamps(([int(word) for word in row.split()] for row in rows), int(first.split()[1]))


def _stamps(rows: Iterable[Sequence[int]], offset: int) -> list[Stamp]:
    return [Stamp((begin + offset) / 1e9, (end + offset) / 1e9, sm) for begin, end, sm in rows]


class Seen(NamedTuple):
    """One poll: when its GPM sample was taken, what it said, and what it cost."""

    at: float
    snapshot: GpuSnapshot
    cost_seconds: float


async def _polls(source: NvmlSource) -> list[Seen]:
    """One poll to begin a window, then ``POLLS`` more, a second apart."""
    seen: list[Seen] = []
    due = time.monotonic()
    for _ in range(POLLS + 1):
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        begin = time.monotonic()
        snapshot = await source.poll(5.0)
        seen.append(Seen(begin, snapshot, time.monotonic() - begin))
        due += POLL_SECONDS
    return seen


def _truth(stamps: Sequence[Stamp], windows: Sequence[tuple[float, float]], sms: int) -> float:
    """Share of all multiprocessors' time within the windows in which a block was resident."""
    busy = sum(max(0.0, min(s.end, stop) - max(s.begin, start)) for start, stop in windows for s in stamps)
    return busy / (sms * sum(stop - start for start, stop in windows))


async def _measure(name: str, source: NvmlSource, loads: Loads, blocks: int, *, half: bool) -> dict[str, Any]:
    stamps: list[Stamp] = []

    def work() -> None:
        repeats = int(BUSY_SECONDS * 1e9 / PERIOD_NS) if half else 1
        busy_ns = DUTY_NS if half else int(BUSY_SECONDS * 1e9)
        stamps.extend(loads.run(blocks, busy_ns, PERIOD_NS, repeats))

    worker = threading.Thread(target=work)
    if blocks:
        worker.start()
        # The program of nvcc needs a second to start; what is before the first stamp is no part of any window's truth.
        await asyncio.sleep(SETTLE_SECONDS)
    seen = await _polls(source)
    if blocks:
        await asyncio.to_thread(worker.join)
    begun = max((s.begin for s in stamps[:blocks]), default=0.0)
    ended = min((s.end for s in stamps[len(stamps) - blocks :]), default=float("inf"))
    windows, sm, busy = [], [], []
    for before, after in itertools.pairwise(seen):
        values = after.snapshot.cards[0].values if after.snapshot.cards else {}
        if before.at >= begun and after.at <= ended and "sm_utilization_ratio" in values:
            windows.append((before.at, after.at))
            sm.append(values["sm_utilization_ratio"])
            busy.append(values.get("gpu_busy_ratio"))
    known = [value for value in busy if value is not None]
    truth = _truth(stamps, windows, loads.sms) if windows else None
    mean = sum(sm) / len(sm) if sm else None
    costs = [poll.cost_seconds * 1e3 for poll in seen]
    return {
        "load": name,
        "polls": len(sm),
        "sms_used": len({s.sm for s in stamps}),
        "truth_ratio": truth,
        "sm_utilization_ratio": mean,
        "points_off": None if truth is None or mean is None else abs(mean - truth) * 100,
        "gpu_busy_ratio": sum(known) / len(known) if known else None,
        "poll_ms_mean": sum(costs) / len(costs),
        "poll_ms_max": max(costs),
    }


def _mapping(snapshot: GpuSnapshot) -> dict[str, Any]:
    """Two targets, one of which names the card: it alone has one."""
    targets = [
        TargetConfig(name="mapped", url="http://127.0.0.1:8000", gpus=("0",)),
        TargetConfig(name="unmapped", url="http://127.0.0.1:8001"),
    ]
    mapped = mapping(targets, [card.card for card in snapshot.cards])
    return {
        **{name: {"cards": len(gpus.cards), "reason": gpus.reason} for name, gpus in mapped.items()},
        "info_series": len(mapping_samples(mapped)),
    }


async def _run(loads: Loads, points: float) -> dict[str, Any]:
    source = NvmlSource(SystemClock(), gpm=True)
    begin = time.monotonic()
    first = await source.poll(60.0)
    first_ms = (time.monotonic() - begin) * 1e3
    card = first.cards[0] if first.cards else None
    results = []
    for name, blocks, half in (
        ("idle", 0, False),
        ("1 SM", 1, False),
        ("33 SMs", 33, False),
        ("66 SMs", 66, False),
        ("all SMs", loads.sms, False),
        ("all SMs, half the time", loads.sms, True),
    ):
        results.append(await _measure(name, source, loads, blocks, half=half))
        print(json.dumps(results[-1]), flush=True)
    last = await source.poll(5.0)
    await source.close()
    return {
        "test": "h200_truth",
        "device": card.name if card else None,
        "driver": first.driver_version,
        "health": {"up": first.health.up, "reason": first.health.reason, "detail": first.health.detail},
        "sms": loads.sms,
        "first_poll_ms": first_ms,
        "missing": dict(last.cards[0].missing) if last.cards else {},
        "values": dict(last.cards[0].values) if last.cards else {},
        "loads": results,
        "mapping": _mapping(last),
        "ok": all(r["polls"] >= 5 and r["points_off"] is not None and r["points_off"] <= points for r in results),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pynvml", type=Path, help="folder that holds pynvml.py, where it is not installed")
    parser.add_argument("--points", type=float, default=2.0, help="how far off a mean may be, in percentage points")
    parser.add_argument("--loads", choices=("cupy", "nvcc"), help="default: cupy, or nvcc where cupy fails")
    options = parser.parse_args()
    if options.pynvml is not None:
        sys.path.insert(0, str(options.pynvml))
    loads: Loads
    try:
        if options.loads == "nvcc":
            raise ImportError("not wanted")
        loads = CupyLoads()
    except Exception as error:  # no cupy, or one that does not fit this driver
        if options.loads == "cupy":
            raise
        print(f"without cupy ({error}): nvcc", flush=True)
        loads = NvccLoads()
    result = asyncio.run(_run(loads, options.points))
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
