"""A line to one address, made anew when it was lost."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable

from ufwatch.sources.line import End, Line, Reply

KEEPALIVE_SECONDS = 4.0
"""Under the 5 s after which uvicorn closes an idle connection: the one that closes first never loses a request."""
_CONNECT_SECONDS = 1.0
"""Longer, and the client tries: it asks all addresses of a name beside each other."""

Addresses = Callable[[str, int], Awaitable[list[str]]]


class Kept:
    """Asks ``host`` over one connection, one GET at a time. ``addresses`` looks a name up and raises OSError."""

    def __init__(self, host: str, port: int, addresses: Addresses) -> None:
        self._host, self._port, self._addresses = host, port, addresses
        self._line: Line | None = None
        self._busy = self._closed = False

    async def ask(self, request: bytes, end: float, cap_bytes: int) -> Reply | None:
        """The answer, at the latest at ``end`` (in the loop's time); None where another GET is in flight.

        A connection that the server closed for being idle is replaced once. Raises OSError where none can be had.
        """
        if self._busy or self._closed:
            return None
        self._busy = True
        try:
            return await self._over(request, end, cap_bytes)
        finally:
            self._busy = False

    def close(self) -> None:
        """Ends the connection for good; whoever waits for an answer gets none."""
        self._closed = True
        self._hang_up()

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    async def _over(self, request: bytes, end: float, cap_bytes: int) -> Reply:
        loop = asyncio.get_running_loop()
        line = self._line
        if line is not None and line.open and loop.time() - line.idle_since < KEEPALIVE_SECONDS:
            reply = await line.ask(request, end, cap_bytes)
            if reply.end is not End.DROPPED or not reply.silent or self._closed:
                return reply
        self._hang_up()
        async with asyncio.timeout_at(min(end, loop.time() + _CONNECT_SECONDS)):
            line = self._line = await self._connected()
        return await line.ask(request, end, cap_bytes)

    async def _connected(self) -> Line:
        """A new connection to the first address that takes one. Raises OSError."""
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        try:
            for address in await self._found():
                try:
                    _, line = await loop.create_connection(Line, address, self._port)
                except OSError as error:
                    failure = error
                else:
                    return line
            raise failure or OSError(f"{self._host}: no address")
        finally:
            failure = None  # it holds this frame, which would hold it

    async def _found(self) -> list[str]:
        try:
            ipaddress.ip_address(self._host)
        except ValueError:
            return await self._addresses(self._host, self._port)
        return [self._host]
