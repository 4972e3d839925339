"""Where an address leads: its parts, where redirects led to last time, and its GET as bytes."""

from __future__ import annotations

from dataclasses import dataclass

from yarl import URL

from ufwatch import __version__
from ufwatch.config import HttpAccess
from ufwatch.model import Reason
from ufwatch.sources.failure import FetchError
from ufwatch.sources.kept import Kept
from ufwatch.sources.proxy import is_loopback

AGENT = f"ufwatch/{__version__}"
# OpenMetrics is left to the wildcard: prometheus_client, and so vLLM, sends it whenever it is named at all, at any q.
ACCEPT = "text/plain;version=0.0.4,*/*;q=0.1"


@dataclass(slots=True)
class Route:
    """How one address is reached; kept between scrapes."""

    first: URL
    url: URL
    """Where redirects led to last time."""
    peer: str
    accept_encoding: str
    kept: Kept | None = None
    """A line to it, while the client's last GET went well and took no more than plain HTTP/1.1."""
    proxy: str | None = None
    proxy_decided_until: float = 0.0
    """In the event loop's time."""
    request: bytes = b""
    """Its GET, with the credentials in ``authorization``."""
    authorization: str | None = None

    def hang_up(self) -> None:
        """Ends the line, if there is one."""
        if self.kept is not None:
            self.kept.close()
            self.kept = None


def route_of(address: str) -> Route:
    """Raises FetchError where ``address`` is none that can be asked."""
    try:
        url = URL(address).with_fragment(None)
    except ValueError:
        raise FetchError(Reason.CONNECT, "not a valid address") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise FetchError(Reason.CONNECT, "not an http:// or https:// address with a host")
    if url.user is not None or url.password is not None:
        raise FetchError(Reason.CONNECT, f"{peer_of(url)}: credentials in the address; put them into a file")
    # On loopback, decompressing costs more than the copying it saves.
    encoding = "identity" if is_loopback(url.host) else "gzip"
    return Route(first=url, url=url, peer=peer_of(url), accept_encoding=encoding)


def host_header(url: URL, access: HttpAccess) -> str:
    """The value of Host: the name to ask for, where the address was found for one."""
    host = access.server_name or url.raw_host or ""
    shown = f"[{host}]" if ":" in host else host
    return shown if url.is_default_port() else f"{shown}:{url.port}"


def get_request(url: URL, access: HttpAccess, headers: dict[str, str], authorization: str | None) -> bytes:
    """The GET of ``url`` as bytes."""
    credentials = {} if authorization is None else {"Authorization": authorization}
    fields = {"Host": host_header(url, access), "User-Agent": AGENT, **headers, **credentials}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"GET {url.raw_path_qs} HTTP/1.1\r\n{lines}\r\n".encode()


def redirected(url: URL, location: str, server_name: str | None, peer: str) -> URL:
    """Where a redirect leads. Refused unless to the same host and port; from http to https the port may change.

    Another port can be another owner's, and going back to http would show the credentials to the network.
    """
    try:
        target = url.join(URL(location)).with_fragment(None)
        if server_name is not None and target.host == server_name and url.host is not None:
            # We asked by the name, so that is what comes back; the address is one of its many.
            target = target.with_host(url.host)
        same = target.host == url.host and target.user is None and target.password is None
        if location and same and (target.origin() == url.origin() or (url.scheme, target.scheme) == ("http", "https")):
            return target
        where = f"{target.scheme}://{peer_of(target)}" if location else "nowhere"
    except ValueError:
        where = "no valid address"
    raise FetchError(Reason.CONTENT, f"{peer}: a redirect to {where} is not followed; only one to the same server is")


def peer_of(url: URL) -> str:
    """``host:port`` for the log."""
    host = url.raw_host or "?"
    return f"[{host}]:{url.port}" if ":" in host else f"{host}:{url.port}"
