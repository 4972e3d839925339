"""Listening: bound before anything is called ready, one clear line when it cannot be, gone in under two seconds."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass

from aiohttp import web

from ufwatch.config import WebConfig
from ufwatch.errors import ListenError
from ufwatch.web import toolkit

_SHUTDOWN_SECONDS = 0.5
"""For answers under way; a page takes milliseconds, so what is still open then is an idle or half-sent connection."""


@dataclass(frozen=True, slots=True)
class Served:
    """A listening server."""

    url: str
    port: int
    runner: web.AppRunner

    async def stop(self) -> None:
        """Stops listening and closes every connection."""
        await self.runner.cleanup()


async def serve(app: web.Application, config: WebConfig) -> Served:
    """Listens as configured. Raises ListenError when the address cannot be bound, ConfigError for the web file."""
    context: ssl.SSLContext | None = None
    if config.config_file is not None:
        web_file = toolkit.load(config.config_file)
        context = web_file.ssl_context()
        web_file.protect(app)
    listener = _bind(config.host, config.port)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS, handle_signals=False)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=context).start()
    except BaseException:
        listener.close()
        await runner.cleanup()
        raise
    port: int = listener.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    return Served(f"{'https' if context is not None else 'http'}://{host}:{port}", port, runner)


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket; ``::`` takes IPv4 as well, so that one address means every address."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"cannot listen on {host}: it is no address of this machine; set --host") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host}:{port}: {_why(error)}") from error
    return listener


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; stop it or choose another --port"
    if error.errno == errno.EACCES:
        return "ports under 1024 need a privilege; choose another --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return "it is no address of this machine; set --host"
    return error.strerror or str(error)
