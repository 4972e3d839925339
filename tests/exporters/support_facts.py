"""The names that ufwatch-vllm's hooks rely on, as one vLLM source has them: read as syntax trees, nothing is imported.

Where a hook needs a new name, add it here, and renew ``support.json`` (see ``support.py``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.exporters.support_table import Facts

GENERAL, STAT_LOGGER = "vllm.general_plugins", "vllm.stat_logger_plugins"
LOADER = "load_stat_logger_plugin_factories"
LOGGERS, ASYNC_LLM = "v1/metrics/loggers.py", "v1/engine/async_llm.py"
POOL = "v1/core/block_pool.py"
WORKERS = {"GPU": "v1/worker/gpu_worker.py", "CPU": "v1/worker/cpu_worker.py"}
RUNNER_V1, RUNNER_V2 = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py"

METHODS = {
    "AsyncLLM.__init__": (ASYNC_LLM, "AsyncLLM", "__init__"),
    "StatLoggerBase.__init__": (LOGGERS, "StatLoggerBase", "__init__"),
    "StatLoggerBase.record": (LOGGERS, "StatLoggerBase", "record"),
    "StatLoggerBase.log": (LOGGERS, "StatLoggerBase", "log"),
    "StatLoggerBase.log_engine_initialized": (LOGGERS, "StatLoggerBase", "log_engine_initialized"),
    "StatLoggerBase.record_sleep_state": (LOGGERS, "StatLoggerBase", "record_sleep_state"),
    "Scheduler.__init__": ("v1/core/sched/scheduler.py", "Scheduler", "__init__"),
    "BlockPool.__init__": (POOL, "BlockPool", "__init__"),
    "BlockPool._maybe_evict_cached_block": (POOL, "BlockPool", "_maybe_evict_cached_block"),
    "BlockPool.get_cached_block": (POOL, "BlockPool", "get_cached_block"),
    "WorkerBase.__init__": ("v1/worker/worker_base.py", "WorkerBase", "__init__"),
    "Worker.determine_available_memory": (WORKERS["GPU"], "Worker", "determine_available_memory"),
    "Worker.compile_or_warm_up_model": (WORKERS["GPU"], "Worker", "compile_or_warm_up_model"),
    "CPUWorker.determine_available_memory": (WORKERS["CPU"], "CPUWorker", "determine_available_memory"),
    "CPUWorker.compile_or_warm_up_model": (WORKERS["CPU"], "CPUWorker", "compile_or_warm_up_model"),
    "GPUModelRunner.capture_model": (RUNNER_V1, "GPUModelRunner", "capture_model"),
    "GPUModelRunner.capture_model (V2)": (RUNNER_V2, "GPUModelRunner", "capture_model"),
    "CPUModelRunner.warming_up_model": ("v1/worker/cpu_model_runner.py", "CPUModelRunner", "warming_up_model"),
}
"""Name → file below ``vllm/``, class, method; the fact is its signature, or null."""

FIELDS = {
    "VllmConfig": ("speculative_config", "model_config", "parallel_config"),
    "ParallelConfig": ("data_parallel_index", "data_parallel_rank"),
    "CompilationConfig": ("compilation_time",),
}
"""Configuration class → its fields that a hook reads; the fact is a list of those that are there."""


class Source:
    """The Python files of one unpacked vLLM."""

    def __init__(self, root: Path) -> None:
        self.root = root / "vllm"
        if not (self.root / "plugins" / "__init__.py").is_file():
            raise SystemExit(f"{root}: no vllm/plugins/__init__.py there")
        self.tree = cache(self._tree)

    def _tree(self, file: str) -> ast.Module | None:
        path = self.root / file
        return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None

    def files(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self.root.rglob("*.py")):
            yield path.relative_to(self.root).as_posix(), path.read_text(encoding="utf-8", errors="replace")

    def found(self, file: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
        """A class or function at the top of a file."""
        for node in getattr(self.tree(file), "body", ()):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return node
        return None

    def method(self, file: str, owner: str, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        for node in getattr(self.found(file, owner), "body", ()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                return node
        return None


def facts_of(source: Source) -> Facts:
    """Every name that a hook relies on, as this version has it; null where it has not."""
    facts: Facts = {
        GENERAL: _spelled(source, GENERAL),
        f"{GENERAL}: loaded in": sorted(_callers(source, "load_general_plugins")),
        STAT_LOGGER: _spelled(source, STAT_LOGGER),
        f"{STAT_LOGGER}: demands": _demanded(source),
        f"{STAT_LOGGER}: enables stats": _enables_stats(source),
        f"{STAT_LOGGER}: loader by name in async_llm": _imported(source, ASYNC_LLM, LOADER),
        "VLLM_PLUGINS": "VLLM_PLUGINS" in (source.root / "envs.py").read_text(encoding="utf-8"),
    }
    for name, (file, owner, method) in METHODS.items():
        found = source.method(file, owner, method)
        facts[name] = None if found is None else f"({ast.unparse(found.args)}) -> {_returned(found)}"
    facts["WorkerBase.__init__: reached from"] = [kind for kind in WORKERS if _calls_base(source, kind)]
    facts["IterationStats"] = _attributes(source, "v1/metrics/stats.py", "IterationStats", "_iter")
    facts["BlockPool.enable_caching"] = _sets(source, "enable_caching")
    facts["BlockPool.medium"] = _sets(source, "medium")
    facts |= {owner: _fields(source, owner, names) for owner, names in FIELDS.items()}
    facts["BlockPool._maybe_evict_cached_block: called in"] = _called_in(source, "_maybe_evict_cached_block")
    facts["BlockPool: several hashes a block"] = (
        source.method(POOL, "BlockPool", "_remove_cached_block_hashes") is not None
    )
    facts["process names"] = _process_names(source)
    facts["compilation_counter"] = _counter(source)
    facts["CUDA graphs captured in"] = _captures(source)
    facts["num_cudagraph_captured raised in"] = _containing(source, "num_cudagraph_captured += 1")
    facts["captures taken back in"] = _containing(source, "num_cudagraph_captured = saved")
    facts["pinned in"] = _pinning(source)
    return facts


def _spelled(source: Source, group: str) -> str | None:
    """The first file in which a plugin group's name is a string of the code."""
    for file in ("plugins/__init__.py", LOGGERS):
        tree = source.tree(file)
        strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)) if tree else ()
        if group in strings:
            return file
    return None


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] == name:
            yield node


