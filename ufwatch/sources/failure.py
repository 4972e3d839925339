"""Why a fetch failed, in our own words: one reason and one line without credentials.

The texts of aiohttp's errors are never passed on, because they hold whole addresses, query strings included.
"""

from __future__ import annotations

import errno
import os
import ssl

import aiohttp

from ufwatch.model import Health, Reason

NO_HTTP = "the answer is not HTTP/1.x (a TLS or another port?)"
CUT = "the connection ended within the body"


class FetchError(Exception):
    """A fetch that ends here; never leaves the package ``ufwatch.sources``."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)

    def health(self) -> Health:
        """What the caller of a source sees of it."""
        return Health(up=False, reason=self.reason, detail=self.detail)


class DroppedError(Exception):
    """The connection ended before the head of an answer was read; the cause is aiohttp's error.

    No ``aiohttp.ClientError`` on purpose: aiohttp would send the request again by itself, on a fresh connection too.
    ``retry`` is true where the server had only closed an idle connection: it was used before and no byte came back.
    """

    def __init__(self, *, retry: bool, tls: bool) -> None:
        self.retry = retry
        self.tls = tls
        super().__init__()


def failure_of(error: BaseException, peer: str) -> FetchError:
    """The failure behind an exception of aiohttp, of a socket or of the address; ``peer`` is ``host:port``."""
    if isinstance(error, FetchError):
        return error
    if (own := _own_limit(error)) is not None:
        return FetchError(Reason.RESOURCES, f"{peer}: the agent is at a limit of its own ({os.strerror(own)})")
    tls = _tls_error(error)
    if tls is not None:
        return FetchError(Reason.TLS, f"{peer}: {_tls_text(tls)}")
    if isinstance(error, DroppedError | aiohttp.ServerDisconnectedError):
        # Some servers that miss a client certificate do not say so.
        hint = " (does it want a client certificate?)" if isinstance(error, DroppedError) and error.tls else ""
        return FetchError(Reason.CONNECT, f"{peer}: the connection was closed before an answer{hint}")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return FetchError(Reason.CONNECT, f"{peer}: the proxy cannot be reached ({_os_text(error.os_error)})")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return FetchError(Reason.CONNECT, f"{peer}: the name does not resolve")
    if isinstance(error, aiohttp.ClientConnectorError):
        return FetchError(Reason.CONNECT, f"{peer}: {_os_text(error.os_error)}")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        reason = Reason.PERMISSION if error.status in (401, 403, 407) else Reason.CONNECT
        return FetchError(reason, f"{peer}: the proxy answered {error.status}")
    if isinstance(error, aiohttp.ClientResponseError):
        return FetchError(Reason.CONTENT, f"{peer}: {NO_HTTP}")
    if isinstance(error, aiohttp.ClientPayloadError):
        return FetchError(Reason.TRUNCATED, f"{peer}: {CUT}")
    if isinstance(error, aiohttp.InvalidURL):
        return FetchError(Reason.CONNECT, f"{peer}: not an http:// or https:// address")
    if isinstance(error, OSError):
        return FetchError(Reason.CONNECT, f"{peer}: {_os_text(error)}")
    return FetchError(Reason.CONNECT, f"{peer}: {type(error).__name__}")


def own_limit(error: OSError) -> bool:
    """Whether this process or machine ran out of something: it says nothing about the other side."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def _own_limit(error: BaseException) -> int | None:
    # Connector errors carry the errno of the socket's error, but not always; the DNS one never does.
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return inner.errno if isinstance(inner, OSError) and own_limit(inner) else None


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """The TLS error in the chain of causes: with TLS 1.3 a refused client certificate shows only when reading."""
    seen: BaseException | None = error
    for _ in range(5):
        # First, because it is an ssl.SSLError too, but an empty one.
        if isinstance(seen, aiohttp.ClientConnectorCertificateError):
            seen = seen.certificate_error
        elif isinstance(seen, aiohttp.ClientConnectorSSLError):
            seen = seen.os_error
        elif isinstance(seen, ssl.SSLError):
            return seen
        elif isinstance(seen, aiohttp.ClientConnectorError):
            seen = seen.os_error
        elif seen is not None:
            seen = seen.__cause__
    return None


def _tls_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    reason = (error.reason or "handshake failed").lower().replace("_", " ")
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return f"no TLS is spoken there ({reason})"
    return f"TLS: {reason}"


def _os_text(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    # Several addresses of one name failed: the errno is not set then, the text names each.
    return " ".join((error.strerror or str(error) or type(error).__name__).split())[:200]
