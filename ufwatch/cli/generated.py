"""Generated files on disk: written beside and renamed, and compared with what would be written now."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ufwatch.errors import ConfigError


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Writes every file that is not there as it should be, and returns the names of those.

    Makes the folder if need be. A reader sees the old file or the new one, and where one cannot be written all of the
    old ones: rules must not go by recordings of another time. ConfigError then.
    """
    changed = differing(folder, files) if folder.is_dir() else list(files)
    beside: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in changed:
            if (folder / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(folder / name))
        for name in changed:
            beside[name] = _beside(folder / name, files[name])
        for name in changed:
            os.replace(beside[name], folder / name)
            del beside[name]
    except OSError as error:
        where = error.filename or folder
        raise ConfigError("--write", [f"{where}: cannot be written ({error.strerror}); give another folder"]) from error
    finally:
        for left in beside.values():
            with contextlib.suppress(OSError):
                os.unlink(left)
    return changed


def differing(folder: Path, files: Mapping[str, str]) -> list[str]:
    """The names of the files that are missing from the folder or differ. ConfigError where there is no folder."""
    if not folder.is_dir():
        raise ConfigError("--check", [f"{folder} is not a folder; write the files there first"])
    return [name for name, text in files.items() if _content(folder / name) != text.encode()]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _beside(path: Path, text: str) -> str:
    """Writes the file that is to take the place of ``path``, and returns its name."""
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        # A temporary file is for its owner alone; a generated one is for whoever could read a file made here.
        os.chmod(beside, 0o666 & ~_mask())
    except BaseException:
        os.unlink(beside)
        raise
    return beside


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