def _callers(source: Source, name: str) -> Iterator[str]:
    for file, text in source.files():
        if f"{name}(" in text and any(_calls(ast.parse(text), name)):
            yield file


def _demanded(source: Source) -> str | None:
    """The class that a stat-logger plugin must derive from, by the loader's own ``issubclass``."""
    loader = source.found(LOGGERS, LOADER)
    for call in _calls(loader, "issubclass") if loader else ():
        return ast.unparse(call.args[1])
    return None


def _enables_stats(source: Source) -> bool | None:
    """Whether a loaded plugin turns stats on under ``--disable-log-stats``: ``self.log_stats = log_stats or …``."""
    start = source.method(ASYNC_LLM, "AsyncLLM", "__init__")
    if start is None or not any(_calls(start, LOADER)):
        return None
    return any(
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "self.log_stats"
        and isinstance(node.value, ast.BoolOp)
        and isinstance(node.value.op, ast.Or)
        for node in ast.walk(start)
    )


def _returned(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return "?" if function.returns is None else ast.unparse(function.returns)


def _attributes(source: Source, file: str, owner: str, ending: str) -> dict[str, str]:
    """Attributes that ``__init__`` sets, with their annotations, of those whose name ends so."""
    start = source.method(file, owner, "__init__")
    return {
        node.target.attr: ast.unparse(node.annotation)
        for node in ast.walk(start or ast.Module([], []))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Attribute)
        and node.target.attr.endswith(ending)
    }


