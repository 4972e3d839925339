"""Generated files on disk: written beside and renamed, and compared with what would be written now."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ufwatch.errors import ConfigError


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Writes every file that is not there as it should be, and returns the names of those.

    Makes the folder if need be. A reader sees the old file or the new one. ConfigError where it cannot be written.
    """
    changed = differing(folder, files) if folder.is_dir() else list(files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in changed:
            _replace(folder / name, files[name])
    except OSError as error:
        where = error.filename or folder
        raise ConfigError("--write", [f"{where}: cannot be written ({error.strerror}); give another folder"]) from error
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


def _replace(path: Path, text: str) -> None:
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        # A temporary file is for its owner alone; a generated one is for whoever could read a file made here.
        os.chmod(beside, 0o666 & ~_mask())
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
