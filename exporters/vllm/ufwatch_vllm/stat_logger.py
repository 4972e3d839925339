"""The stat logger: exact sums over the very lists that vLLM feeds to its histograms, for each engine.

Loaded by vLLM through its entry point, in each API server. An exception out of ``record`` would end the server, and it
runs on the event loop: everything is caught, nothing is written here.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from . import process, settings, stats_guard
from .intervals import IntervalSums
from .observers.textfile import HOOK_FAILURES

if not stats_guard.installed():
    # vLLM logs it and goes on without: better no jitter than statistics turned on unasked.
    raise ImportError("ufwatch-vllm's general plugin did not run in this process, so its stat logger stays out")

_BASE: Any = importlib.import_module("vllm.v1.metrics.loggers").StatLoggerBase


class ExactLogger(_BASE):  # type: ignore[misc]
    """One for each engine that this API server talks to; its intervals are those of this API server's requests."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As vLLM calls it: ``(vllm_config, engine_index)``."""
        self._sums: dict[int, IntervalSums] = {}
        self._failures = 0
        self._engine = 0
        self._unit = "token"
        self._pid = os.getpid()
        try:
            config = kwargs.get("vllm_config", args[0] if args else None)
            self._engine = int(kwargs.get("engine_index", args[1] if len(args) > 1 else 0))
            self._unit = _unit(config)
            self._settings = settings.read()
            self._sums[self._engine] = IntervalSums(self._settings)
            exporter = process.begin("api")
            if exporter is not None:
                exporter.collect(self._export)
        except Exception:
            self._failed("stat_logger")

    def record(self, *args: Any, **kwargs: Any) -> None:
        """``(scheduler_stats, iteration_stats)``, by name or not, and whatever a version adds."""
        if self._failures >= HOOK_FAILURES:
            return
        try:
            stats = kwargs["iteration_stats"] if "iteration_stats" in kwargs else args[1] if len(args) > 1 else None
            if stats is None:
                return
            intervals, first_tokens = stats.inter_token_latencies_iter, stats.time_to_first_tokens_iter
            if intervals or first_tokens:
                engine = kwargs.get("engine_idx", self._engine)
                sums = self._sums.get(engine)
                if sums is None:
                    sums = self._sums[engine] = IntervalSums(self._settings)
                sums.take(intervals, first_tokens)
        except Exception:
            self._failed("record")

    def log(self, *_: Any, **__: Any) -> None:
        """vLLM asks for a line in its log; there is none."""

    def log_engine_initialized(self, *_: Any, **__: Any) -> None:
        """Likewise."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """On the metrics page already."""

    def _export(self) -> None:
        # In a forked child these sums are its parent's.
        exporter = process.begin("api") if os.getpid() == self._pid else None
        if exporter is None:
            return
        for engine, sums in list(self._sums.items()):
            sums.export(exporter, str(engine), self._unit)

    def _failed(self, hook: str) -> None:
        self._failures += 1
        process.failed(hook)


def _unit(config: Any) -> str:
    """``step`` where an engine step yields several tokens, and one interval stands for them all."""
    diffusion = getattr(getattr(config, "model_config", None), "is_diffusion", False)
    return "step" if getattr(config, "speculative_config", None) is not None or diffusion is True else "token"
