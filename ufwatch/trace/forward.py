"""Passes on what was received, from a bounded queue: who puts something in never waits, at worst it is dropped.

One request after the other is sent, several queued ones together, since the lists they are can simply be joined. Every
span ends up delivered or in one drop counter with its reason; nothing is dropped in silence and nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

logger = logging.getLogger(__name__)


class Drop(StrEnum):
    """Why a span was not passed on."""

    QUEUE_FULL = "queue_full"
    REJECTED = "rejected"
    """The backend said no, for good, to a request or to single spans of it."""
    TOO_LARGE = "too_large"
    EXPIRED = "expired"
    """The backend could not be reached for too long."""
    SHUTDOWN = "shutdown"
    """Still here when we had to stop; what was just being sent may have arrived."""


class Verdict(StrEnum):
    DELIVERED = "delivered"
    RETRY = "retry"
    REJECTED = "rejected"
    TOO_LARGE = "too_large"


class Outcome(NamedTuple):
    """What became of one attempt. ``after``: seconds that the backend asks to wait; ``why`` for a person."""

    verdict: Verdict
    rejected: int = 0
    after: float | None = None
    why: str = ""


class Transport(Protocol):
    """Speaks to a backend. ``send`` raises nothing but cancellation and ends within its own time limit."""

    async def send(self, payload: bytes) -> Outcome: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much waits at most, how much is sent at a time, how long it is tried. Bytes as received, seconds."""

    most_bytes: int = 16 * 2**20
    most_spans: int = 65_536
    most_bytes_at_once: int = 2**20
    most_seconds: float = 120.0
    first_pause: float = 0.5
    longest_pause: float = 15.0
    longest_asked_pause: float = 60.0


class Counts(NamedTuple):
    """Spans, since the start: ``received`` is always the sum of all the others."""

    received: int
    delivered: int
    waiting: int
    dropped: Mapping[Drop, int]
    why: str = ""
    """What the backend answered last when it did not take something."""


class _Waiting(NamedTuple):
    payload: bytes
    spans: int
    since: float


