"""Who may stay connected: so many at a time, and nobody who asks for nothing.

Without it a client that opens connections and sends half a request takes every file descriptor the agent has, and the
agent can no longer read its targets. Handshakes of TLS are not counted: their own time limit bounds them.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import cast

from aiohttp import web

MOST_CONNECTIONS = 256
_FIRST_REQUEST_SECONDS = 10.0
_KEEPALIVE_SECONDS = 75.0
"""Longer than the usual scrape interval of a minute; aiohttp's own is an hour."""


def most_connections() -> int:
    """At most half of what the process may open: the other half is for its targets."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, allowed // 2))


class Door:
    """Makes the protocol of each accepted connection of ``server``.

    One too many closes the oldest, not itself: whoever holds connections must not keep a new scrape out. One that has
    sent no whole request after ``seconds`` is closed.
    """

    def __init__(
        self,
        server: web.Server,
        *,
        most: int,
        seconds: float = _FIRST_REQUEST_SECONDS,
        logger: logging.Logger,
    ) -> None:
        self._server = server
        self._most = most
        self._logger = logger
        self._open: dict[Conversation, asyncio.Transport] = {}
        self.seconds = seconds

    def __call__(self) -> Conversation:
        loop = asyncio.get_running_loop()
        return Conversation(
            self, self._server, loop=loop, access_log=None, logger=self._logger, keepalive_timeout=_KEEPALIVE_SECONDS
        )

    def enter(self, one: Conversation, transport: asyncio.Transport) -> None:
        if len(self._open) >= self._most:
            # Not close(): that waits until a client which does not read has read.
            self._open.pop(next(iter(self._open))).abort()
        self._open[one] = transport

    def leave(self, one: Conversation) -> None:
        self._open.pop(one, None)


class Conversation(web.RequestHandler):
    """One connection of a :class:`Door`."""

    __slots__ = ("_door", "_limit")

    def __init__(
        self,
        door: Door,
        server: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        access_log: None,
        logger: logging.Logger,
        keepalive_timeout: float,
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=access_log,  # type: ignore[arg-type]  # aiohttp's own way to say: none
            logger=logger,
            keepalive_timeout=keepalive_timeout,
        )
        self._door = door
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # uvloop's transports are none by class.
        stream = cast(asyncio.Transport, transport)
        self._door.enter(self, stream)
        self._limit = self._loop.call_later(self._door.seconds, stream.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.asked()
        self._door.leave(self)
        super().connection_lost(exc)

    def asked(self) -> None:
        """A whole request has come; from now on the keep-alive limit holds."""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's answer to what is no HTTP, without aiohttp's version in it."""
        answer = super().handle_error(request, status, exc, message)
        answer.headers["Server"] = "ufwatch"
        return answer


async def note_request(request: web.Request, _: web.StreamResponse) -> None:
    """To be told before each answer (``Application.on_response_prepare``)."""
    if isinstance(request.protocol, Conversation):
        request.protocol.asked()
