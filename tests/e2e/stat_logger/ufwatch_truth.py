"""What ufwatch is compared with: sums over the very lists vLLM feeds to its histograms, in one JSON file per engine and
API server. Loaded by vLLM as a stat-logger plugin; an exception in ``record`` would end the server."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

_BASE: Any = importlib.import_module("vllm.v1.metrics.loggers").StatLoggerBase


class TruthLogger(_BASE):  # type: ignore[misc]
    def __init__(self, _: object, engine_index: int = 0, **__: object) -> None:
        self._path = Path(os.environ["UFWATCH_TRUTH_DIR"]) / f"{os.getpid()}-{engine_index}.json"
        self._sums = {"engine": engine_index, "n": 0, "sum": 0.0, "squares": 0.0, "generated": 0, "computed": 0}
        self._sums |= {"prompt": 0, "preempted": 0, "failed": 0}
        self._write()

    def record(self, _: object = None, iteration_stats: Any = None, *__: object, **___: object) -> None:
        try:
            if iteration_stats is None:
                return
            sums, intervals = self._sums, iteration_stats.inter_token_latencies_iter
            sums["n"] += len(intervals)
            sums["sum"] += sum(intervals)
            sums["squares"] += sum(interval * interval for interval in intervals)
            sums["generated"] += iteration_stats.num_generation_tokens
            sums["computed"] += iteration_stats.prompt_token_stats.computed
            sums["prompt"] += iteration_stats.prompt_token_stats.total
            sums["preempted"] += iteration_stats.num_preempted_reqs
            self._write()
        except Exception:
            self._sums["failed"] += 1

    def log_engine_initialized(self) -> None:
        pass

    def _write(self) -> None:
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(self._sums))
        beside.replace(self._path)
