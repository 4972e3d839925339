"""A text file as an in-process exporter writes it, so that the demo shows the two signals no page and no driver has."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ufwatch.clock import Clock

HEARTBEAT_SECONDS = 5.0

_LINES = (
    # Counted inside a vLLM on an H200: one start with 918 graphs, and its page-locked allocations.
    'ufwatch_graph_compile_last_start_seconds{phase="compile",cache="cold"} 15.6',
    'ufwatch_graph_compile_last_start_seconds{phase="capture",cache="unknown"} 0.6',
    'ufwatch_graph_compiles_total{phase="capture",cache="unknown"} 918',
    'ufwatch_graph_compile_seconds_total{phase="capture",cache="unknown"} 0.6',
    'ufwatch_graph_compile_seconds_total{phase="compile",cache="cold"} 15.6',
    "ufwatch_pinned_alloc_attempts_total 3199",
    'ufwatch_pinned_alloc_failures_total{code="out_of_memory"} 0',
    "ufwatch_pinned_alloc_bytes_total 17630252",
    "ufwatch_pinned_alloc_seconds_total 0.87",
)


async def keep_alive(directory: Path, clock: Clock) -> None:
    """Writes ``worker-sim.prom`` into ``directory`` every five seconds until cancelled."""
    started = clock.wall()
    file, beside = directory / "worker-sim.prom", directory / "worker-sim.tmp"
    while True:
        text = "\n".join((f"# ufwatch {clock.wall():.3f} {started:.3f}", *_LINES)) + "\n"
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, file)
        await asyncio.sleep(HEARTBEAT_SECONDS)
