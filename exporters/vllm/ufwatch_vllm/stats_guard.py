"""Keeps the stat logger from turning statistics on that the user turned off.

vLLM (0.11 to 0.32 alike) loads every stat-logger plugin, and statistics are on when there is one, whatever
``--disable-log-stats`` says. The loaded classes are a list; ours is taken off it where statistics are off, so that
vLLM goes on as if it were not installed. The class refuses to load where this guard is not in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from . import process, settings
from .hooking import replace

LOADER = "load_stat_logger_plugin_factories"
OURS = "ufwatch_vllm.stat_logger"
NO_PLUGINS = "this vLLM loads no stat-logger plugins (0.11 and newer do)"
STATS_OFF = f"statistics are off (--disable-log-stats); {settings.WITH_STATS}=1 turns them on"

_installed = False


def install(async_llm: ModuleType) -> None:
    """For ``vllm.v1.engine.async_llm``, whose engine client calls the loader by this module's own name for it."""
    global _installed
    if replace(async_llm, LOADER, _guarded):
        _installed = True
    else:
        process.absent("token_intervals_total", NO_PLUGINS)


def installed() -> bool:
    return _installed


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_stat_logger_plugin_factories(*args: Any, **kwargs: Any) -> Any:
        factories = original(*args, **kwargs)
        if not isinstance(factories, (list, tuple)):
            return factories  # of a vLLM that we do not know
        others = [factory for factory in factories if getattr(factory, "__module__", "") != OURS]
        try:
            # Where someone else's logger turns them on they are on, with or without ours.
            if process.directory() and (others or settings.with_stats() or _stats_are_on(sys._getframe(1))):
                return factories
            if process.directory() and factories:
                process.absent("token_intervals_total", STATS_OFF)
                process.say("ufwatch: no exact jitter: %s", STATS_OFF)
        except Exception:
            process.failed("stats_guard")
        return others

    return load_stat_logger_plugin_factories


def _stats_are_on(frame: FrameType | None) -> bool:
    """By the arguments of the engine client being made, which is the caller. False where it cannot be told."""
    for _ in range(4):  # another plugin may have wrapped the loader, too
        if frame is None:
            break
        code, own = frame.f_code, frame.f_locals
        if "log_stats" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            return bool(own["log_stats"]) or bool(own.get("stat_loggers"))
        frame = frame.f_back
    return False
