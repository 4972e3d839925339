"""One SQLite file of the state directory: a write-ahead log, one writer, every save one transaction.

A file that is no sound database is moved aside, never repaired and never overwritten. All of it blocks: it is called
from threads (:mod:`ufwatch.keeper`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class StoreError(Exception):
    """The store cannot be used now; its text says why, in one line."""


class StoreTakenError(StoreError):
    """Another agent writes into this directory."""


class StoreDamagedError(StoreError):
    """The file was no sound database any more and has been moved aside."""


class StateFile:
    """Calls wait for each other. An error leaves the next call free to try again.

    ``holds`` is what the file keeps, for the line that says that another agent does. ``schema`` creates what is not
    there yet; a file of another ``version`` is left alone. ``moved_to`` ends the name of one found unsound.
    """

    def __init__(self, path: Path, *, holds: str, schema: str, version: int, moved_to: str = "corrupt") -> None:
        self.path = path
        self._holds, self._schema, self._version = holds, schema, version
        self._aside = path.with_name(f"{path.name}.{moved_to}")
        self._busy = threading.Lock()
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Lets go of the file; what was saved stays."""
        with self._busy:
            self._disconnect()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _checked(self, work: Callable[[], T]) -> T:
        """What ``work`` gives; what SQLite raises as a StoreError. The caller holds ``_busy``."""
        try:
            return work()
        except sqlite3.Error as error:
            # A connection may be what is broken (its disk was full or gone): the next call opens another.
            self._disconnect()
            if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, sqlite3.OperationalError):
                raise StoreError(f"{self.path}: {error}") from error
            problem = str(error)
        try:
            for end in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{end}", f"{self._aside}{end}")
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}") from error
        raise StoreDamagedError(f"{self.path}: {problem}; moved to {self._aside}")

    def _sound(self) -> sqlite3.Connection:
        """The database, looked through. Raises sqlite3.DatabaseError when it is damaged."""
        database = self._connect()
        (sound,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        return database

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._connect()
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._take()
            # One thread at a time, but not always the same one.
            database = sqlite3.connect(self.path, timeout=5.0, isolation_level=None, check_same_thread=False)
            self._connection = database
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version not in (0, self._version):
                self._disconnect()
                raise StoreError(f"{self.path}: written by another version of ufwatch (format {version})")
            database.executescript(self._schema)
            database.execute(f"PRAGMA user_version={self._version}")
        return self._connection

    def _take(self) -> None:
        """Two writers would each count what the other does not know of."""
        if self._lock is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(f"{self.path.parent}: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise StoreTakenError(f"{self.path.parent}: another ufwatch keeps its {self._holds} there") from error
        self._lock = lock

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
