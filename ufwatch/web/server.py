"""Starts and stops listening: sockets before anything else, so that a failure is one line and an exit, not a thread's.

A wrong address, a port in use or one that needs privileges raises before the agent calls itself ready.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from dataclasses import dataclass
from ssl import SSLContext

from aiohttp import web

from ufwatch.config import WebConfig
from ufwatch.errors import ListenError
from ufwatch.web.door import Door, most_connections, note_request

logger = logging.getLogger(__name__)

_STRANGERS = logging.getLogger(f"{__name__}.protocol")
_STRANGERS.setLevel(logging.CRITICAL)
"""aiohttp logs a traceback for each request that is no HTTP, so a port scan would fill the log. It gets its 400."""

_BACKLOG = 128
_GRACE_SECONDS = 0.4  # for answers being written; all come from memory
_STOP_SECONDS = 1.5
_HANDSHAKE_SECONDS = 5.0
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An application that answers. ``url`` is where a person on this machine finds it, without a trailing slash."""

    url: str
    port: int
    _runner: web.AppRunner
    _servers: tuple[asyncio.Server, ...]

    async def stop(self) -> None:
        """Closes the sockets, lets answers being written end, closes the rest; takes well under two seconds."""
        for server in self._servers:
            server.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._runner.cleanup()
        except TimeoutError:
            logger.warning("some connections did not close in time and are cut")


async def serve(app: web.Application, config: WebConfig) -> Served:
    """Listens as configured and answers with ``app``, which must not have been served before.

    Port 0 lets the system choose. Raises :class:`~ufwatch.errors.ListenError` with one line if the address cannot be
    had, and :class:`~ufwatch.errors.ConfigError` for a bad web configuration file.
    """
    tls = _secured(app, config)
    sockets = await _bind(config.host, config.port)
    app.on_response_prepare.append(note_request)
    runner = web.AppRunner(app, access_log=None, logger=_STRANGERS, shutdown_timeout=_GRACE_SECONDS)
    servers: list[asyncio.Server] = []
    try:
        await runner.setup()
        handler = runner.server
        assert handler is not None
        door = Door(handler, most=most_connections(), logger=_STRANGERS)
        loop = asyncio.get_running_loop()
        for bound in sockets:
            limit = None if tls is None else _HANDSHAKE_SECONDS
            servers.append(await loop.create_server(door, sock=bound, ssl=tls, ssl_handshake_timeout=limit))
    except BaseException:
        for server in servers:
            server.close()
        for bound in sockets:
            bound.close()
        await runner.cleanup()
        raise
    host, port = sockets[0].getsockname()[:2]
    return Served(url=_url(host, port, tls is not None), port=port, _runner=runner, _servers=tuple(servers))


def _secured(app: web.Application, config: WebConfig) -> SSLContext | None:
    """Puts passwords and headers of the web configuration file in front of the application; returns its TLS."""
    if config.config_file is None:
        return None
    # Only here: most agents listen on loopback and need neither YAML nor bcrypt nor certificates for it.
    from ufwatch.web.auth import BasicAuth, middleware
    from ufwatch.web.tls import ReloadingTls
    from ufwatch.web.toolkit import load

    security = load(config.config_file)
    if security.users:
        app.middlewares.insert(0, middleware(BasicAuth(security.users)))
    if security.headers:

        async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
            response.headers.update(security.headers)

        app.on_response_prepare.append(add_headers)
    return None if security.tls is None else ReloadingTls(security.tls).context


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of ``host`` (both families for a name, dual stack for ``::``)."""
    name = host.strip("[]")
    shown = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    if not 0 <= port <= 65535:
        raise ListenError(f"cannot listen on {shown}: a port lies between 0 and 65535")
    if not name:
        name = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ListenError(f"cannot listen on {shown}: {name!r} is no address of this machine; check --host") from error
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, _, _, _, address in dict.fromkeys(found):
        if port == 0 and sockets:
            address = (address[0], sockets[0].getsockname()[1], *address[2:])
        try:
            sockets.append(_listening(family, address))
        except OSError as error:
            # ``localhost`` often names ::1 on machines without IPv6; one address that works is enough.
            if error.errno in _NOT_HERE:
                missing = error
                continue
            for bound in sockets:
                bound.close()
            raise ListenError(f"cannot listen on {shown}: {_explained(error)}") from error
    if not sockets:
        assert missing is not None
        raise ListenError(f"cannot listen on {shown}: {_explained(missing)}") from missing
    return sockets


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        made.bind(address)
        made.listen(_BACKLOG)
    except BaseException:
        made.close()
        raise
    return made


def _explained(error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "the port is in use; stop what listens there or choose another with --port"
        case errno.EACCES | errno.EPERM:
            return "this port needs privileges; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return "this machine does not have that address; check --host"
        case errno.EAFNOSUPPORT:
            return "this machine does not have that kind of address (IPv6 may be off); check --host"
        case _:
            return error.strerror or str(error)


def _url(host: str, port: int, secure: bool) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
