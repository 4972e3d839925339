"""What an exception of aiohttp, of a socket or of our own files is called in an :class:`Exchange`."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import NamedTuple

import aiohttp

from ufwatch.sources.failure import DroppedError, FetchError, failure_of

_UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EHOSTDOWN, errno.ENETDOWN)


class Named(NamedTuple):
    """A short stable word and one line without credentials."""

    error_type: str
    detail: str


class AnswerError(Exception):
    """An answer that ends the request here: a status, a redirect, a body over the cap."""

    def __init__(self, error_type: str, detail: str) -> None:
        self.named = Named(error_type, detail)
        super().__init__(detail)


def named(error: BaseException, peer: str, last_errno: int | None) -> Named:
    """``last_errno``: of the last attempt at connecting that failed, for where several did and the error has none."""
    if isinstance(error, AnswerError):
        return error.named
    # aiohttp's own kind of SSL error lacks what the ssl module's has; what it was raised from has it.
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorSSLError) else error
    detail = failure_of(inner, peer).detail
    if isinstance(error, FetchError):
        return Named("configuration", detail)
    return Named(_word(error, last_errno), _detail(error, detail, peer, last_errno))


def _word(error: BaseException, last_errno: int | None) -> str:
    chain = list(_chain(error))
    if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain):
        return "certificate"
    if any(isinstance(link, ssl.SSLError) for link in chain):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        temporary = any(isinstance(link, socket.gaierror) and link.errno == socket.EAI_AGAIN for link in chain)
        return "dns" if temporary else "nxdomain"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"proxy_status_{error.status}"
    if isinstance(error, DroppedError | aiohttp.ServerDisconnectedError):
        return "disconnected"
    if isinstance(error, aiohttp.ClientConnectorError):
        return _connect_word(error.os_error.errno or last_errno)
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ClientResponseError):
        return "malformed"
    if isinstance(error, aiohttp.ClientPayloadError | ConnectionError | aiohttp.ClientOSError):
        return "cut"
    return _connect_word(error.errno) if isinstance(error, OSError) else "client"


def _connect_word(code: int | None) -> str:
    if code == errno.ECONNREFUSED:
        return "refused"
    if code in _UNREACHABLE:
        return "unreachable"
    return "timeout" if code == errno.ETIMEDOUT else "connect"


def _detail(error: BaseException, detail: str, peer: str, last_errno: int | None) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and not error.os_error.errno and last_errno:
        return f"{peer}: {os.strerror(last_errno)}"
    return detail


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < 6:
        found.append(seen)
        inner: BaseException | None = None
        if isinstance(seen, aiohttp.ClientConnectorCertificateError):
            inner = seen.certificate_error
        elif isinstance(seen, aiohttp.ClientConnectorError):
            inner = seen.os_error
        seen = inner if inner is not None and inner is not seen else seen.__cause__
    return found
