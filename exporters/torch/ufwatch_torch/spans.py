"""Time that nests: which seconds of a thread went to compiling and which to capturing, none of them twice.

torch times its phases inside one another (dynamo around inductor around code generation), a CUDA-graph capture may
run inside a compile event and the other way round. Each thread has a stack of open spans; a span's seconds are those
from its begin to its end without the spans that ended inside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

COMPILE = "compile"
CAPTURE = "capture"
SECONDS = "graph_compile_seconds_total"
COUNT = "graph_compiles_total"
START = "graph_compile_last_start_seconds"
MARK = "__ufwatch__"
"""Attribute of every function put in place of torch's: there may be two copies of this package in a process."""

_DEEPEST = 64
"""More open spans than that are captures that never ended: the oldest are forgotten."""


class Span:
    """One open span; ``owner`` tells captures apart, the rest belongs to whoever opened it."""

    __slots__ = (
        "__weakref__",
        "began",
        "covered",
        "events",
        "hits",
        "inner",
        "kind",
        "misses",
        "owner",
        "raised",
        "seen",
        "thread",
    )

    def __init__(self, kind: str, owner: object, began: float) -> None:
        self.kind, self.owner, self.began = kind, owner, began
        self.thread = threading.get_ident()
        self.inner = 0.0
        """Seconds of the spans that ended inside this one."""
        self.events: list[str] = []
        """Compile events that are open."""
        self.seen: set[str] = set()
        """Compile events that were ever open."""
        self.hits = self.misses = 0
        """The cache counters at the beginning."""
        self.covered = False
        """Another thread compiled already when it began."""
        self.raised: int = 0
        """Identity of the exception that was being handled at the beginning; 0 for none."""


class Spans:
    """The stacks of all threads."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._local = threading.local()

    def begin(self, kind: str, owner: object) -> Span:
        """Opens a span of this thread."""
        stack = self._stack()
        if len(stack) >= _DEEPEST:
            del stack[0]
        span = Span(kind, owner, self._clock())
        stack.append(span)
        return span

    def find(self, kind: str, owner: object = None) -> Span | None:
        """The innermost open span of this thread of a kind, and of an owner where one is given."""
        for span in reversed(self._stack()):
            if span.kind == kind and (owner is None or span.owner == owner):
                return span
        return None

    def innermost(self) -> Span | None:
        """The span that is open and has none inside it."""
        stack = self._stack()
        return stack[-1] if stack else None

    def end(self, span: Span) -> tuple[float, float]:
        """Closes it, and spans inside it that were left open; its own seconds (≥ 0), and the clock at its end."""
        stack = self._stack()
        now = self._clock()
        elapsed = now - span.began
        del stack[stack.index(span) :]
        if stack:
            stack[-1].inner += elapsed
        return max(0.0, elapsed - span.inner), now

    def _stack(self) -> list[Span]:
        try:
            found: list[Span] = self._local.stack
        except AttributeError:
            found = self._local.stack = []
        return found
