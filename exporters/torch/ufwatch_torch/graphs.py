"""CUDA-graph captures and compile time of this process.

``graph_compile_seconds_total{phase,cache}`` and ``graph_compiles_total{phase,cache}``:

* phase ``capture``: from the call of ``torch.cuda.CUDAGraph.capture_begin`` to the return of ``capture_end`` (which
  instantiates the graph) on one thread. The clean-up which ``torch.cuda.graph`` does before it (synchronize, empty
  caches) is not in it. A capture during which something was raised is no graph, but its seconds count. There is no
  cache for graphs: ``cache="unknown"``.
* phase ``compile``: see :mod:`.compiling`. Seconds spent capturing inside a compile count as capture, and the other
  way round; no second is counted twice.

``graph_compile_last_start_seconds{phase,cache}`` is the part that belongs to the start-up of this process. Start-up
ends when the host calls ``started``, or else when 60 s have passed after a compile or capture without another one. A
process that never compiles is not past its start-up. Later compiles raise the counters only.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from . import compiling
from .guarded import collecting
from .importing import loaded, poll, when_imported
from .spans import CAPTURE, COMPILE, COUNT, MARK, SECONDS, START, Span, Spans
from .textfile import Exporter

QUIET_S = 60.0


class Graphs:
    """Counts for one exporter. Methods are bodies of hooks: they may raise, ``Exporter.guard`` keeps it."""

    def __init__(
        self,
        exporter: Exporter,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.exporter = exporter
        self._monotonic, self._clock = monotonic, clock
        self.begin()

    def begin(self) -> None:
        """State of a process's first moment; again in a forked child."""
        self.spans = Spans(self._clock)
        self._start: dict[tuple[str, str], float] = {}
        self._active: float | None = None
        """When the last compile or capture began or ended."""
        self._lock = threading.RLock()
        self._compiling: weakref.WeakSet[Span] = weakref.WeakSet()
        """Open compiles of all threads. Weak: one whose end is lost goes with its thread's stack."""
        self._compiled_until = 0.0
        """``clock`` at the end of the last compile that no other one covers."""
        self._over = False

    def count(self, phase: str, cache: str, seconds: float, graphs: int) -> None:
        """Adds time, and ``graphs`` compiles or captures."""
        self.exporter.add(SECONDS, seconds, phase=phase, cache=cache)
        self.exporter.add(COUNT, graphs, phase=phase, cache=cache)
        self.touch()
        if not self._over:
            with self._lock:
                self._start[phase, cache] = self._start.get((phase, cache), 0.0) + seconds

    def touch(self) -> None:
        """Something compiles or captures: start-up is not over."""
        self._active = self._monotonic()

    def compile_begins(self, span: Span) -> None:
        """A compile begins, which may take longer than ``QUIET_S``."""
        with self._lock:
            span.covered = any(other.thread != span.thread for other in self._compiling)
            self._compiling.add(span)
        self.touch()

    def compile_ends(self, span: Span) -> float:
        """Its seconds in which no other thread was compiling: Inductor's helper threads work while the first waits."""
        own, now = self.spans.end(span)
        with self._lock:
            self._compiling.discard(span)
            others = [other for other in self._compiling if other.thread != span.thread]
            if any(other.began <= span.began for other in others):
                return 0.0
            if len(others) == len(self._compiling):  # else it is inside a capture inside a compile
                own -= max(0.0, self._compiled_until - span.began)
                self._compiled_until = now
        return max(0.0, own)

    def collect(self) -> None:
        """Once a turn of the writer."""
        poll()
        if self._over:
            return
        if self._compiling:
            self.touch()
        self._show()
        if self._active is not None and self._monotonic() - self._active >= QUIET_S:
            self._over = True

    def absent(self, phase: str, reason: str) -> None:
        """Why there are no counts of a phase; empty when there are."""
        self.exporter.absent(f'graph_compile{{phase="{phase}"}}', reason)

    def started(self) -> None:
        """The host's start-up is over."""
        if not self._over:
            self._show()
            self._over = True

    def _show(self) -> None:
        for (phase, cache), seconds in list(self._start.items()):
            self.exporter.set(START, seconds, phase=phase, cache=cache)

    # -- captures ----------------------------------------------------------------------------------------------------

    def watch_captures(self, torch: Any) -> None:
        """Puts two functions in front of ``CUDAGraph``'s own."""
        kind = torch.cuda.CUDAGraph
        begin, end = kind.capture_begin, kind.capture_end
        if getattr(begin, MARK, False):
            self.absent(CAPTURE, "another ufwatch exporter in this process counts them")
            return
        guard = self.exporter.guard

        @functools.wraps(begin)
        def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            guard("capture_begin", self._capture_begins, graph)
            try:
                return begin(graph, *args, **kwargs)
            except BaseException:
                guard("capture_begin", self._capture_ends, graph, False)
                raise

        @functools.wraps(end)
        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            handled = id(sys.exc_info()[1])
            whole = False
            try:
                result = end(graph, *args, **kwargs)
                whole = True
                return result
            finally:
                guard("capture_end", self._capture_ends, graph, whole, handled)

        setattr(capture_begin, MARK, True)
        setattr(capture_end, MARK, True)
        for hook in ("capture_begin", "capture_end"):
            self.exporter.rests(hook, (SECONDS, COUNT, START), phase=CAPTURE)
        self.exporter.add(SECONDS, 0.0, phase=CAPTURE, cache="unknown")
        self.exporter.add(COUNT, 0.0, phase=CAPTURE, cache="unknown")
        kind.capture_begin, kind.capture_end = capture_begin, capture_end
        self.absent(CAPTURE, "")

    def _capture_begins(self, graph: object) -> None:
        self.touch()
        self.spans.begin(CAPTURE, id(graph)).raised = id(sys.exc_info()[1])

    def _capture_ends(self, graph: object, whole: bool, handled: int = 0) -> None:
        span = self.spans.find(CAPTURE, id(graph))
        if span is None:
            # Begun before we were here, or in another thread: a graph without a time.
            self.count(CAPTURE, "unknown", 0.0, int(whole))
            return
        # ``torch.cuda.graph`` ends the capture also when the body raised; then nobody gets to use the graph.
        whole = whole and handled == span.raised
        self.count(CAPTURE, "unknown", self.spans.end(span)[0], int(whole))


