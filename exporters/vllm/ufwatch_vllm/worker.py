"""The worker: compile time, graph captures and pinned memory by the torch observers, and how long warming up took.

A worker is recognised by its making, whatever its class; the methods of that one object are timed, so nothing is timed
twice through ``super()``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import process
from .hooking import replace
from .observers import graphs, pinned

WARM_UP = "graph_warmup_last_start_seconds"
"""Wall time of the start by part: ``profile`` (the first forward pass, in which torch.compile runs; with the CPU all of
warming up), ``warmup`` (the rest, without captures), ``capture`` (all of ``capture_model``, warm-up runs included)."""

_seconds = {"profile": 0.0, "warmup": 0.0, "capture": 0.0}


def install(module: ModuleType) -> None:
    """For ``vllm.v1.worker.worker_base``."""
    replace(module.WorkerBase, "__init__", _made)


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        try:
            _begin(self)
        except Exception:
            process.failed("worker")

    return __init__


def _begin(worker: Any) -> None:
    exporter = process.begin("worker")
    if exporter is None:
        return
    graphs.install(exporter)
    pinned.install(exporter)
    replace(worker, "determine_available_memory", _profiling)
    replace(worker, "compile_or_warm_up_model", _warming_up(worker))


def _profiling(original: Callable[..., Any]) -> Callable[..., Any]:
    def determine_available_memory(*args: Any, **kwargs: Any) -> Any:
        with _Timed("profile"):
            return original(*args, **kwargs)

    return determine_available_memory


def _warming_up(worker: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_or_warm_up_model(*args: Any, **kwargs: Any) -> Any:
            try:
                replace(worker.model_runner, "capture_model", _capturing)
            except Exception:
                process.failed("capture_model")
            with _Timed("warmup"):
                warmed = original(*args, **kwargs)
            graphs.started()
            return warmed

        return compile_or_warm_up_model

    return make


def _capturing(original: Callable[..., Any]) -> Callable[..., Any]:
    def capture_model(*args: Any, **kwargs: Any) -> Any:
        with _Timed("capture", within="warmup"):
            return original(*args, **kwargs)

    return capture_model


class _Timed:
    """Adds the wall time of its block to a part, and takes it from the part it lies within."""

    def __init__(self, part: str, within: str = "") -> None:
        self._part, self._within = part, within
        self._begun = time.perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        try:
            took = time.perf_counter() - self._begun
            _seconds[self._part] += took
            if self._within:
                _seconds[self._within] -= took
            exporter = process.begin("worker")
            if exporter is not None:
                for part, seconds in _seconds.items():
                    exporter.set(WARM_UP, max(0.0, seconds), part=part)
        except Exception:
            process.failed("warm_up")
