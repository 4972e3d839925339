"""Evictions from the KV cache, and prefix look-ups in its block table, where the scheduler does them.

``BlockPool._maybe_evict_cached_block`` returns True when a block that held cached content was taken for new data;
``BlockPool.get_cached_block`` returns None at a miss. Both are vLLM's own (0.9 to 0.32 alike), the first a private one:
where it is missing, its metric is absent and says so.

They run for every block, so a hook only counts in plain integers; the writer's thread picks them up. Only the
scheduler's thread counts.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from . import process
from .hooking import replace
from .observers.guarded import collecting
from .observers.textfile import HOOK_FAILURES

EVICT, LOOK_UP = "_maybe_evict_cached_block", "get_cached_block"
NO_HOOK = "this vLLM has no BlockPool.{}"
NO_CACHING = "prefix caching is off"
METRICS = ("kv_evictions_total", "page_table_lookups_total", "page_table_misses_total")


class _Counts:
    """Of this process, not exported yet or exported."""

    __slots__ = ("evictions", "failures", "lookups", "misses")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.evictions = self.lookups = self.misses = self.failures = 0


_counts = _Counts()
_engine: str | None = None
_present: set[str] = set()
_exporting_pid = 0


def install(module: ModuleType) -> None:
    """For ``vllm.v1.core.block_pool``."""
    pool = module.BlockPool
    for name, make, metrics in (
        (EVICT, _evicting, ("kv_evictions_total",)),
        (LOOK_UP, _looking_up, ("page_table_lookups_total", "page_table_misses_total")),
    ):
        if replace(pool, name, make):
            _present.add(name)
        else:
            for metric in metrics:
                process.absent(metric, NO_HOOK.format(name))
    replace(pool, "__init__", _made)


def install_rank(module: ModuleType) -> None:
    """For ``vllm.v1.core.sched.scheduler``, which knows the engine's rank, and makes the pool."""
    replace(module.Scheduler, "__init__", _scheduling)


def _evicting(original: Callable[..., Any]) -> Callable[..., Any]:
    counts = _counts

    def _maybe_evict_cached_block(self: Any, *args: Any, **kwargs: Any) -> Any:
        evicted = original(self, *args, **kwargs)
        try:
            # 0.32 has pools of blocks in the host's memory, too.
            if evicted and getattr(self, "medium", "GPU") == "GPU":
                counts.evictions += 1
        except Exception:
            _failed("evict")
        return evicted

    return _maybe_evict_cached_block


def _looking_up(original: Callable[..., Any]) -> Callable[..., Any]:
    counts = _counts

    def get_cached_block(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, *args, **kwargs)
        try:
            counts.lookups += 1
            if found is None:
                counts.misses += 1
        except Exception:
            _failed("look_up")
        return found

    return get_cached_block


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        try:
            _begin(self)
        except Exception:
            process.failed("block_pool")

    return __init__


def _scheduling(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            global _engine
            _engine = _rank(kwargs.get("vllm_config", args[0] if args else None))
        except Exception:
            process.failed("scheduler")
        original(self, *args, **kwargs)

    return __init__


def _rank(config: Any) -> str | None:
    """The data-parallel rank as the metrics page's ``engine`` has it; of dense models only the index keeps it."""
    parallel = getattr(config, "parallel_config", None)
    for name in ("data_parallel_index", "data_parallel_rank"):
        rank = getattr(parallel, name, None)
        if isinstance(rank, int):
            return str(rank)
    return None


def _begin(pool: Any) -> None:
    """A pool was made, so this process is an engine core: its counters are there from now on, at 0."""
    global _exporting_pid
    exporter = process.begin("engine")
    if exporter is None:
        return
    if not getattr(pool, "enable_caching", True):
        _present.discard(LOOK_UP)
        for metric in ("page_table_lookups_total", "page_table_misses_total"):
            process.absent(metric, NO_CACHING)
    if _exporting_pid != os.getpid():
        _exporting_pid = os.getpid()
        exporter.rests(collecting(_export), METRICS)
        exporter.collect(_export)
    _export()


def _export() -> None:
    exporter = process.begin("engine") if os.getpid() == _exporting_pid else None
    if exporter is None:
        return
    engine = _engine or process.rank_of(multiprocessing.current_process().name)
    if EVICT in _present:
        exporter.total("kv_evictions_total", _counts.evictions, engine=engine)
    if LOOK_UP in _present:
        misses, lookups = _counts.misses, _counts.lookups  # in this order: never more misses than look-ups
        exporter.total("page_table_lookups_total", lookups, engine=engine, unit="probe")
        exporter.total("page_table_misses_total", misses, engine=engine, unit="probe")


def _failed(hook: str) -> None:
    """In the hot path: after a few failures not even that is said any more."""
    if _counts.failures < HOOK_FAILURES:
        _counts.failures += 1
        process.failed(hook)
        if _counts.failures == HOOK_FAILURES:
            process.give_up(hook, METRICS)


os.register_at_fork(after_in_child=_counts.reset)  # a child's exporter begins at 0, so do its counts
