"""How late the event loop was: the doubt about every moment that was stamped in it."""

from __future__ import annotations

import asyncio

TICK_SECONDS = 0.005


class LagTicker:
    """Asks to be called every 5 ms and keeps the longest that it was called too late. For use in a ``with``."""

    def __init__(self) -> None:
        self.longest = 0.0
        """Seconds."""
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def __enter__(self) -> LagTicker:
        self._next()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.cancel()
            # Late already, though the call that would have told has not come yet.
            self.longest = max(self.longest, self._loop.time() - self._due)

    def _next(self) -> None:
        self._due = self._loop.time() + TICK_SECONDS
        self._handle = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self.longest = max(self.longest, self._loop.time() - self._due)
        self._next()
