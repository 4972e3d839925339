"""What an engine's process is: the version that it answers on ``/version``, and its command line where that is seen.

Asked once for each process, because its metrics page says neither.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence

from ufwatch.config import TargetConfig
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.line import End
from ufwatch.sources.procfs import command_lines, serving
from ufwatch.sources.threads import in_thread

DEADLINE_SECONDS = 5.0
_BODY_CAP_BYTES = 4096
_SECRET = "--api-key"


class VersionSource:
    """``commands`` gives the command lines that can be seen; it may block."""

    def __init__(self, fetcher: Fetcher, commands: Callable[[], Sequence[Sequence[str]]] = command_lines) -> None:
        self._fetcher, self._commands = fetcher, commands

    async def identify(self, target: TargetConfig) -> str | None:
        """Version and a digest of the flags; None where the engine does not say its version. Raises nothing.

        Only over plain HTTP: an engine on one of our own cards is seldom behind TLS.
        """
        version = await self._version(target)
        if version is None:
            return None
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                lines = await asyncio.wrap_future(in_thread(self._commands, "ufwatch-procfs"))
        except (OSError, ValueError):  # a time-out is an OSError
            lines = ()
        command = serving(target.url, lines)
        return f"{version} {flags_digest(command) if command is not None else ''}".rstrip()

    async def _version(self, target: TargetConfig) -> str | None:
        plain = await self._fetcher.plain(version_url(target.url), target.access)
        if plain is None:
            return None
        try:
            end = asyncio.get_running_loop().time() + DEADLINE_SECONDS
            reply = await plain.kept.ask(plain.request, end, _BODY_CAP_BYTES)
        except OSError:
            return None
        finally:
            plain.kept.close()
        if reply is None or reply.status != 200 or reply.end is not End.WHOLE:
            return None
        try:
            version = json.loads(reply.body)["version"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return version if isinstance(version, str) and version else None


def version_url(url: str) -> str:
    """The address of a target's version: ``/version`` beside its ``/metrics``."""
    return f"{url.rstrip('/').removesuffix('/metrics')}/version"


def flags_digest(command: Sequence[str]) -> str:
    """A digest of a command line without its secrets, which are no reason for another speed."""
    words = [
        word
        for before, word in zip(("", *command), command, strict=False)
        if before != _SECRET and not word.startswith(_SECRET)
    ]
    return hashlib.blake2b("\0".join(words).encode(), digest_size=8).hexdigest()
