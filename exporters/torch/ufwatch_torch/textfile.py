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
from typing import Any

from .promfile import Key, make_directory, replace, text_of, tidy, time_text

LOG = logging.getLogger("ufwatch")

TURN_S = 1.0
"""Seconds between two turns of the thread; so there is at most one write a second."""
HEARTBEAT_S = 3.5
"""Idle seconds after which a turn writes nevertheless. Turns are 1 s apart: every 4 s, and never above 5."""
MAX_SERIES = 2000
"""More label sets than that are a mistake in a hook: they are dropped and counted, the host keeps its memory."""
COLLECT_FAILURES = 5
HOOK_FAILURES = 20


class Exporter:
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
        self.directory = os.fspath(directory)
        with contextlib.suppress(OSError):  # there may be no working directory
            self.directory = os.path.abspath(self.directory)
        self.role = re.sub(r"[^A-Za-z0-9_-]", "_", str(role)) or "engine"
        self._wall, self._monotonic, self._given_wait = wall, monotonic, wait
        self._absent: dict[str, str] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._started = self._closed = self._asleep = False
        self._begin()
        make_directory(self.directory)
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
            with self._lock:
                value = self._values.get(key)
                if value is None:
                    self._enter(key, float(amount))
                elif amount:
                    self._values[key] = value + amount
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

    def absent(self, name: str, reason: str) -> None:
        """Says in the file (a comment) and once in the log why a metric is not there.

        Void as soon as ``name`` has a value; an empty reason takes it back (for a name with labels, say).
        """
        try:
            text = " ".join(str(reason).split())
            with self._lock:
                if self._absent.get(name, "") == text:
                    return
                self._absent[name] = text
                self._changed = True
            if text:
                LOG.info("ufwatch: no %s from process %d: %s", name, os.getpid(), text)
        except Exception:
            self.failed("absent")

    def collect(self, callback: Callable[[], None]) -> None:
        """``callback`` runs in the thread once a turn, before the write; after five exceptions no more."""
        with self._lock:
            self._callbacks.append(callback)

    def failed(self, hook: str) -> None:
        """Call in an ``except`` block: counts the failure of ``hook``, and logs the first one of each hook."""
        try:
            key = _failures_of(hook)
            with self._lock:
                first = key not in self._values
                if first and len(self._values) >= MAX_SERIES + 50:
                    return
                self._values[key] = self._values.get(key, 0.0) + 1.0
                self._changed = True
            if first:
                LOG.warning("ufwatch: %s failed, the process is not affected: %r", hook, sys.exc_info()[1])
        except Exception:
            pass

    def guard(self, hook: str, body: Callable[..., object], *args: Any) -> None:
        """Runs a hook's body. What it raises is counted and stays here; after 20 times the body is no longer run."""
        try:
            if self._values.get(_failures_of(hook), 0.0) < HOOK_FAILURES:
                body(*args)
        except Exception:
            self.failed(hook)

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
        self._values: dict[Key, float] = {}
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

    def _enter(self, key: Key, value: float) -> None:
        """A new series; the lock is held."""
        if len(self._values) >= MAX_SERIES:
            raise OverflowError(f"more than {MAX_SERIES} series; {key} is left out")
        self._values[key] = value
        self._changed = True

    def _put(self, name: str, value: float, labels: dict[str, str], *, monotone: bool) -> None:
        try:
            if not 0.0 <= value < math.inf:
                return
            key = (name, tuple(sorted(labels.items())))
            with self._lock:
                before = self._values.get(key)
                if before is None:
                    self._enter(key, float(value))
                elif value > before or (value < before and not monotone):
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
            # A forked multiprocessing child ends in os._exit, which runs no atexit; this it does run.
            finalize = getattr(sys.modules.get("multiprocessing.util"), "Finalize", None)
            if finalize is not None:
                finalize(None, self.close, exitpriority=0)
        thread = threading.Thread(target=self._run, name="ufwatch-export", daemon=True)
        thread.start()
        self._thread = thread

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        stop = self._stop
        wait = self._given_wait or stop.wait
        try:
            with contextlib.suppress(OSError):  # an unreadable directory: the write will say so
                tidy(self.directory, self._wall())
            last = False
            while not last:
                last = stop.is_set()
                self._turn(last)
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
            self.failed(f"collect:{getattr(callback, '__qualname__', 'callback')}")
            count = self._collect_failures[id(callback)] = self._collect_failures.get(id(callback), 0) + 1
            if count >= COLLECT_FAILURES:
                self._callbacks.remove(callback)

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


def _failures_of(hook: str) -> Key:
    return ("exporter_hook_errors_total", (("hook", str(hook)),))


_living: weakref.WeakSet[Exporter] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for exporter in list(_living):
        with contextlib.suppress(Exception):
            exporter._after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
