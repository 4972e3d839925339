"""Both sides of the comparison of ``plugin_vllm_gpu.py``: what the exporters wrote, and what the witness, the client,
the KV events and the server's log say. Nothing of ufwatch is imported: the files are read by their published format.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.gpu.vllm_load import moments

Check = tuple[str, float, float, bool | None]
"""What, our figure, the other one, and whether they agree: None where nothing exact is there to be compared with."""

_LINE = re.compile(r"(ufwatch_\w+)(?:\{([^}]*)\})?\s+(\S+)")
_LOG = {
    "compile_seconds": r"torch\.compile (?:took|takes) ([\d.]+) s in total",
    "capture_seconds": r"Graph capturing finished in ([\d.]+) secs",
    "init_seconds": r"init engine \(.*?\) took ([\d.]+) s",
    "compilation_seconds": r"\(compilation: ([\d.]+) s\)",
    "dynamo_seconds": r"Dynamo bytecode transform time: ([\d.]+) s",
    "compiled_ranges": r"Compiling a graph for compile range .*? takes ([\d.]+) s",
    "loaded_ranges": r"Directly load the compiled graph\(s\) for compile range .*? took ([\d.]+) s",
    "warmup_seconds": r"[Ii]nitial profiling/warmup run took ([\d.]+) s",
}
_SAID = ("Using V2 Model Runner", "ufwatch: no ", "Directly load AOT", "saved AOT", "load failure")
_ESTIMATES = "Profiling CUDA graph memory"
CAPTURES = 'phase="capture"'
WARM_UP = "graph_warmup_last_start_seconds"


def exported(folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    """Sums over the exporters' files, by metric and labels (gauges too: one worker), and each file's text."""
    sums: dict[str, float] = defaultdict(float)
    texts = {path.name: path.read_text(errors="replace") for path in sorted(folder.glob("*.prom"))}
    for text in texts.values():
        for line in text.splitlines():
            matched = None if line.startswith("#") else _LINE.match(line)
            if matched:
                labels = ",".join(sorted(part for part in (matched[2] or "").split(",") if part))
                sums[f"{matched[1].removeprefix('ufwatch_')}{{{labels}}}"] += float(matched[3])
    return dict(sums), texts


def witnessed(folder: Path) -> dict[str, Any]:
    """The witness's files: sums over all steps, and each process's last state."""
    intervals: list[float] = []
    first: list[float] = []
    slices: dict[int, list[float]] = defaultdict(list)
    for path in sorted(folder.glob("steps-*.jsonl")):
        for line in path.read_text().splitlines():
            wall, step, ttft = json.loads(line)
            intervals += step
            first += ttft
            slices[int(wall // 10)] += step
    judged = [moments(values)["deviation"] for values in slices.values() if len(values) > 1]
    return {
        **moments(intervals),
        "first": len(first),
        "over_0.8": sum(value > 0.8 for value in first),
        "over_2.3": sum(value > 2.3 for value in first),
        "slices": len(judged),
        "slices_over": sum(deviation > 0.08 for deviation in judged),
        "processes": [json.loads(path.read_text()) for path in sorted(folder.glob("process-*.json"))],
    }


def log_lines(log: Path) -> dict[str, Any]:
    """What the server's log says of compiling and capturing, in seconds, and lines worth reading."""
    text = log.read_text(errors="replace") if log.exists() else ""
    found: dict[str, Any] = {}
    for name, pattern in _LOG.items():
        values = [float(value) for value in re.findall(pattern, text)]
        if values:
            found[name] = values[0] if len(values) == 1 else values[:4]
    found["estimates"] = _ESTIMATES in text
    lines = [line for line in text.splitlines() if any(word in line for word in _SAID)]
    found["said"] = [line.split("] ", 1)[-1][:130] for line in lines][:5]
    return found


def compare(ours: Mapping[str, float], seen: Mapping[str, Any], figures: Mapping[str, Any]) -> list[Check]:
    """Every figure of ours beside the others'."""
    checks: list[Check] = []

    def check(
        what: str,
        our: float,
        theirs: float,
        *,
        within: float = 0.0,
        by: float = 1e-9,
        counted: bool = True,
        least: bool = False,
    ) -> None:
        close = our >= theirs if least else math.isclose(our, theirs, rel_tol=within, abs_tol=by)
        checks.append((what, short(our), short(theirs), close if counted else None))

    def of(metric: str, *labels: str) -> float:
        return sum(
            value
            for key, value in ours.items()
            if key.split("{")[0] == metric and all(label in key for label in labels)
        )

    n, total, squares = (of(f"token_interval{part}_total") for part in ("s", "_seconds", "_squared"))
    deviation = math.sqrt(max(0.0, squares / n - (total / n) ** 2)) if n else 0.0
    check("intervals / witness", n, seen["n"])
    check("interval sum / witness", total, seen["sum"], within=1e-9)
    check("jitter / witness", deviation, seen["deviation"], within=1e-6)
    clients = [figures[load] for load in ("steady", "pressed") if load in figures]
    if clients:
        whole = moments_of(clients)
        check("jitter / client's events", deviation, whole["deviation"], counted=False)
        check("intervals / client's tokens - requests", n, whole["tokens"] - whole["requests"])
        check("TTFT over 0.8 s / client's", of("ttft_over_total", '"0.8"'), whole["ttft_over_0.8"], counted=False)
    check("TTFT requests / witness", of("ttft_requests_total"), seen["first"])
    check("TTFT over 0.8 s / witness", of("ttft_over_total", '"0.8"'), seen["over_0.8"])
    check("TTFT over 2.3 s / witness", of("ttft_over_total", '"2.3"'), seen["over_2.3"])
    check("jitter slices / witness", of("jitter_slices_total"), seen["slices"], counted=False)
    check("jitter slices over 80 ms / witness", of("jitter_slices_over_total"), seen["slices_over"], counted=False)
    events = figures.get("events")
    if events is not None and not events["error"]:
        whole_stream = not events["gaps"] and events["first"] in (0, None)
        check("evictions / BlockRemoved", of("kv_evictions_total"), events["removed"], counted=whole_stream)
    check("probe look-ups >= misses", of("page_table_lookups_total"), of("page_table_misses_total"), least=True)
    _graphs(check, of, seen["processes"], figures.get("log", {}))
    _pins(check, of, seen["processes"])
    check("hook errors", of("exporter_hook_errors_total"), 0)
    return checks


