"""The GPUs through NVML: the one file that imports pynvml, and the one thread that calls it.

NVML calls block, and with a sick driver one may never return. They are made in a daemon thread: a poll returns within
its deadline whatever happens there, and the process can always exit.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ufwatch.clock import Clock
from ufwatch.decode.gpu import GpuSnapshot, Xid
from ufwatch.model import Health, Reason
from ufwatch.sources.nvml_session import NvmlSession

ABANDON_AFTER_SECONDS = 60.0
ABANDON_CAP_SECONDS = 600.0
MOST_ABANDONED = 3
"""A hung call is left alone for 60 s, its successor for 120 s, … and after three there is no further try: libnvidia-ml
holds locks of its own, so that a fourth thread would hang as well."""
_CLOSE_SECONDS = 1.0
_HUNG = "an NVML call has not returned in time"


class _Worker:
    """A daemon thread with one NVML session, doing one job at a time."""

    def __init__(self, load: Callable[[], NvmlSession]) -> None:
        self._load = load
        self._jobs: queue.SimpleQueue[tuple[Callable[[NvmlSession], Any], asyncio.Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="ufwatch-nvml", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[NvmlSession], Any]) -> asyncio.Future[Any]:
        """The answer of ``job``; only from within the event loop."""
        future = asyncio.get_running_loop().create_future()
        self._jobs.put((job, future))
        return future

    def stop(self) -> None:
        """Ends the thread after its present job, if that ever returns."""
        self._jobs.put(None)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        session: NvmlSession | None = None
        while (item := self._jobs.get()) is not None:
            job, future = item
            try:
                if session is None:
                    session = self._load()
                answer, failure = job(session), None
            except Exception as error:  # whatever a driver or its binding comes up with must not end the thread
                answer, failure = None, error
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, answer, failure)
            except RuntimeError:
                break  # the loop was closed: nobody will ask again
        if session is not None:
            session.close()


def _settle(future: asyncio.Future[Any], answer: object, failure: Exception | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if failure is None:
        future.set_result(answer)
    else:
        future.set_exception(failure)


class NvmlSource:
    """Polls all cards and MIG instances. Never raises; NVML is loaded at the first poll, in its thread."""

    def __init__(self, clock: Clock, *, gpm: bool, nvml: Any = None) -> None:
        self._clock = clock
        self._gpm = gpm
        self._nvml = nvml
        self._worker: _Worker | None = None
        self._job: asyncio.Future[GpuSnapshot] | None = None
        self._since = 0.0
        self._abandoned: list[_Worker] = []
        self._patience = ABANDON_AFTER_SECONDS
        self._late: list[Xid] = []

    async def poll(self, deadline_seconds: float) -> GpuSnapshot:
        """One snapshot, within the deadline: health TIMEOUT when NVML does not return in time."""
        started = self._clock.monotonic()
        if self._job is not None and not self._finish() and not self._abandon(started):
            return self._failed(started, Reason.TIMEOUT, _HUNG)
        if self._worker is None:
            self._worker = _Worker(self._load)
        self._since = started
        self._job = self._worker.submit(NvmlSession.poll)
        await asyncio.wait((self._job,), timeout=deadline_seconds)
        job = self._job
        if not job.done():
            return self._failed(started, Reason.TIMEOUT, _HUNG)
        self._job = None
        if job.cancelled():
            return self._failed(started, Reason.TIMEOUT, "the poll was cancelled")
        self._patience = ABANDON_AFTER_SECONDS
        failure = job.exception()
        if isinstance(failure, ImportError):
            return self._failed(started, Reason.NO_SOURCE, "the package nvidia-ml-py is not installed")
        if failure is not None:
            return self._failed(started, Reason.DRIVER, f"NVML: {type(failure).__name__}: {failure}")
        snapshot, late = job.result(), self._late
        self._late = []
        return replace(snapshot, xids=(*late, *snapshot.xids)) if late else snapshot

    async def close(self) -> None:
        """Gives NVML's resources back if that takes under a second; otherwise leaves the thread behind."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        if self._job is None or self._finish():
            await asyncio.wait((worker.submit(NvmlSession.close),), timeout=_CLOSE_SECONDS)
        worker.stop()

    def _finish(self) -> bool:
        """Takes note of a job that was late; its values are old, but an XID is told only once."""
        job = self._job
        if job is None or not job.done():
            return False
        self._job = None
        if not job.cancelled() and job.exception() is None:
            self._late += job.result().xids
        return True

    def _abandon(self, now: float) -> bool:
        """Walks away from a hung thread, if it has been given long enough and there are not too many already."""
        self._abandoned = [worker for worker in self._abandoned if worker.alive]
        if now - self._since < self._patience or len(self._abandoned) >= MOST_ABANDONED or self._worker is None:
            return False
        self._worker.stop()
        self._abandoned.append(self._worker)
        self._worker, self._job = None, None
        self._patience = min(ABANDON_CAP_SECONDS, 2 * self._patience)
        return True

    def _failed(self, started: float, reason: Reason, detail: str) -> GpuSnapshot:
        now = self._clock.monotonic()
        return GpuSnapshot(
            at_seconds=now, health=Health(up=False, reason=reason, detail=detail), poll_seconds=now - started
        )

    def _load(self) -> NvmlSession:
        nvml = self._nvml
        if nvml is None:
            import pynvml  # here and nowhere else: 30 ms and 6 MB that an agent without GPUs does not pay

            nvml = pynvml
        return NvmlSession(nvml, self._clock, gpm=self._gpm)
