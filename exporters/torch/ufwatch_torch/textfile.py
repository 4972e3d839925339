"""The writer: counts kept in memory, and a thread that writes them to one text file for the ufwatch agent.

It lives in a production inference process, so nothing here may harm the host: no method raises, all file work is done
by a daemon thread, a full disk or a missing directory costs one log line, and memory is bounded (``MAX_SERIES``).
The file ``<role>-<id>.prom`` is described in :mod:`.promfile`. Standard library only, Python 3.9.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import re
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable

from .guarded import HOOK_FAILURES, MAX_SERIES, Guarded, collecting
from .promfile import Key, make_directory, replace, text_of, tidy, time_text

LOG = logging.getLogger("ufwatch")
__all__ = ["HOOK_FAILURES", "MAX_SERIES", "Exporter"]

TURN_S = 1.0
"""Seconds between two turns of the thread; so there is at most one write a second."""
HEARTBEAT_S = 3.5
"""Idle seconds after which a turn writes nevertheless. Turns are 1 s apart: every 4 s, and never above 5."""
COLLECT_FAILURES = 5


class Exporter(Guarded):
    """Counters and gauges of this process, written to ``path`` at least every 5 s once ``start`` was called.

    Every method may be called from any thread and never raises. After ``os.fork`` the child has an own ``path``, an own
    start time and no counts; its thread begins with the first count (a child that counts nothing has no file).
    """

    def __init__(
        self,
        directory: str,
        role: str,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        """``wait(seconds)`` pauses the thread and returns True to end it; default: until ``close``."""
        super().__init__()
        self.directory = os.fspath(directory)
        with contextlib.suppress(OSError):  # there may be no working directory
            self.directory = os.path.abspath(self.directory)
        self.role = re.sub(r"[^A-Za-z0-9_-]", "_", str(role)) or "engine"
        self._wall, self._monotonic, self._given_wait = wall, monotonic, wait
        self._absent: dict[str, str] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._started = self._closed = self._asleep = False
        self._begin()
        _living.add(self)

    @property
    def path(self) -> str:
        """The file of this process."""
        return os.path.join(self.directory, self._name)

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Adds to a counter; ``name`` is without ``ufwatch_``. A negative or non-finite amount is left out."""
        try:
            if not 0.0 <= amount < math.inf:
                return
            key = (name, tuple(labels.items()) if len(labels) < 2 else tuple(sorted(labels.items())))
            by = float(amount)
            with self._lock:
                if key in self._values or self._enter(key):
                    # In one expression without a call: a signal handler that counts could run at one, and be lost.
                    self._values[key] += by
                    self._changed = True
            if self._asleep:
                self._arm()
        except Exception:
            self.failed("add")

    def total(self, name: str, value: float, **labels: str) -> None:
        """Sets a counter that is kept elsewhere to ``value``; a lower value than before is ignored."""
        self._put(name, value, labels, monotone=True)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge. The format knows no negative values: such a one is left out."""
        self._put(name, value, labels, monotone=False)

    def collect(self, callback: Callable[[], None]) -> None:
        """``callback`` runs in the thread once a turn, before the write; after five exceptions no more."""
        with self._lock:
            self._callbacks.append(callback)

    def start(self) -> None:
        """Starts the thread, once; in a forked child it starts the child's own."""
        try:
            with self._lock:
                if self._closed or (self._started and not self._asleep):
                    return
                first = not self._started
                self._started = self._asleep = True
            if first:
                atexit.register(self.close)
                if getattr(sys.modules.get("multiprocessing.process"), "_parent_process", None) is not None:
                    self._flush_with_multiprocessing()
            self._arm()
        except Exception:
            self.failed("start")

    def close(self) -> None:
        """Ends the thread, whose last turn writes once more; for good. Takes a second at most."""
        try:
            with self._lock:
                if self._closed:
                    return
                self._closed = True
            self._stop.set()
            thread = self._thread
            if thread is not None and thread is not threading.current_thread():
                thread.join(timeout=1.0)
            if thread is None and not self._forked:
                self._write()
            atexit.unregister(self.close)
        except Exception:
            self.failed("close")

    # -- state -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """State of a process's first moment. New locks too: another thread may have held them when it forked."""
        # Re-entrant: a signal handler or a finaliser that counts may interrupt a count in the same thread.
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._name = f"{self.role}-{uuid.uuid4().hex[:12]}.prom"
        self._start = time_text(self._wall())
        self._values = {}
        self._void = []
        self._collect_failures: dict[int, int] = {}
        self._changed = True
        self._complained = False
        self._written = -math.inf
        self._forked = False
        self._asleep = False
        """Started, but the thread waits for the first count: a forked child."""

    def _after_fork(self) -> None:
        self._begin()
        self._forked = True
        self._asleep = self._started and not self._closed

    def _enter(self, key: Key) -> bool:
        """Begins a new series at 0, unless what it rests on was given up; the lock is held."""
        if self._is_void(key):
            return False
        if len(self._values) >= MAX_SERIES:
            raise OverflowError(f"more than {MAX_SERIES} series; {key} is left out")
        if key not in self._values:  # entered meanwhile, by a signal handler
            self._values[key] = 0.0
        self._changed = True
        return True

    def _put(self, name: str, value: float, labels: dict[str, str], *, monotone: bool) -> None:
        try:
            if not 0.0 <= value < math.inf:
                return
            key = (name, tuple(sorted(labels.items())))
            with self._lock:
                if key not in self._values and not self._enter(key):
                    return
                before = self._values[key]
                if value > before or (value < before and not monotone):
                    self._values[key] = float(value)
                    self._changed = True
            if self._asleep:
                self._arm()
        except Exception:
            self.failed("total" if monotone else "set")

    def _arm(self) -> None:
        with self._lock:
            if not self._asleep or self._closed:
                return
            self._asleep = False
        if self._forked:
            # It begins with its first count: an agent that came between fork and count has missed nothing.
            self._start = time_text(self._wall())
            self._flush_with_multiprocessing()
        self._begin_thread()

    def _flush_with_multiprocessing(self) -> None:
        """A child of its fork and forkserver methods ends in ``os._exit``, which runs no atexit; this it does run."""
        finalize = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
        if finalize is not None:
            finalize(None, self._flush, exitpriority=-100)  # below 0: after it has waited for its own children

    def _flush(self) -> None:
        """Writes what may be the last time, a second at most, and goes on: other threads may still run for long."""
        try:
            thread = self._thread
            if self._closed or thread is None:
                return
            self._stop.set()
            thread.join(timeout=1.0)
            if not thread.is_alive():
                self._stop = threading.Event()
                self._begin_thread()
        except Exception:
            self.failed("flush")

    def _begin_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="ufwatch-export", daemon=True)
        thread.start()
        self._thread = thread

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        stop = self._stop
        wait = self._given_wait or stop.wait
        try:
            make_directory(self.directory)  # not before: a file system that hangs is to hang this thread alone
            with contextlib.suppress(OSError):  # an unreadable directory: the write will say so
                tidy(self.directory, self._wall())
            last = False
            while not last:
                last = stop.is_set()
                try:
                    self._turn(last)
                except Exception:  # such as from a log handler of the host
                    self.failed("turn")
                last = last or (wait(TURN_S) and not stop.is_set())
        except Exception:
            self.failed("thread")

    def _turn(self, last: bool = False) -> None:
        """One turn: the callbacks, then a write if there is something new or the heartbeat is due."""
        for callback in list(self._callbacks):
            self._call(callback)
        if last or self._changed or self._monotonic() - self._written >= HEARTBEAT_S:
            self._write()

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            self.failed(collecting(callback))
            count = self._collect_failures[id(callback)] = self._collect_failures.get(id(callback), 0) + 1
            if count >= COLLECT_FAILURES:
                self._callbacks.remove(callback)
                self.give_up(collecting(callback))

    def _write(self) -> None:
        """Writes the file. Anything that goes wrong is said once, and tried again at the next turn."""
        try:
            with self._lock:
                values, absent = dict(self._values), dict(self._absent)
                self._changed = False
            replace(self.directory, self._name, text_of(time_text(self._wall()), self._start, values, absent))
            self._written = self._monotonic()
            if self._complained:
                self._complained = False
                LOG.info("ufwatch: %s is written again", self.path)
        except Exception as error:
            self._changed = True
            if not self._complained:
                self._complained = True
                LOG.warning("ufwatch: cannot write %s, will keep trying: %s", self.path, error)


_living: weakref.WeakSet[Exporter] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for exporter in list(_living):
        with contextlib.suppress(Exception):
            exporter._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
