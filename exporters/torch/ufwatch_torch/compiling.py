"""Compile time: the outermost events that torch times on each thread, and whether a cache served them.

torch keeps the durations of its compile phases in ``torch._dynamo.utils.compilation_time_metrics``, a dict without
nesting: what is outermost differs by path (``_compile.compile_inner`` for torch.compile, ``fullgraph_capture`` for
vLLM's AOT compile, ``backward._backward_impl`` for a first backward), and inner phases of one path are outer ones of
another. Its sum would count a second up to eight times. But every entry is also announced to
``ChromiumEventLogger.log_event_start/log_event_end``, in time and in its thread; hooked there, nesting is plain.

One outermost event with real work in it is one compile. Seconds are those in which any thread compiled: Inductor has
C++ compiled by helper threads while the first one waits. ``cache`` of a compile is

* ``cold``: Inductor generated code (event ``fx_codegen_and_compile``, or FX-graph cache misses or bypasses grew); the
  kernels' own caches on disk (C++, Triton) may still have made it short,
* ``warm``: no code was generated, and a cache was hit (FX-graph or AOTAutograd cache) or a saved artefact loaded,
* ``unknown``: neither, e.g. another backend than Inductor, or set-up such as hashing torch's own sources.

Not seen: the import of dynamo and Inductor (seconds, when ``torch.compile`` is called first), what runs before dynamo's
first event (0.1–0.3 % of a cold compile here), saving an AOT artefact, and compile workers in other processes except
for the time that this process waits for them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .spans import COMPILE, COUNT, MARK, SECONDS, START

if TYPE_CHECKING:
    from .graphs import Graphs

_ENDLESS = frozenset({"compiled_autograd"})
"""Events that torch opens without a ``finally``: one lost end would swallow every later compile."""

_LOADS = "AOTAutogradCache.inductor_load"
"""Also of an artefact that vLLM saved: there no cache counter moves."""
_ENTRIES = frozenset({"entire_frame_compile", "entire_backward_compile", "fullgraph_capture"})
"""Each is a compile."""
_PARTS = frozenset({"create_aot_dispatcher_function", "inductor_compile", _LOADS})
"""Each is a compile if it is not part of one, on its own thread or on one that waits for it."""
_GENERATES = "fx_codegen_and_compile"
_BEFORE = ("_compile.compile_inner", "fullgraph_capture", "backward._backward_impl")
"""Keys of ``compilation_time_metrics`` that are outermost wherever they occur."""


def watch(graphs: Graphs, module: Any) -> None:
    """Hooks ``torch._dynamo.utils``. Raises where this torch does not have what it takes."""
    kind = module.ChromiumEventLogger
    start, end = kind.log_event_start, kind.log_event_end
    exporter = graphs.exporter
    if getattr(start, MARK, False):
        graphs.absent(COMPILE, "another ufwatch exporter in this process counts them")
        return
    guard = exporter.guard

    @functools.wraps(start)
    def log_event_start(logger: Any, event_name: str, *args: Any, **kwargs: Any) -> Any:
        guard("compile_start", event_starts, graphs, module, event_name)
        return start(logger, event_name, *args, **kwargs)

    @functools.wraps(end)
    def log_event_end(logger: Any, event_name: str, *args: Any, **kwargs: Any) -> Any:
        guard("compile_end", event_ends, graphs, module, event_name)
        return end(logger, event_name, *args, **kwargs)

    setattr(log_event_start, MARK, True)
    setattr(log_event_end, MARK, True)
    for hook in ("compile_start", "compile_end"):
        exporter.rests(hook, (SECONDS, COUNT, START), phase=COMPILE)
    before = [seconds for key in _BEFORE for seconds in module.compilation_time_metrics.get(key, ())]
    if before:
        graphs.count(COMPILE, "unknown", sum(before), len(before))
    exporter.add(SECONDS, 0.0, phase=COMPILE, cache="cold")
    exporter.add(COUNT, 0.0, phase=COMPILE, cache="cold")
    kind.log_event_start, kind.log_event_end = log_event_start, log_event_end
    graphs.absent(COMPILE, "")


def event_starts(graphs: Graphs, module: Any, name: str) -> None:
    """A phase begins on this thread: a new span, unless it is inside a compile."""
    if name in _ENDLESS:
        return
    span = graphs.spans.innermost()
    if span is None or span.kind != COMPILE:
        span = graphs.spans.begin(COMPILE, None)
        span.hits, span.misses = _cache_counts(module)
        graphs.compile_begins(span)
    span.events.append(name)
    span.seen.add(name)


def event_ends(graphs: Graphs, module: Any, name: str) -> None:
    """A phase ends; the outermost one is counted. Inner ones whose end was lost end with it."""
    span = graphs.spans.find(COMPILE)
    if name in _ENDLESS or span is None or name not in span.events:
        return
    at = len(span.events) - 1 - span.events[::-1].index(name)
    del span.events[at:]
    if at:
        return
    seconds = graphs.compile_ends(span)
    hits, misses = _cache_counts(module)
    generated = any(event.endswith(_GENERATES) for event in span.seen)
    if generated or misses > span.misses:
        cache = "cold"
    elif hits > span.hits or _LOADS in span.seen:
        cache = "warm"
    else:
        cache = "unknown"
    whole = not _ENTRIES.isdisjoint(span.seen)
    part = not span.covered and (generated or not _PARTS.isdisjoint(span.seen))
    graphs.count(COMPILE, cache, seconds, int(whole or part))


def _cache_counts(module: Any) -> tuple[int, int]:
    """Hits, and misses with bypasses, of this process so far. Reads without creating entries."""
    inductor = module.counters.get("inductor") or {}
    autograd = module.counters.get("aot_autograd") or {}
    hits = inductor.get("fxgraph_cache_hit", 0) + autograd.get("autograd_cache_hit", 0)
    return hits, inductor.get("fxgraph_cache_miss", 0) + inductor.get("fxgraph_cache_bypass", 0)
