"""What ufwatch-vllm is compared with on a GPU, from inside the server but without any of ufwatch's code: every list of
intervals as vLLM hands it out, CUDA graphs timed one level higher (``torch.cuda.graph``), and vLLM's and torch's own
counts. Installed beside the plugin by ``vllm_site.py``; a JSON file a process, rewritten once a second.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = "UFWATCH_WITNESS_DIR"
_graphs = {"count": 0, "failed": 0, "seconds": 0.0}
_begun: list[float] = []
_started: set[int] = set()


def register() -> None:
    """The general plugin: watches graph captures in this process and starts the writer."""
    if FOLDER not in os.environ or os.getpid() in _started:
        return
    _started.add(os.getpid())
    try:
        _watch_graphs()
        os.register_at_fork(after_in_child=_write_from_now)
        _write_from_now()
    except Exception as error:
        print(f"witness: {error!r}", file=sys.stderr)


def _watch_graphs() -> None:
    graph: Any = importlib.import_module("torch.cuda.graphs").graph
    enter, leave = graph.__enter__, graph.__exit__

    def entered(self: Any) -> Any:
        _begun.append(time.perf_counter())
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            _graphs["count"] += 1
            _graphs["failed"] += bool(error and error[0])
            if _begun:
                _graphs["seconds"] += time.perf_counter() - _begun.pop()

    graph.__enter__, graph.__exit__ = entered, left


def _write_from_now() -> None:
    threading.Thread(target=_write_for_ever, name="witness", daemon=True).start()


def _write_for_ever() -> None:
    path = Path(os.environ[FOLDER]) / f"process-{os.getpid()}.json"
    while True:
        try:
            beside = path.with_suffix(".new")
            beside.write_text(json.dumps(_seen()))
            beside.replace(path)
        except Exception as error:
            print(f"witness: {error!r}", file=sys.stderr)
        time.sleep(1.0)


def _seen() -> dict[str, Any]:
    """Asks only modules that the server itself has imported: a witness must not change what it sees."""
    seen: dict[str, Any] = {"pid": os.getpid(), "command": Path("/proc/self/cmdline").read_bytes()[:80].decode()}
    seen["graphs"] = dict(_graphs)
    counter = sys.modules.get("vllm.compilation.counter")
    if counter is not None:
        seen["counter"] = {name: n for name, n in vars(counter.compilation_counter).items() if n}
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        seen["host_memory"] = dict(cuda.host_memory_stats())
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        times = dict(getattr(dynamo, "compilation_time_metrics", {}))
        seen["dynamo"] = {phase: [len(spent), round(sum(spent), 3)] for phase, spent in times.items()}
    return seen


if os.environ.get(FOLDER):
    _BASE: Any = importlib.import_module("vllm.v1.metrics.loggers").StatLoggerBase
else:
    _BASE = object


class WitnessLogger(_BASE):  # type: ignore[misc]
    """Writes each engine step's lists as they are: ``[unix time, intervals, times to first token]``."""

    def __init__(self, _: object, engine_index: int = 0, **__: object) -> None:
        self._path = Path(os.environ[FOLDER]) / f"steps-{os.getpid()}-{engine_index}.jsonl"
        self._file = self._path.open("a", encoding="utf-8")

    def record(self, _: object = None, iteration_stats: Any = None, *__: object, **___: object) -> None:
        try:
            if iteration_stats is None:
                return
            intervals, first = iteration_stats.inter_token_latencies_iter, iteration_stats.time_to_first_tokens_iter
            if intervals or first:
                self._file.write(json.dumps([time.time(), list(intervals), list(first)]) + "\n")
                self._file.flush()
        except Exception as error:
            print(f"witness: {error!r}", file=sys.stderr)

    def log_engine_initialized(self) -> None:
        pass
