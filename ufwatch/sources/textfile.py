"""The directory of textfiles of one target, read away from the event loop.

Each read runs in a thread of its own and not in the loop's shared pool: a directory on a hung network file system
holds its thread for ever, and in the shared pool that would starve name look-ups and hold up the agent's exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import stat
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from ufwatch.clock import Clock
from ufwatch.decode.textfile import (
    TextFile,
    TextFileFault,
    TextfileSnapshot,
    TextfileState,
    parse_file,
    sequence_of,
    step,
)
from ufwatch.model import Health, Reason

MAX_FILE_BYTES = 1 << 20
MAX_FILES = 256
MAX_ENTRIES = 4096
"""Directory entries looked at: somebody may name the wrong directory."""
TORN_READS = 5
"""Times a file that is being written in place is read before it is given up for this poll."""
_TORN_PAUSE_SECONDS = 0.001
_NEVER = threading.Event()
"""Never set: waited on for a pause, since only the clock module has to do with time."""
_HEADER_BYTES = 256
_NAME = re.compile(r"[A-Za-z0-9_]+-[A-Za-z0-9_.-]+\.prom", re.ASCII)


@dataclass(slots=True)
class DirectoryRead:
    """What one look at a directory found, by file name; ``problem`` is set when the directory itself failed."""

    files: dict[str, TextFile] = field(default_factory=dict)
    faults: dict[str, TextFileFault] = field(default_factory=dict)
    problem: Health | None = None


class TextfileSource:
    """Polls one directory and keeps the sums over its writers.

    ``agent_start_wall`` is the agent's start in unix seconds by ``clock``; ``timeout_seconds`` is the longest a poll
    waits for the file system.
    """

    def __init__(self, directory: Path, clock: Clock, agent_start_wall: float, *, timeout_seconds: float = 2.0) -> None:
        self._directory = directory
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        # The start as a distance in monotonic time: a wall clock set right later moves it along with the writers'.
        self._start_monotonic = clock.monotonic() - (clock.wall() - agent_start_wall)
        self._state = TextfileState()
        self._reading: asyncio.Future[DirectoryRead] | None = None

    async def poll(self) -> TextfileSnapshot:
        """Reads the directory once. Never raises for what the file system does: health says it.

        Waits on a read that is still going on rather than beginning a second one; after the timeout the answer is
        down with ``timeout``, and the read's result is taken by a later poll.
        """
        if self._reading is None:
            self._reading = _in_thread(self._directory)
        reading = self._reading
        await asyncio.wait({reading}, timeout=self._timeout_seconds)
        if not reading.done():
            return self._step(DirectoryRead(problem=self._timed_out()))
        if self._reading is reading:
            self._reading = None
        return self._step(reading.result())

    def _timed_out(self) -> Health:
        detail = f"{self._directory}: no answer from the file system for {self._timeout_seconds:g} s"
        return Health(up=False, reason=Reason.TIMEOUT, detail=detail)

    def _step(self, read: DirectoryRead) -> TextfileSnapshot:
        now_wall = self._clock.wall()
        agent_start_wall = now_wall - (self._clock.monotonic() - self._start_monotonic)
        self._state, snapshot = step(
            self._state, read.files, agent_start_wall=agent_start_wall, now_wall=now_wall, faults=read.faults
        )
        return snapshot if read.problem is None else replace(snapshot, health=read.problem, absolute={}, absent={})


def _in_thread(directory: Path) -> asyncio.Future[DirectoryRead]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[DirectoryRead] = loop.create_future()

    def deliver(outcome: DirectoryRead | Exception) -> None:
        if future.done():
            return
        if isinstance(outcome, DirectoryRead):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)

    def work() -> None:
        outcome: DirectoryRead | Exception
        try:
            outcome = read_directory(directory)
        except Exception as error:  # a bug must reach the poll, or the source would read as hung for ever
            outcome = error
        # The loop may be gone when a hung file system answers at last.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, outcome)

    threading.Thread(target=work, name="ufwatch-textfile", daemon=True).start()
    return future


def read_directory(directory: Path) -> DirectoryRead:
    """Reads and parses every textfile in ``directory``, blocking. Anything that is no regular file is passed over.

    Of more than ``MAX_FILES`` the most recently changed are read, and a fault tells that there are more.
    """
    read = DirectoryRead()
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        read.problem = _unreadable(directory, error)
        return read
    try:
        for name in _names(handle, read):
            outcome = _read_file(handle, name)
            if isinstance(outcome, TextFile):
                read.files[name] = outcome
            elif outcome is not None:
                read.faults[name] = outcome
    except OSError as error:
        read.problem = _unreadable(directory, error)
    finally:
        os.close(handle)
    return read


def _names(handle: int, read: DirectoryRead) -> list[str]:
    found: list[tuple[float, str]] = []
    too_many = False
    with os.scandir(handle) as entries:
        for looked_at, entry in enumerate(entries):
            if looked_at >= MAX_ENTRIES:
                too_many = True
                break
            # A file may vanish between being listed and being looked at.
            with contextlib.suppress(FileNotFoundError):
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    found.append((entry.stat(follow_symlinks=False).st_mtime, entry.name))
    if too_many or len(found) > MAX_FILES:
        detail = f"more than {MAX_FILES} files: remove those of writers long gone"
        read.faults["(directory)"] = TextFileFault(reason=Reason.OUT_OF_RANGE, detail=detail)
    found.sort(reverse=True)
    return [name for _, name in found[:MAX_FILES]]


def _read_file(directory: int, name: str) -> TextFile | TextFileFault | None:
    """One file; None when it is gone, or is no regular file after all."""
    # O_NONBLOCK: opening a FIFO put in place since the listing must not wait for its writer.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(name, flags, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        return _failed(error)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return _read_whole(handle)
    except OSError as error:
        return _failed(error)
    finally:
        os.close(handle)


def _read_whole(handle: int) -> TextFile | TextFileFault:
    outcome: TextFile | TextFileFault | None = None
    for attempt in range(TORN_READS):
        if attempt:
            _NEVER.wait(_TORN_PAUSE_SECONDS)
        # The sequence number before, within and after the whole: one read is not sure to copy front to back.
        before = sequence_of(os.pread(handle, _HEADER_BYTES, 0))
        data = _pread_all(handle)
        if len(data) > MAX_FILE_BYTES:
            return TextFileFault(reason=Reason.OUT_OF_RANGE, detail=f"larger than {MAX_FILE_BYTES} bytes")
        outcome = parse_file(data)
        torn = outcome.torn if isinstance(outcome, TextFileFault) else False
        if not torn and before == sequence_of(data) == sequence_of(os.pread(handle, _HEADER_BYTES, 0)):
            return outcome
    detail = f"still being written after {TORN_READS} reads"
    return TextFileFault(reason=Reason.INCONSISTENT, detail=detail, torn=True)


def _pread_all(handle: int) -> bytes:
    """The file from its beginning, at most one byte more than is allowed."""
    data = bytearray()
    while len(data) <= MAX_FILE_BYTES:
        piece = os.pread(handle, MAX_FILE_BYTES + 1 - len(data), len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def _failed(error: OSError) -> TextFileFault:
    reason = Reason.PERMISSION if isinstance(error, PermissionError) else Reason.CONTENT
    return TextFileFault(reason=reason, detail=error.strerror or str(error))


def _unreadable(directory: Path, error: OSError) -> Health:
    if isinstance(error, PermissionError):
        detail = f"{directory}: not readable; let the agent's user read and search it"
        return Health(up=False, reason=Reason.PERMISSION, detail=detail)
    if isinstance(error, FileNotFoundError):
        return Health(up=False, reason=Reason.NO_SOURCE, detail=f"{directory}: no such directory")
    return Health(up=False, reason=Reason.NO_SOURCE, detail=f"{directory}: {error.strerror or error}")
