"""Look-ups of names that stamp when they begin and end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from aiohttp.abc import AbstractResolver, ResolveResult

from ufwatch.sources.threads import in_thread
from ufwatch.trace.phases import Mark, Moment
from ufwatch.trace.recorder import current

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
_THREAD = "ufwatch-resolver"


class TimedResolver(AbstractResolver):
    """Stamps the look-ups of ``inner``. Closing it closes ``inner``."""

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        recorder = current.get()
        if recorder is None:
            return await self._inner.resolve(host, port, family)
        recorder.mark(Moment.DNS_START, host)
        found: list[ResolveResult] = []
        try:
            found = await self._inner.resolve(host, port, family)
        finally:
            recorder.mark(Moment.DNS_END, " ".join(entry["host"] for entry in found))
        return found

    async def close(self) -> None:
        await self._inner.close()


LookUp = Callable[[str, int, socket.AddressFamily], list[ResolveResult]]


class TimedSystemResolver(AbstractResolver):
    """The operating system's look-up, stamped in the thread that waits for it: starting that thread and waking the loop
    are no part of it. As in ``ufwatch.sources.resolver``, nobody waits for a thread that hangs."""

    def __init__(self, look_up: LookUp | None = None) -> None:
        self._look_up = look_up or system_look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        recorder = current.get()
        if recorder is None:
            return await asyncio.wrap_future(in_thread(lambda: self._look_up(host, port, family), _THREAD))
        recorder.mark(Moment.DNS_START, host)
        marks, place, now = recorder.marks, len(recorder.marks) - 1, recorder.now
        stamps: list[float] = []

        def job() -> list[ResolveResult]:
            stamps.append(now())
            try:
                return self._look_up(host, port, family)
            finally:
                stamps.append(now())

        try:
            return await asyncio.wrap_future(in_thread(job, _THREAD))
        finally:
            # Of one that was given up there is no end, and the thread may yet stamp one: so they are counted first.
            ends = tuple(stamps)
            if ends:
                marks[place] = Mark(Moment.DNS_START, ends[0], host)
            if len(ends) == 2:
                marks.append(Mark(Moment.DNS_END, ends[1]))

    async def close(self) -> None:
        """Nothing is held."""


def system_look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    """All addresses of a name, in the system's order. OSError when there are none. Blocks."""
    found: list[ResolveResult] = []
    for kind, _, protocol, _, address in socket.getaddrinfo(
        host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    ):
        # A link-local address means nothing without its interface, which has a place of its own in the answer.
        zone = f"%{address[3]}" if len(address) == 4 and address[3] else ""
        numeric = f"{address[0]}{zone}"
        found.append(ResolveResult(hostname=host, host=numeric, port=port, family=kind, proto=protocol, flags=_NUMERIC))
    return found
