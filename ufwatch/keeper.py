"""Work on a state file: in a thread of its own for each piece, its failures told once, its health on the page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ufwatch.clock import Clock
from ufwatch.core.sources import Life, life_samples
from ufwatch.model import UP, Health, Reason, Samples
from ufwatch.sources.threads import in_thread
from ufwatch.statefile import StoreError

T = TypeVar("T")

_ANSWER_SECONDS = 30.0
"""A save that takes longer is told; it is waited for all the same, as a second one would only queue behind it."""


class Keeper:
    """``source`` is the file's name among the agent's sources, ``words`` what it keeps, for the log."""

    def __init__(self, source: str, words: str, log: logging.Logger, clock: Clock) -> None:
        self._source, self._words, self._log, self._clock = source, words, log, clock
        self.life = Life(clock.monotonic(), Health(up=False, reason=Reason.WARMING_UP))

    async def answered(self, job: Callable[[], T]) -> T:
        """What ``job`` gives, made in a thread; what it raises is raised here."""
        future = asyncio.wrap_future(in_thread(job, f"ufwatch-{self._source}"))
        done, _ = await asyncio.wait({future}, timeout=_ANSWER_SECONDS)
        if not done:
            self.failed(StoreError(f"no answer from the file system for {_ANSWER_SECONDS:g} s"))
        return await future

    def saved(self, path: Path) -> None:
        """The file has taken what it was given."""
        if not self.life.health.up:
            self._log.info(f"{self._words} are saved", extra={"fields": {"path": str(path)}})
        self.life = self.life.seen(UP, self._clock.monotonic())

    def failed(self, error: StoreError) -> None:
        """The file could not be read or written; it is told when that begins."""
        reason = Reason.TIMEOUT if "no answer" in str(error) else Reason.RESOURCES
        if self.life.health.up or self.life.health.reason is Reason.WARMING_UP:
            fields = {"error": str(error)}
            self._log.error(f"{self._words} cannot be saved; they are kept in memory", extra={"fields": fields})
        self.life = self.life.seen(Health(up=False, reason=reason, detail=str(error)), self._clock.monotonic())

    def samples(self) -> Samples:
        """Whether the file takes what is saved, and since when it has not."""
        return life_samples("", {self._source: self.life}, self._clock.monotonic())