def _called_in(source: Source, name: str) -> list[str]:
    pool = source.found(POOL, "BlockPool")
    methods = (node for node in getattr(pool, "body", ()) if isinstance(node, ast.FunctionDef))
    return sorted(method.name for method in methods if any(_calls(method, name)))


def _process_names(source: Source) -> list[str]:
    """What vLLM calls its processes (``multiprocessing``), from which the role and the rank are taken."""
    names = set()
    for file in ("v1/utils.py", "v1/engine/utils.py", "v1/executor/multiproc_executor.py"):
        for node in ast.walk(source.tree(file) or ast.Module([], [])):
            if isinstance(node, ast.keyword) and node.arg == "name":
                names |= {*re.findall(r"'((?:ApiServer|EngineCore|VllmWorker)[^']*)'", ast.unparse(node.value))}
    return sorted(names)


def _counter(source: Source) -> list[str] | None:
    """The counts of ``vllm.compilation.counter.compilation_counter``."""
    owner = source.found("compilation/counter.py", "CompilationCounter")
    if owner is None:
        return None
    return [n.target.id for n in owner.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]


def _fields(source: Source, owner: str, names: Sequence[str]) -> list[str]:
    for path in sorted([*source.root.glob("config/*.py"), *source.root.glob("config.py")]):
        found = source.found(path.relative_to(source.root).as_posix(), owner)
        if found is not None:
            held = {ast.unparse(node.target) for node in found.body if isinstance(node, ast.AnnAssign)}
            return [name for name in names if name in held]
    return []


def _imported(source: Source, file: str, name: str) -> bool:
    """Whether a module has the name as its own, so that replacing it there is enough."""
    nodes = getattr(source.tree(file), "body", ())
    return any(isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names} for node in nodes)


def _calls_base(source: Source, kind: str) -> bool:
    """Whether this worker's ``__init__`` calls its base's (the CPU's base is the GPU's worker)."""
    start = source.method(WORKERS[kind], {"GPU": "Worker", "CPU": "CPUWorker"}[kind], "__init__")
    return start is not None and any(ast.unparse(call.func) == "super().__init__" for call in _calls(start, "__init__"))


def _sets(source: Source, name: str) -> bool:
    """Whether a block pool has this attribute once it is made."""
    start = source.method(POOL, "BlockPool", "__init__")
    nodes = ast.walk(start) if start is not None else ()
    return any(isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{name}" for node in nodes)


def _captures(source: Source) -> dict[str, list[str]]:
    """File → how it captures: ``torch.cuda.graph(…)``, or ``capture_begin``, which the former calls, too."""
    found: dict[str, list[str]] = {}
    for file, text in source.files():
        if "torch.cuda.graph(" not in text and ".capture_begin(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "torch.cuda.graph" or called.endswith(".capture_begin"):
                    found.setdefault(file, []).append(called)
    return {file: sorted(set(ways)) for file, ways in found.items()}


def _containing(source: Source, text: str) -> list[str]:
    return [file for file, content in source.files() if text in content]


def _pinning(source: Source) -> dict[str, str]:
    """How many call sites page-lock memory (or may: ``pin_memory=`` takes a condition), in each of the three ways."""
    counts = {"pin_memory()": 0, "pin_memory=": 0, "cudaHostRegister": 0}
    for _, text in source.files():
        if "pin_memory" not in text and "cudaHostRegister" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func).rsplit(".", 1)[-1]
                counts["pin_memory()"] += name == "pin_memory"
                counts["cudaHostRegister"] += name == "cudaHostRegister"
                counts["pin_memory="] += any(keyword.arg == "pin_memory" for keyword in node.keywords)
    return {way: str(count) for way, count in counts.items()}
