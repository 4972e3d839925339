"""One text file in the agent's format: its text, its replacement, and the removal of what dead writers left.

The format is the agent's (``ufwatch/decode/textfile_format.py``, ordinary writer): first line the heartbeat
``# ufwatch <unix time of this write> <unix time this writer began>``, then ``ufwatch_<name>{labels} value``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A series: name without ``ufwatch_``, and its labels sorted by name."""

EXPIRE_S = 3600.0
"""Files whose heartbeat is older belong to a writer long dead."""

_HEARTBEAT = re.compile(rb"# ufwatch (\d+(?:\.\d+)?) +\d+(?:\.\d+)?[ ]*\n")
_LEFT_BEHIND = re.compile(r"\.[A-Za-z0-9_-]+-[0-9a-f]{12}\.prom\.tmp")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def time_text(seconds: float) -> str:
    """Unix seconds as the heartbeat line has them: plain digits, to the millisecond."""
    return f"{seconds:.3f}"


def text_of(written: str, started: str, values: Mapping[Key, float], absent: Mapping[str, str]) -> bytes:
    """The whole file. ``absent`` (name → reason) becomes comments, except for names that have a value."""
    series: dict[str, float] = {}
    for (name, labels), value in values.items():
        inner = ",".join(f'{label}="{str(text).translate(_ESCAPES)}"' for label, text in labels)
        line = f"ufwatch_{name}{{{inner}}}" if inner else f"ufwatch_{name}"
        # A label given as 0 and as "0" is one series in the file, where a duplicate would be refused.
        series[line] = series.get(line, 0.0) + value
    present = {name for name, _ in values}
    lines = [f"# ufwatch {written} {started}"]
    lines += [f"# absent {name}: {reason}" for name, reason in sorted(absent.items()) if reason and name not in present]
    lines += [f"{line} {_number(value)}" for line, value in sorted(series.items())]
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")


def replace(directory: str, name: str, data: bytes) -> None:
    """Writes ``name`` beside, and renames it over: a reader sees the old file or the new one. Raises OSError."""
    beside = os.path.join(directory, f".{name}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        handle = os.open(beside, flags, 0o644)
    except FileNotFoundError:
        make_directory(directory)  # it vanished
        handle = os.open(beside, flags, 0o644)
    try:
        try:
            os.fchmod(handle, 0o644)  # whatever the host's umask: the agent may be another user
            while data:
                data = data[os.write(handle, data) :]
        finally:
            os.close(handle)
        os.replace(beside, os.path.join(directory, name))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def make_directory(directory: str) -> None:
    """Creates it if it can; if it cannot, the first write will say why."""
    with contextlib.suppress(OSError):
        os.makedirs(directory, mode=0o755, exist_ok=True)


def tidy(directory: str, now: float) -> None:
    """Removes the files of writers that have been dead for an hour: by heartbeat, never by pid. Raises OSError."""
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with contextlib.suppress(OSError):
            if name.endswith(".prom"):
                matched = _HEARTBEAT.match(_head_of(path))
                if matched is not None and now - float(matched[1]) > EXPIRE_S:
                    os.unlink(path)
            elif _LEFT_BEHIND.fullmatch(name) and now - os.lstat(path).st_mtime > EXPIRE_S:
                os.unlink(path)


def _head_of(path: str) -> bytes:
    """The first bytes of a regular file. A pipe that somebody put there would hold the thread for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return os.read(handle, 200) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
    finally:
        os.close(handle)


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and value < 2**53 else repr(value)
