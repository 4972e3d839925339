"""The stat logger: exact sums over the very lists that vLLM feeds to its histograms, for each engine.

Loaded by vLLM through its entry point, in each API server. An exception out of ``record`` would end the server, and it
runs on the event loop: everything is caught, nothing is written here.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from . import process, settings, stats_guard
from .intervals import COUNTERS, IntervalSums
from .observers.guarded import collecting
from .observers.promfile import Key
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
            _begin()
            self._sums_of(self._engine)
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
                self._sums_of(kwargs.get("engine_idx", self._engine)).take(intervals, first_tokens)
        except Exception:
            self._failed("record")

    def log(self, *_: Any, **__: Any) -> None:
        """vLLM asks for a line in its log; there is none."""

    def log_engine_initialized(self, *_: Any, **__: Any) -> None:
        """Likewise."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """On the metrics page already."""

    def _sums_of(self, engine: int) -> IntervalSums:
        sums = self._sums.get(engine)
        if sums is None:
            sums = self._sums[engine] = IntervalSums(self._settings)
            if os.getpid() == self._pid:  # else it is the parent's logger, in a forked child
                _all.append((str(engine), self._unit, sums))
        return sums

    def _failed(self, hook: str) -> None:
        self._failures += 1
        process.failed(hook)
        if self._failures == HOOK_FAILURES:
            process.give_up(hook, COUNTERS, engine=str(self._engine))


# What a later vLLM asks of every logger: with one method missing it could not be made, and the server would not start.
for _name in getattr(_BASE, "__abstractmethods__", ()):
    if _name not in vars(ExactLogger):
        setattr(ExactLogger, _name, ExactLogger.log)
ExactLogger.__abstractmethods__ = frozenset()


_all: list[tuple[str, str, IntervalSums]] = []
"""Engine, unit and sums of every logger ever made in this process: an engine may be made anew, and goes on counting."""
_exporting_pid = 0


class _Together:
    """Adds up what several sums of one engine say of the same series."""

    def __init__(self) -> None:
        self.values: dict[Key, float] = {}

    def total(self, name: str, value: float, **labels: str) -> None:
        key = (name, tuple(labels.items()))
        self.values[key] = self.values.get(key, 0) + value


def _begin() -> None:
    global _exporting_pid
    exporter = process.begin("api")
    if exporter is not None and _exporting_pid != os.getpid():
        _exporting_pid = os.getpid()
        _all.clear()  # the parent's, in a forked child
        exporter.rests(collecting(_export), COUNTERS)
        exporter.collect(_export)


def _export() -> None:
    exporter = process.begin("api") if os.getpid() == _exporting_pid else None
    if exporter is None:
        return
    together = _Together()
    for engine, unit, sums in _all:
        sums.export(together, engine, unit)
    for (name, labels), value in together.values.items():
        exporter.total(name, value, **dict(labels))


def _unit(config: Any) -> str:
    """``step`` where an engine step yields several tokens, and one interval stands for them all."""
    diffusion = getattr(getattr(config, "model_config", None), "is_diffusion", False)
    return "step" if getattr(config, "speculative_config", None) is not None or diffusion is True else "token"
