"""The operating system's look-up of host names, so that one slow name server delays nobody but its own target."""

from __future__ import annotations

import asyncio
import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from ufwatch.sources.threads import in_thread

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class SystemResolver(AbstractResolver):
    """As aiohttp's own, but on threads that nobody waits for."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """All addresses of a name. OSError when there are none."""
        return await asyncio.wrap_future(in_thread(lambda: _look_up(host, port, family), "ufwatch-resolver"))

    async def close(self) -> None:
        """Nothing is held."""


def _look_up(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    found: list[ResolveResult] = []
    for kind, _, protocol, _, address in socket.getaddrinfo(
        host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    ):
        # The numeric form of a link-local address names its interface, which the bare address lacks.
        numeric, _ = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
        found.append(ResolveResult(hostname=host, host=numeric, port=port, family=kind, proto=protocol, flags=_NUMERIC))
    return found
