"""A vLLM of a few files, as the hooks see one: the same names, signatures and order of calls as in the real sources.

Written to a folder and imported in a process of its own, so that import hooks, entry points, fork and spawn are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
EXPORTER = ROOT / "exporters" / "vllm"

_PLUGINS = """
import logging
logger = logging.getLogger("vllm.plugins")
plugins_loaded = False

def load_plugins_by_group(group):
    import os
    from importlib.metadata import entry_points
    allowed = os.environ.get("VLLM_PLUGINS")
    allowed = None if allowed is None else allowed.split(",")
    plugins = {}
    for plugin in entry_points(group=group):
        if allowed is None or plugin.name in allowed:
            try:
                plugins[plugin.name] = plugin.load()
            except Exception:
                logger.exception("Failed to load plugin %s", plugin.name)
    return plugins

def load_general_plugins():
    global plugins_loaded
    if plugins_loaded:
        return
    plugins_loaded = True
    for func in load_plugins_by_group("vllm.general_plugins").values():
        func()
"""

_LOGGERS = """
from abc import ABC, abstractmethod
from vllm.plugins import load_plugins_by_group

class StatLoggerBase(ABC):
    @abstractmethod
    def __init__(self, vllm_config, engine_index=0): ...
    @abstractmethod
    def record(self, *args, **kwargs): ...
    @abstractmethod
    def log_engine_initialized(self): ...
    def log(self):
        pass
"""

_LOADER = """
    def record_sleep_state(self, is_awake, level):
        pass

def load_stat_logger_plugin_factories():
    factories = []
    for name, plugin_class in load_plugins_by_group("vllm.stat_logger_plugins").items():
        if not isinstance(plugin_class, type) or not issubclass(plugin_class, StatLoggerBase):
            raise TypeError(f"Stat logger plugin {name!r} must be a subclass of StatLoggerBase")
        factories.append(plugin_class)
    return factories
"""

_STATS = """
class IterationStats:
    def __init__(self, intervals=(), first_tokens=()):
        self.inter_token_latencies_iter = list(intervals)
        self.time_to_first_tokens_iter = list(first_tokens)
"""

_ASYNC_LLM = """
from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories

class AsyncLLM:
    def __init__(self, vllm_config, executor_class, log_stats, stat_loggers=None, engines=(0,)):
        custom_stat_loggers = list(stat_loggers or [])
        custom_stat_loggers.extend(load_stat_logger_plugin_factories())
        has_custom_loggers = bool(custom_stat_loggers)
        self.log_stats = log_stats or has_custom_loggers
        self.stat_loggers = []
        if self.log_stats:
            self.stat_loggers = [f(vllm_config, e) for f in custom_stat_loggers for e in engines]
            for logger in self.stat_loggers:
                logger.log_engine_initialized()
"""

_OLD_ASYNC_LLM = """
class AsyncLLM:
    def __init__(self, vllm_config, executor_class, log_stats):
        self.log_stats = log_stats
        self.stat_loggers = []
"""

_BLOCK_POOL = '''
class BlockPool:
    """Blocks are numbers; those in ``cached`` hold content."""

    def __init__(self, num_gpu_blocks, enable_caching, medium="GPU"):
        self.enable_caching, self.cached = enable_caching, set()
        if medium != "GPU":
            self.medium = medium

    def get_cached_block(self, block_hash, kv_cache_group_ids):
        """Its documentation."""
        if block_hash < 0:
            raise KeyError(block_hash)
        return [block_hash] if block_hash in self.cached else None

    def EVICT(self, block):
        if block not in self.cached:
            return False
        self.cached.remove(block)
        return True
'''

_SCHEDULER = """
from vllm.v1.core.block_pool import BlockPool

class Scheduler:
    def __init__(self, vllm_config, kv_cache_config, log_stats=False):
        self.block_pool = BlockPool(100, True)
"""

_WORKER_BASE = """
class WorkerBase:
    def __init__(self, vllm_config, local_rank=0, rank=0, distributed_init_method="", is_driver_worker=False):
        self.vllm_config, self.model_runner = vllm_config, None
"""

_GPU_WORKER = '''
import time
from vllm.v1.worker.worker_base import WorkerBase

class Runner:
    def capture_model(self):
        """Captures."""
        time.sleep(0.05)
        return 7

class Worker(WorkerBase):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def init_device(self):
        self.model_runner = Runner()

    def determine_available_memory(self):
        time.sleep(0.03)
        return 11

    def compile_or_warm_up_model(self):
        """Warms up."""
        time.sleep(0.02)
        if self.vllm_config is None:
            raise RuntimeError("no memory")
        return self.model_runner.capture_model()

class OtherWorker(Worker):
    def compile_or_warm_up_model(self):
        return super().compile_or_warm_up_model()
'''

PRELUDE = """
import json, logging, os, sys, time
from types import SimpleNamespace as NS
from vllm.plugins import load_general_plugins
def config(rank=0, **more):
    return NS(parallel_config=NS(data_parallel_index=rank, data_parallel_rank=0), speculative_config=None,
              model_config=NS(), **more)
def said(**what):
    print(json.dumps(what))
"""


class FakeVllm:
    """``site`` holds the fake; ``export`` is where the plugin writes."""

    def __init__(self, folder: Path, *, plugins: bool = True, evict: str = "_maybe_evict_cached_block") -> None:
        self.site, self.export = folder / "site", folder / "export"
        self._write("plugins/__init__.py", _PLUGINS)
        self._write("v1/metrics/loggers.py", _LOGGERS + (_LOADER if plugins else ""))
        self._write("v1/metrics/stats.py", _STATS)
        self._write("v1/engine/async_llm.py", _ASYNC_LLM if plugins else _OLD_ASYNC_LLM)
        self._write("v1/core/block_pool.py", _BLOCK_POOL.replace("EVICT", evict))
        self._write("v1/core/sched/scheduler.py", _SCHEDULER)
        self._write("v1/worker/worker_base.py", _WORKER_BASE)
        self._write("v1/worker/gpu_worker.py", _GPU_WORKER)
        self._describe()

    def run(self, code: str, **env: str) -> Any:
        """The last line the script prints, read as JSON. Raises with what it wrote where it fails."""
        return json.loads(self.ran(code, **env).stdout.splitlines()[-1])

    def ran(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(self.site), str(EXPORTER)))
        base = {k: v for k, v in os.environ.items() if not k.startswith(("UFWATCH_", "VLLM_", "PYTHON"))}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PRELUDE + code],
            env={**base, "UFWATCH_EXPORT_DIR": str(self.export), "PYTHONPATH": path, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    def files(self) -> dict[str, dict[str, float]]:
        """File name without its id → the lines in it, by series."""
        return {path.name.rsplit("-", 1)[0]: series_of(path) for path in sorted(self.export.glob("*.prom"))}

    def texts(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.export.glob("*.prom")))

    def _write(self, name: str, text: str) -> None:
        path = self.site / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(self.site).parents:
            if folder != Path("."):
                (self.site / folder / "__init__.py").touch()

    def _describe(self) -> None:
        """What an installer makes of the package's own pyproject.toml."""
        project = tomllib.loads((EXPORTER / "pyproject.toml").read_text())["project"]
        info = self.site / "ufwatch_vllm-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ufwatch-vllm\nVersion: 0\n")
        lines = []
        for group, entries in project["entry-points"].items():
            lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def series_of(path: Path) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return {series.removeprefix("ufwatch_"): float(value) for series, value in pairs}