def _graphs(check: Any, of: Any, processes: Iterable[Mapping[str, Any]], log: Mapping[str, Any]) -> None:
    counter = sum(process.get("counter", {}).get("num_cudagraph_captured", 0) for process in processes)
    graphs = sum(process["graphs"]["count"] - process["graphs"]["failed"] for process in processes)
    check("graphs / torch.cuda.graph entered", of("graph_compiles_total", CAPTURES), graphs)
    # vLLM takes captures for a memory estimate back from its own count, and says when it makes them.
    estimated = bool(log.get("estimates"))
    check("graphs / num_cudagraph_captured", of("graph_compiles_total", CAPTURES), counter, counted=not estimated)
    seconds = of("graph_compile_seconds_total", CAPTURES)
    # A capture's own seconds lie within those of the context around it, which also collects garbage and synchronises.
    check("capture s / in torch.cuda.graph", seconds, sum(p["graphs"]["seconds"] for p in processes), counted=False)
    for name, phase in (
        ("capture_seconds", "capture"),
        ("compile_seconds", "compile"),
        ("compilation_seconds", "compile"),
    ):
        for value in [log[name]] if isinstance(log.get(name), float) else log.get(name, []):
            check(
                f"{phase} s / log {name}", of("graph_compile_seconds_total", f'phase="{phase}"'), value, counted=False
            )
    parts = {part: of(WARM_UP, f'part="{part}"') for part in ("profile", "warmup", "capture")}
    if "capture_seconds" in log:  # of capture_model as a whole, in whole seconds
        check("capture_model s / log", parts["capture"], _one(log["capture_seconds"]), by=0.6)
    if "init_seconds" in log:
        check("log init s >= profile, warm-up, capture", _one(log["init_seconds"]), sum(parts.values()), least=True)
    for cache in ("cold", "warm", "unknown"):
        start = of("graph_compile_last_start_seconds", 'phase="compile"', f'cache="{cache}"')
        if start:
            check(f"compile s at start, {cache} / log init", start, _one(log.get("init_seconds")), counted=False)


def _pins(check: Any, of: Any, processes: Iterable[Mapping[str, Any]]) -> None:
    memory = [process["host_memory"] for process in processes if process.get("host_memory")]
    allocated = sum(stats.get("num_host_alloc", 0) for stats in memory)
    size = sum(
        stats.get("allocated_bytes.allocated", stats.get("allocated_bytes.all.allocated", 0)) for stats in memory
    )
    attempts, failures = of("pinned_alloc_attempts_total"), of("pinned_alloc_failures_total")
    # NCCL and others page-lock too, past torch's own allocator: never fewer than torch's.
    check("pins that succeeded >= torch num_host_alloc", attempts - failures, allocated, least=True)
    check("pinned bytes >= torch allocated_bytes", of("pinned_alloc_bytes_total"), size, least=True)
    check("pin failures", failures, 0, counted=False)
    check("pin seconds / torch's", of("pinned_alloc_seconds_total"), _host_seconds(memory), counted=False)


def moments_of(clients: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Several loads' client figures pooled."""
    pooled = {
        name: math.fsum(client[name] for client in clients)
        for name in ("n", "sum", "squares", "tokens", "requests", "ttft_over_0.8")
    }
    mean = pooled["sum"] / pooled["n"] if pooled["n"] else 0.0
    variance = pooled["squares"] / pooled["n"] - mean * mean if pooled["n"] else 0.0
    return pooled | {"mean": mean, "deviation": math.sqrt(max(0.0, variance))}


def short(value: float) -> float:
    """Eight digits: more is not read, and only the end of the output comes back."""
    return float(f"{value:.8g}")


def _one(value: Any) -> float:
    return float(value[0] if isinstance(value, list) else value or 0.0)


def _host_seconds(memory: Iterable[Mapping[str, float]]) -> float:
    return sum(stats.get("host_alloc_time.total", 0) for stats in memory) / 1e6
