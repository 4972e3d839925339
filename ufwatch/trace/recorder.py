"""Where the moments of a request are kept while it runs, and how what works for it finds them."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from ufwatch.trace.phases import Mark, Moment


class Recorder:
    """The moments of one request as they are stamped. ``now`` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.marks: list[Mark] = []
        self.last_errno: int | None = None
        """Of the last attempt at connecting that failed: with several, aiohttp's error has none."""
        self.reused = False

    def mark(self, moment: Moment, detail: str = "", number: int = 0) -> None:
        """Stamps a moment as now."""
        self.marks.append(Mark(moment, self.now(), detail, number))

    def begin_again(self) -> None:
        """Forgets what was stamped: the request is sent anew."""
        self.marks = []
        self.last_errno = None
        self.reused = False


current: ContextVar[Recorder | None] = ContextVar("ufwatch_request", default=None)
"""Set by the task that makes the request, while it lasts; the event loop carries it into tasks and callbacks."""
