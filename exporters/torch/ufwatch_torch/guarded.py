"""The failures of hooks: none reaches the host, each is counted, and what rests on a hook given up leaves the file.

A hook that fails for good must not leave its numbers standing: they would read as nothing happening, and as exact.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .promfile import Key

LOG = logging.getLogger("ufwatch")

MAX_SERIES = 2000
"""More label sets than that are a mistake in a hook: they are dropped and counted, the host keeps its memory."""
HOOK_FAILURES = 20

_What = tuple[str, frozenset[tuple[str, str]]]
"""A metric's name, and labels that its series have."""


class Guarded:
    """The part of an exporter that has to do with hooks that fail. No method raises."""

    _lock: threading.RLock
    _values: dict[Key, float]
    _changed: bool
    _void: list[_What]
    """Given up in this process; a forked child tries every hook anew."""
    _absent: dict[str, str]

    def __init__(self) -> None:
        self._resting: dict[str, list[_What]] = {}

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

    def failed(self, hook: str) -> None:
        """Call in an ``except`` block: counts the failure of ``hook``, and logs the first one of each hook."""
        try:
            key = _failures_of(hook)
            with self._lock:
                first = key not in self._values
                if first and len(self._values) >= MAX_SERIES + 50:
                    return
                if key not in self._values:
                    self._values[key] = 0.0
                self._values[key] += 1.0
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
            if self._values.get(_failures_of(hook), 0.0) >= HOOK_FAILURES:
                self.give_up(hook)

    def rests(self, hook: str, names: Sequence[str], **labels: str) -> None:
        """Series of ``names``, of these with ``labels``, are right only as long as ``hook`` works."""
        with self._lock:
            self._resting.setdefault(hook, []).extend((name, frozenset(labels.items())) for name in names)

    def give_up(self, hook: str) -> None:
        """``hook`` is no longer run: what rests on it leaves the file for good, and the file says why."""
        try:
            with self._lock:
                new = [what for what in self._resting.get(hook, ()) if what not in self._void]
                self._void += new
                for key in [key for key in self._values if self._is_void(key)]:
                    del self._values[key]
                self._changed = True
            for name, labels in new:
                inner = ",".join(f'{label}="{value}"' for label, value in sorted(labels))
                text = f"{name}{{{inner}}}" if inner else name
                self.absent(text, f"the hook {hook} failed too often and is left alone")
        except Exception:
            self.failed("give_up")

    def _is_void(self, key: Key) -> bool:
        name, labels = key
        return any(name == void and of.issubset(labels) for void, of in self._void)


def collecting(callback: Callable[[], None]) -> str:
    """The name of a collected callback as a hook."""
    return f"collect:{getattr(callback, '__qualname__', 'callback')}"


def _failures_of(hook: str) -> Key:
    return ("exporter_hook_errors_total", (("hook", str(hook)),))
