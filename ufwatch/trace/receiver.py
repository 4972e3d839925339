"""The OTLP receiver as a whole: both doors, what they fill, and the way on to a backend.

It imports gRPC and OpenTelemetry: import it where OTLP is wanted, not at the start.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aiohttp import web

from ufwatch.config import WebConfig
from ufwatch.errors import ListenError
from ufwatch.sources.proxy import ProxyRules, is_local, is_loopback
from ufwatch.trace.endpoint import GRPC, Endpoint
from ufwatch.trace.forward import Counts, Forwarder, Limits, Transport
from ufwatch.trace.intake import Intake, Received
from ufwatch.trace.joins import JoinTable
from ufwatch.trace.server_spans import ModelLoad, ServerSpan
from ufwatch.trace.wire import dressed

GRPC_PORT, HTTP_PORT = 14317, 14318
_CAP_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    """Where OTLP is taken. A port of None closes that door, 0 lets the system choose."""

    host: str = "127.0.0.1"
    grpc_port: int | None = GRPC_PORT
    http_port: int | None = HTTP_PORT
    web_config_file: Path | None = None
    """TLS and passwords for HTTP. gRPC has neither, so with them it is only opened on a loopback address."""
    cap_bytes: int = _CAP_BYTES
    """Of one request, before and after decompression."""
    grouping: Mapping[str, str] = field(default_factory=dict)
    """Added to forwarded resources that lack them: ``openinference.project.name`` keeps a trace in one project."""


class Served(Protocol):
    """What :func:`ufwatch.web.server.serve` returns."""

    @property
    def port(self) -> int: ...

    async def stop(self) -> None: ...


Serve = Callable[[web.Application, WebConfig], Awaitable[Served]]
"""Listens with an application: :func:`ufwatch.web.server.serve`, which stands on a floor above this one."""


@dataclass(slots=True)
class Receiver:
    """An open receiver; make one by :func:`start_receiver`."""

    joins: JoinTable
    grpc_port: int | None
    http_port: int | None
    _intake: Intake
    _forwarder: Forwarder | None
    _doors: list[Callable[[], Awaitable[None]]]

    async def wait_for(self, trace_id: str, request_id: str, timeout: float) -> ServerSpan | None:
        """The server's span of a request, as soon as it has come; None after ``timeout`` seconds. vLLM takes up to
        5 s to send it."""
        return await self.joins.wait_for(trace_id, request_id, timeout)

    @property
    def loads(self) -> tuple[ModelLoad, ...]:
        """Model loads that were traced to their end while we listened."""
        return self.joins.loads

    @property
    def received(self) -> Received:
        """What came in."""
        return self._intake.received

    @property
    def forwarded(self) -> Counts | None:
        """What became of it; None where nothing is passed on."""
        return None if self._forwarder is None else self._forwarder.counts

    async def stop(self, within: float = 2.0) -> None:
        """Closes the doors, then passes on what waits, all within so many seconds."""
        try:
            async with asyncio.timeout(within * 0.4):
                await asyncio.gather(*(stop() for stop in self._doors))
        except TimeoutError:
            pass
        if self._forwarder is not None:
            await self._forwarder.close(within * 0.6)


async def start_receiver(
    config: ReceiverConfig,
    *,
    serve: Serve,
    now: Callable[[], float],
    random: Callable[[], float],
    random_bytes: Callable[[int], bytes],
    transport: Transport | None = None,
    limits: Limits | None = None,
) -> Receiver:
    """Opens the doors; with a ``transport`` (see :func:`transport_to`) what comes is passed on.

    ``now`` gives monotonic seconds, ``random`` 0–1, ``random_bytes`` is like ``os.urandom``. Raises ListenError and
    ConfigError, each with one line.
    """
    joins = JoinTable(now)

    async def dress(body: bytes) -> bytes:
        return await dressed(
            body,
            known=joins.get,
            has_native=joins.has_native,
            random_bytes=random_bytes,
            grouping=config.grouping,
        )

    forwarder = None if transport is None else Forwarder(transport, dress=dress, now=now, random=random, limits=limits)
    intake = Intake(joins, forwarder, cap_bytes=config.cap_bytes)
    receiver = Receiver(joins, None, None, intake, forwarder, [])
    if forwarder is not None:
        forwarder.start()
    try:
        if config.grpc_port is not None:
            await _open_grpc(receiver, config, config.grpc_port)
        if config.http_port is not None:
            await _open_http(receiver, config, config.http_port, serve)
    except BaseException:
        await receiver.stop()
        raise
    return receiver


def transport_to(endpoint: Endpoint, environ: Mapping[str, str]) -> Transport:
    """The way to a backend; ``environ`` tells proxies. Raises ConfigError where a certificate cannot be used."""
    if endpoint.protocol != GRPC:
        from ufwatch.trace.forward_http import HttpTransport

        return HttpTransport(endpoint, ProxyRules(environ))
    from ufwatch.trace.forward_grpc import GrpcTransport

    host, _, port = endpoint.target.rpartition(":")
    scheme = "https" if endpoint.tls else "http"
    proxy = ProxyRules(environ).proxy_for(scheme, host.strip("[]"), int(port))
    return GrpcTransport(endpoint, proxied=proxy is not None and not is_local(host))


async def _open_grpc(receiver: Receiver, config: ReceiverConfig, port: int) -> None:
    from ufwatch.trace.receiver_grpc import GrpcReceiver

    host = _host(config)
    if config.web_config_file is not None and not is_loopback(host):
        raise ListenError(
            f"OTLP over gRPC would be open on {host} without the TLS and passwords of"
            f" {config.web_config_file}; listen on 127.0.0.1 or take OTLP over HTTP only"
        )
    door = GrpcReceiver(receiver._intake)
    # gRPC writes lines of its own to stderr when it cannot bind, and does not say why.
    _check_free("gRPC", host, port)
    await door.start(host, port)
    receiver.grpc_port = door.port
    receiver._doors.append(door.stop)


async def _open_http(receiver: Receiver, config: ReceiverConfig, port: int, serve: Serve) -> None:
    from ufwatch.trace.receiver_http import build_receiver_app

    _check_free("HTTP", _host(config), port)
    web_config = WebConfig(host=config.host, port=port, config_file=config.web_config_file)
    served = await serve(build_receiver_app(receiver._intake), web_config)
    receiver.http_port = served.port
    receiver._doors.append(served.stop)


def _host(config: ReceiverConfig) -> str:
    """The address to listen on, without brackets; every one where none is named."""
    return config.host.strip("[]") or "0.0.0.0"


def _check_free(protocol: str, host: str, port: int) -> None:
    """Raises ListenError with the reason where the address cannot be had."""
    if port == 0:
        return
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
    except OSError as error:
        reasons = {
            errno.EADDRINUSE: "the port is in use; stop what listens there or choose another",
            errno.EACCES: "this port needs privileges; choose one above 1023",
            errno.EADDRNOTAVAIL: "this machine does not have that address",
        }
        why = reasons.get(error.errno or 0, error.strerror or str(error))
        raise ListenError(f"cannot take OTLP over {protocol} on {host}:{port}: {why}") from error
