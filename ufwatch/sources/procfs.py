"""Command lines of the processes we can see, for the doctor: a sidecar in the pod's process space sees vLLM's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

DEFAULT_VLLM_PORT = 8000


def command_lines(proc: Path = Path("/proc")) -> tuple[tuple[str, ...], ...]:
    """The arguments of every readable process; what vanishes or is not ours to read is left out."""
    found = []
    for entry in proc.iterdir() if proc.is_dir() else ():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            found.append(tuple(words[:-1] if words and not words[-1] else words))
    return tuple(found)


def serving(url: str, commands: Iterable[Sequence[str]]) -> tuple[str, ...] | None:
    """The command line of the vLLM that serves this port; None when none can be seen or several claim it.

    Only for loopback addresses: a port of another host says nothing about the processes of this one.
    """
    parts = urlsplit(url)
    if parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    matching = [tuple(words) for words in commands if _is_vllm(words) and _port(words) == port]
    return matching[0] if len(matching) == 1 else None


def _is_vllm(words: Sequence[str]) -> bool:
    named = any(word.rsplit("/", 1)[-1] == "vllm" for word in words[:3])
    return (named and "serve" in words) or any(word.startswith("vllm.entrypoints.") for word in words)


def _port(words: Sequence[str]) -> int:
    text = str(DEFAULT_VLLM_PORT)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--port":
            text = following
        elif word.startswith("--port="):
            text = word.removeprefix("--port=")
    return int(text) if text.isdecimal() else DEFAULT_VLLM_PORT
