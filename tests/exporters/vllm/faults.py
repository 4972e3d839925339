"""What ``tests/e2e/plugin_harm.py`` breaks inside a real vLLM, as code for its ``sitecustomize``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.e2e.real_vllm import TINY

COMPILED = ("--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "24")

SITE = """
import os, sys
if "vllm" in " ".join(sys.orig_argv) or "multiprocessing" in " ".join(sys.orig_argv):
    def broken(*_, **__):
        raise RuntimeError("harm test")
    try:
        exec(os.environ.get("HARM_TEST", ""))
    except ImportError:
        pass
"""
_OUTER = """
from ufwatch_vllm import block_pool, intervals, worker
worker._begin = block_pool._begin = block_pool._rank = broken
intervals.IntervalSums.take = intervals.IntervalSums.export = broken
class Counts:
    failures = 0
    evictions = lookups = misses = property(broken)
block_pool._counts = Counts()
"""
_INNER = """
from ufwatch_vllm import settings, worker
from ufwatch_vllm.observers import compiling, graphs, pinned, textfile
settings.read = broken
compiling.event_starts = compiling.event_ends = broken
graphs.Graphs._capture_begins = graphs.Graphs._capture_ends = graphs.Graphs.started = graphs.Graphs.collect = broken
class Seconds(dict):
    __getitem__ = __setitem__ = items = broken
worker._seconds = Seconds()
"""
_WRITER = """
from ufwatch_vllm import stats_guard
from ufwatch_vllm.observers import textfile
stats_guard._stats_are_on = broken
for name in ("add", "total", "set", "absent", "collect"):
    setattr(textfile.Exporter, name, broken)
"""
_FIRST = """
from ufwatch_vllm import process
process.begin = process.directory = broken
"""
_REWRITE = """
import importlib.machinery as machinery
original = machinery.SourceFileLoader.get_data
def get_data(self, path):
    if "/site-packages/vllm/" in path and path.endswith(".pyc"):
        raise OSError("read the source")
    data = original(self, path)
    if "/site-packages/vllm/" in path:
        for name, other in NAMES.items():
            data = data.replace(name, other)
    return data
machinery.SourceFileLoader.get_data = get_data
machinery.SourceFileLoader.set_data = lambda *_, **__: None
"""
"""Has Python read vLLM's own source with some words in it replaced."""
_RENAMED = (
    """
NAMES = {b"_maybe_evict_cached_block": b"_evict_it", b"get_cached_block": b"find_block",
         b"inter_token_latencies_iter": b"gaps", b"load_stat_logger_plugin_factories": b"load_factories",
         b"determine_available_memory": b"measure_memory", b"compile_or_warm_up_model": b"prepare"}
"""
    + _REWRITE
)


TIMES = 50
"""How often each hook's work is done for the cost, in place of once: a fiftieth of the effect can then be told on a
machine whose CPU time per token wavers by several per cent for other reasons."""
TOGGLE = """
import signal
without = []
def many(ours):
    def again(*args, **kwargs):
        for _ in range(TIMES):
            ours(*args, **kwargs)
    return again
def turns(ours):
    def again(self, last=False):
        for _ in range(TIMES):
            self._changed = True
            ours(self, last)
    return again
ours = {}
def toggle(*_):
    from ufwatch_vllm.observers import textfile
    places = [(textfile.Exporter, "_turn", turns, lambda self, last=False: None)]
    if "ufwatch_vllm.stat_logger" in sys.modules:
        logger = sys.modules["ufwatch_vllm.stat_logger"].ExactLogger
        places.append((logger, "record", many, lambda *_, **__: None))
    for owner, name, repeated, none in places:
        original = ours.setdefault((owner, name), getattr(owner, name))
        setattr(owner, name, repeated(original) if without else none)
    without[:] = [] if without else [True]
signal.signal(signal.SIGUSR2, toggle)
""".replace("TIMES", str(TIMES))


def _failures(*hooks: str) -> tuple[str, ...]:
    return tuple(f"{hook} failed, the process is not affected" for hook in hooks)


@dataclass(frozen=True)
class Fault:
    name: str
    code: str = ""
    flags: Sequence[str] = TINY
    folder: str = "export"
    """Below the working folder, or absolute; ``full`` is a full disk."""
    proof: Sequence[str] = ()
    """What must be in vLLM's log or in the exporter's files: that each fault did happen."""


FAULTS = (
    Fault(
        "bodies of hooks", _OUTER, proof=_failures("worker", "scheduler", "block_pool", "look_up", "evict", "record")
    ),
    Fault(
        "bodies of the observers",
        _INNER,
        COMPILED,
        proof=_failures("compile_start", "compile_end", "warm_up", "started", "stat_logger"),
    ),
    Fault("methods of the writer", _WRITER, COMPILED, proof=_failures("stats_guard", "graphs", "block_pool")),
    Fault("before anything", _FIRST),
    Fault("full disk", folder="full", proof=("cannot write", "No space left on device")),
    Fault("folder that cannot be", folder="/proc/ufwatch", proof=("cannot write",)),
    Fault("folder below a file", folder="/dev/null/export", proof=("cannot write",)),
    Fault("other names in vLLM", _RENAMED, proof=("no kv_evictions_total", "this vLLM has no BlockPool._maybe_evict")),
)