class Forwarder:
    """``dress`` gets each request before it leaves and returns it with what is added; ``now`` gives monotonic seconds,
    ``pause`` waits so many of them, ``random`` gives 0–1 for spreading retries."""

    def __init__(
        self,
        transport: Transport,
        *,
        dress: Callable[[bytes], Awaitable[bytes]],
        now: Callable[[], float],
        random: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        limits: Limits | None = None,
    ) -> None:
        self._transport, self._dress, self._now, self._random, self._pause = transport, dress, now, random, pause
        self._limits = limits or Limits()
        self._queue: deque[_Waiting] = deque()
        self._bytes = self._spans = self._received = self._delivered = 0
        self._dropped: Counter[Drop] = Counter(dict.fromkeys(Drop, 0))
        self._some = asyncio.Event()
        self._hurry = asyncio.Event()
        self._closed = self._failing = False
        self._why = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to send, in the running loop."""
        self._task = asyncio.create_task(self._run(), name="otlp forwarder")

    def offer(self, payload: bytes, spans: int) -> int:
        """Takes a request with ``spans`` spans, at once; returns how many of them are dropped: none or all."""
        self._received += spans
        limits = self._limits
        if self._closed:
            return self._drop(Drop.SHUTDOWN, spans)
        if self._bytes + len(payload) > limits.most_bytes or self._spans + spans > limits.most_spans:
            return self._drop(Drop.QUEUE_FULL, spans)
        if spans:
            self._queue.append(_Waiting(payload, spans, self._now()))
            self._bytes += len(payload)
            self._spans += spans
            self._some.set()
        return 0

    @property
    def counts(self) -> Counts:
        """What became of the spans so far."""
        return Counts(self._received, self._delivered, self._spans, dict(self._dropped), self._why)

    async def close(self, within: float = 2.0) -> None:
        """Sends what waits if the backend takes it, and stops within so many seconds; the rest counts as dropped."""
        self._closed = True
        self._hurry.set()
        self._some.set()
        if self._task is not None:
            # Not awaited itself: it may have been cancelled before us, and that is not our own cancellation.
            await asyncio.wait((self._task,), timeout=within * 0.7)
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=within * 0.1)
        while self._queue:
            self._give_up([self._queue.popleft()], Drop.SHUTDOWN)
        try:
            async with asyncio.timeout(within * 0.2):
                await self._transport.close()
        except TimeoutError:
            logger.warning("the connection to the trace backend did not close in time and is cut")

    async def _run(self) -> None:
        while self._queue or not self._closed:
            if not self._queue:
                self._some.clear()
                await self._some.wait()
                continue
            parts = self._take()
            try:
                await self._deliver(parts)
            except asyncio.CancelledError:
                self._give_up(parts, Drop.SHUTDOWN)
                raise
            except Exception:
                logger.exception("spans could not be passed on; this is a bug in ufwatch")
                self._give_up(parts, Drop.REJECTED)

    def _take(self) -> list[_Waiting]:
        """The next requests that fit together. They count as waiting until it is known what became of them."""
        parts = [self._queue.popleft()]
        size = len(parts[0].payload)
        while self._queue and size + len(self._queue[0].payload) <= self._limits.most_bytes_at_once:
            size += len(self._queue[0].payload)
            parts.append(self._queue.popleft())
        return parts

    async def _deliver(self, parts: list[_Waiting]) -> None:
        """Sends until it is known what became of the parts; empties the list as it is."""
        payload = await self._joined(parts)
        pause = self._limits.first_pause
        while parts:
            outcome = await self._transport.send(payload)
            if outcome.verdict is Verdict.RETRY:
                self._note(outcome)
                if self._hurry.is_set():
                    return self._give_up(parts, Drop.SHUTDOWN)
                if self._expire(parts):
                    payload = await self._joined(parts)
                    continue
                await self._rest(self._wait(pause, outcome.after))
                pause = min(pause * 2, self._limits.longest_pause)
                continue
            if outcome.verdict is not Verdict.DELIVERED:
                self._note(outcome)
                if len(parts) > 1:
                    # One bad request must not take its neighbours with it.
                    return await self._one_by_one(parts)
                reason = Drop.TOO_LARGE if outcome.verdict is Verdict.TOO_LARGE else Drop.REJECTED
                return self._give_up(parts, reason)
            self._settle(parts, outcome)
        return None

    async def _one_by_one(self, parts: list[_Waiting]) -> None:
        while parts:
            single = [parts.pop(0)]
            try:
                await self._deliver(single)
            except asyncio.CancelledError:
                self._give_up(single, Drop.SHUTDOWN)
                raise

    def _expire(self, parts: list[_Waiting]) -> bool:
        """Gives up those of the parts that have been tried for too long; whether there were any."""
        oldest = self._now() - self._limits.most_seconds
        expired = [part for part in parts if part.since < oldest]
        parts[:] = [part for part in parts if part.since >= oldest]
        found = bool(expired)
        self._give_up(expired, Drop.EXPIRED)
        return found

    def _wait(self, pause: float, asked: float | None) -> float:
        if asked is not None:
            return max(pause, min(asked, self._limits.longest_asked_pause))
        # Between half and all of it, so that many agents do not come back in step.
        return pause * (0.5 + self._random() / 2)

    def _settle(self, parts: list[_Waiting], outcome: Outcome) -> None:
        spans = sum(part.spans for part in parts)
        # Children of ours may be among the rejected, so there may be more of them than were received.
        rejected = min(outcome.rejected, spans)
        self._delivered += spans - rejected
        self._release(parts)
        if rejected:
            self._drop(Drop.REJECTED, rejected)
            self._note(outcome)
        elif self._failing:
            self._failing = False
            logger.info("the trace backend takes spans again")

    def _give_up(self, parts: list[_Waiting], reason: Drop) -> None:
        self._drop(reason, sum(part.spans for part in parts))
        self._release(parts)

    def _release(self, parts: list[_Waiting]) -> None:
        self._bytes -= sum(len(part.payload) for part in parts)
        self._spans -= sum(part.spans for part in parts)
        parts.clear()

    def _drop(self, reason: Drop, spans: int) -> int:
        self._dropped[reason] += spans
        return spans

    def _note(self, outcome: Outcome) -> None:
        self._why = outcome.why
        if not self._failing:
            self._failing = True
            logger.warning("the trace backend does not take spans", extra={"fields": {"why": outcome.why}})

    async def _joined(self, parts: list[_Waiting]) -> bytes:
        return b"".join([await self._dressed(part.payload) for part in parts])

    async def _dressed(self, payload: bytes) -> bytes:
        try:
            return await self._dress(payload)
        except Exception:
            logger.exception("spans are passed on without their children; this is a bug in ufwatch")
            return payload

    async def _rest(self, seconds: float) -> None:
        """Waits, but no longer once there is hurry."""
        waits = (asyncio.ensure_future(self._pause(seconds)), asyncio.ensure_future(self._hurry.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
