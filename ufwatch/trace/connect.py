"""Where a connection's time goes, by public API only: each attempt at connecting, the handshake, the last byte sent.

aiohttp's own trace events have one for TCP and TLS together, and none for the look-up of a proxy. So a resolver (see
:mod:`ufwatch.trace.lookup`), a socket and an SSL object of ours stamp the moments themselves.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import ssl
import struct
from contextlib import suppress
from types import SimpleNamespace
from typing import overload

import aiohttp
from aiohttp.abc import AbstractResolver, AbstractStreamWriter

from ufwatch.sources.kept import KEEPALIVE_SECONDS
from ufwatch.trace.phases import Moment
from ufwatch.trace.recorder import Recorder, current

_TCP_INFO_BYTES = 192
_MIN_RTT_AT = 148
"""Offset of ``tcpi_min_rtt`` (microseconds, unsigned) in Linux's ``struct tcp_info``."""
_NEVER_MEASURED = 0xFFFFFFFF
_numbers = itertools.count(1)

AddrInfo = tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]]


class TimedSocket(socket.socket):
    """Stamps when it begins to connect and when it is connected.

    Both event loops ask a connecting socket for SO_ERROR as soon as the kernel says that it is ready: that is the end
    of the TCP handshake, without what the loop does afterwards.
    """

    recorder: Recorder | None = None
    number = 0

    def connect(self, address: object) -> None:
        recorder, self.number = self.recorder, next(_numbers)
        if recorder is None:
            super().connect(address)  # type: ignore[arg-type]
            return
        recorder.mark(Moment.CONNECT, str(address[0]) if isinstance(address, tuple) else "", self.number)
        try:
            super().connect(address)  # type: ignore[arg-type]
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as error:
            self._failed(error.errno)
            raise
        self._connected()

    @overload
    def getsockopt(self, level: int, optname: int, /) -> int: ...
    @overload
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...
    def getsockopt(self, level: int, optname: int, buflen: int | None = None, /) -> int | bytes:
        if buflen is not None:
            return super().getsockopt(level, optname, buflen)
        value = super().getsockopt(level, optname)
        if (level, optname) == (socket.SOL_SOCKET, socket.SO_ERROR):
            if value:
                self._failed(value)
            else:
                self._connected()
        return value

    def _connected(self) -> None:
        if self.recorder is not None:
            self.recorder.mark(Moment.CONNECTED, number=self.number)
            self.recorder = None  # asked again later, it means something else

    def _failed(self, code: int | None) -> None:
        if self.recorder is not None:
            self.recorder.last_errno = code
            self.recorder.mark(Moment.CONNECT_FAILED, os.strerror(code or errno.EIO), self.number)
            self.recorder = None


def socket_factory(info: AddrInfo) -> socket.socket:
    """A socket for one attempt at connecting, as ``aiohttp.TCPConnector(socket_factory=…)`` asks for it."""
    made = TimedSocket(info[0], info[1], info[2])
    made.recorder = current.get()
    return made


class TimedSSLObject(ssl.SSLObject):
    """Stamps the beginning and the end of its handshake; set as ``SSLContext.sslobject_class``."""

    _recorder: Recorder | None = None
    _begun = False

    def do_handshake(self) -> None:
        if not self._begun:
            self._begun, self._recorder = True, current.get()
            if self._recorder is not None:
                self._recorder.mark(Moment.TLS_START)
        try:
            super().do_handshake()  # raises SSLWantReadError until it is done
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self._recorder is not None:
                self._recorder.mark(Moment.TLS_FAILED)
            raise
        if self._recorder is not None:
            self._recorder.mark(Moment.TLS_END, "resumed" if self.session_reused else "")
            self._recorder = None


class StampedBody(aiohttp.Payload):
    """A body that stamps when its last byte was handed to the kernel, not when it was put into a buffer of ours."""

    _autoclose = True  # aiohttp's word for: there is nothing to close

    def __init__(self, body: bytes, recorder: Recorder) -> None:
        super().__init__(body, content_type="application/json")
        self._size = len(body)
        self._body, self._recorder = body, recorder

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self._body.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        transport = getattr(writer, "transport", None)
        if transport is not None:
            # So that drain waits for an empty buffer. Not 0: asyncio's TLS pauses at a buffer as large as the limit,
            # and an empty one would be that.
            transport.set_write_buffer_limits(high=1)
        await writer.write(self._body)
        await writer.drain()
        self._recorder.mark(Moment.SENT)


def timed(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context, whose connections stamp their handshakes."""
    context.sslobject_class = TimedSSLObject
    return context


def session_over(resolver: AbstractResolver, response_class: type[aiohttp.ClientResponse]) -> aiohttp.ClientSession:
    """A session whose connections are stamped. Every new connection looks its name up: a cache would hide the look-up.

    There is no limit to the connections, because waiting for a free one would be time of ours.
    """
    connector = aiohttp.TCPConnector(
        limit=0,
        keepalive_timeout=KEEPALIVE_SECONDS,
        resolver=resolver,
        use_dns_cache=False,
        socket_factory=socket_factory,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        response_class=response_class,
        trace_configs=[_ready()],
    )


def min_rtt(transport: object) -> float | None:
    """The smallest round trip, in seconds, that the kernel saw on this connection. None but on Linux.

    Of all that TCP knows this alone is the network's: the smoothed one holds the late acknowledgements of a busy peer.
    """
    info = getattr(transport, "get_extra_info", lambda _: None)("socket")
    if info is None or not hasattr(socket, "TCP_INFO"):
        return None
    try:
        # A copy of the descriptor: the sockets that event loops show are not whole ones.
        with socket.socket(fileno=os.dup(info.fileno())) as copy:
            raw = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except (OSError, ValueError):
        return None
    if len(raw) < _MIN_RTT_AT + 4:
        return None
    (microseconds,) = struct.unpack_from("I", raw, _MIN_RTT_AT)
    return None if microseconds in (0, _NEVER_MEASURED) else microseconds / 1e6


def peer_address(transport: object) -> str:
    """The address at the other end of a connection; empty where it is gone."""
    name = None
    with suppress(OSError):
        name = getattr(transport, "get_extra_info", lambda _: None)("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""


def _ready() -> aiohttp.TraceConfig:
    """The one thing that aiohttp's own events are good for: whether a connection is new or from before."""

    async def created(_: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        recorder = current.get()
        if recorder is not None:
            recorder.mark(Moment.READY)

    async def reused(_: aiohttp.ClientSession, __: SimpleNamespace, ___: object) -> None:
        recorder = current.get()
        if recorder is not None:
            recorder.reused = True
            recorder.mark(Moment.READY, "reused")

    config = aiohttp.TraceConfig()
    config.on_connection_create_end.append(created)
    config.on_connection_reuseconn.append(reused)
    return config