_graphs: Graphs | None = None


def install(exporter: Exporter) -> None:
    """Observes this process, once: at once where torch is imported, else as soon as it is. Never raises."""
    global _graphs
    try:
        if _graphs is not None:
            return
        graphs = _graphs = Graphs(exporter)
        os.register_at_fork(after_in_child=graphs.begin)
        exporter.rests(collecting(graphs.collect), (START,))
        exporter.collect(graphs.collect)
        for phase, module in ((CAPTURE, "torch"), (COMPILE, "torch._dynamo.utils")):
            if loaded(module) is None:
                graphs.absent(phase, f"{module} is not imported in this process")
        when_imported("torch", lambda torch: _watch(graphs, CAPTURE, graphs.watch_captures, torch))
        when_imported("torch._dynamo.utils", lambda module: _watch(graphs, COMPILE, compiling.watch, graphs, module))
    except Exception:
        exporter.failed("graphs")


def started() -> None:
    """Call when the host is ready to serve: what is compiled from now on does not belong to the start-up."""
    graphs = _graphs
    if graphs is not None:
        graphs.exporter.guard("started", graphs.started)


def _watch(graphs: Graphs, phase: str, watch: Callable[..., None], *args: Any) -> None:
    try:
        watch(*args)
    except Exception as error:
        graphs.exporter.failed(f"watch_{phase}")
        graphs.absent(phase, f"this torch does not have what the hook needs: {error}")
