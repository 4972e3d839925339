"""Addresses of what we read: checked once, at the border, and compared the same way everywhere.

Floor 0: pure. Every check raises ValueError with ``what is wrong; what to do``, and never repeats credentials.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?", re.ASCII)
_IPV6_NETLOC = re.compile(r"\[[0-9A-Fa-f:.]+\](:[0-9]+)?", re.ASCII)
_EXAMPLE = "write http://host:port"
_MAX_PORT = 65535


def http_url(text: str) -> str:
    """Returns ``text`` as a base URL without a trailing slash; http or https, no credentials, query or fragment."""
    if text != text.strip() or not text.isprintable() or " " in text:
        raise ValueError("a URL without blanks or control characters expected; remove them")
    if "://" not in text:
        if "@" in text:
            # Not repeated in the message: what stands before the @ may be a password.
            raise ValueError(f"not a URL; {_EXAMPLE} and put credentials in basic_auth_file")
        raise ValueError(f'"{text[:60]}" has no scheme; {_EXAMPLE}')
    parts = _split(text)
    if "@" in parts.netloc:
        raise ValueError("the URL holds credentials; put credentials in basic_auth_file")
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f'scheme "{parts.scheme[:20]}" is not http or https; {_EXAMPLE}')
    _check_host(parts)
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ValueError("the URL has a query or a fragment; give the base address alone")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def host_port(url: str) -> str:
    """Returns ``host:port`` of a checked URL, with the scheme's port when it names none: the default target name."""
    parts = urlsplit(url)
    return f"{_bracketed(parts.hostname or '')}:{port_of(url)}"


def port_of(url: str) -> int:
    """Returns the TCP port of a checked URL."""
    parts = urlsplit(url)
    return parts.port or _DEFAULT_PORTS[parts.scheme]


def host_of(url: str) -> str:
    """Returns the host name or address of a checked URL, in lower case and without brackets."""
    return urlsplit(url).hostname or ""


def with_host(url: str, host: str) -> str:
    """Returns a checked URL with its host replaced; ``host`` may be an IPv6 address without brackets."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{_bracketed(host)}:{port_of(url)}"))


def same_place(url: str) -> str:
    """Returns a key that is equal for two checked URLs of one server: base and ``/metrics`` address are the same."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/metrics").rstrip("/")
    return f"{parts.scheme}://{host_port(url)}{path}"


def is_ip(host: str) -> bool:
    """Whether ``host`` is a literal address, so that looking it up would find only itself."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def zmq_endpoint(text: str, *, bind: bool) -> tuple[str, int | None]:
    """Returns (host, port) of a ZeroMQ endpoint, or (path, None) of an ``ipc://`` one. ``*`` is a host only to bind."""
    scheme, found, rest = text.partition("://")
    if scheme == "ipc" and rest.startswith("/"):
        return rest, None
    if not found or scheme != "tcp":
        raise ValueError("not tcp://host:port; write tcp://127.0.0.1:5557 or ipc:///path")
    host, _, port = rest.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 1 <= int(port[:6]) <= _MAX_PORT:
        raise ValueError(f"the endpoint has no port from 1 to {_MAX_PORT}; write tcp://127.0.0.1:5557")
    if host == "*":
        if not bind:
            raise ValueError("* is not a host to connect to; write the host's name or address")
        return host, int(port)
    bare = host.removeprefix("[").removesuffix("]")
    if not (is_ip(bare) if bare != host else _HOST.fullmatch(host)):
        raise ValueError("the endpoint's host is not a name or an address; write tcp://127.0.0.1:5557")
    return bare, int(port)


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError:
        # The library's message repeats the address, credentials included.
        raise ValueError(f"not a URL; {_EXAMPLE}") from None


def _check_host(parts: SplitResult) -> None:
    host = parts.hostname or ""
    # The library takes anything between the bracket and the port for granted.
    if not (_HOST.fullmatch(host) or (_IPV6_NETLOC.fullmatch(parts.netloc) and is_ip(host))):
        raise ValueError(f"the URL has no valid host; {_EXAMPLE}, a non-ASCII name in its punycode form")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError(f"the URL's port is not a number from 1 to {_MAX_PORT}; {_EXAMPLE}")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
