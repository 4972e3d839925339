"""Which forward proxy, if any, a target is reached through, by the usual environment variables.

A proxy is for what lies outside: a target on this machine or in a private network is always reached directly, because a
proxy in the environment would otherwise turn every local scrape into a time-out. A target counts as local when its host
is ``localhost`` or ``*.localhost``, an address which the public internet does not route (loopback, private, link-local,
shared), or a name of which every address is such.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from ufwatch.model import Reason
from ufwatch.sources.failure import FetchError


def is_loopback(host: str) -> bool:
    """Whether ``host``, as written, is this machine. Names other than localhost are not looked up."""
    if _is_localhost(host):
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def is_local(host: str) -> bool | None:
    """Whether ``host``, as written, is reached without a proxy; None for a name, which must be resolved first."""
    if _is_localhost(host):
        return True
    address = _address(host)
    return None if address is None else not address.is_global


def all_local(addresses: Sequence[str]) -> bool:
    """Whether a name with these addresses is local; a name without any is not (only the proxy may know it)."""
    return bool(addresses) and all(is_local(address) for address in addresses)


class ProxyRules:
    """``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY`` of one environment; the lower-case names win, as with curl."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._proxies = {scheme: _proxy(_variable(environ, f"{scheme}_proxy")) for scheme in ("http", "https")}
        excepted = _variable(environ, "no_proxy").lower().split(",")
        self._excepted = tuple(entry.strip() for entry in excepted if entry.strip())

    def proxy_for(self, scheme: str, host: str, port: int) -> str | None:
        """The proxy's address for a target, None for a direct connection. Does not ask whether the target is local.

        Raises FetchError ``connect`` for a kind of proxy that is not supported.
        """
        proxy = self._proxies.get(scheme)
        if proxy is None or any(_excepts(entry, host.lower().rstrip("."), port) for entry in self._excepted):
            return None
        if not proxy.startswith(("http://", "https://")):
            raise FetchError(Reason.CONNECT, f"{scheme}_proxy: only http:// and https:// proxies are supported")
        return proxy


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.upper()) or ""


def _proxy(value: str) -> str | None:
    if not value.strip():
        return None
    return value.strip() if "://" in value else f"http://{value.strip()}"


def _excepts(entry: str, host: str, port: int) -> bool:
    """One entry of NO_PROXY: ``*``, a domain with all below it, an address, a network, each with an optional port."""
    if entry == "*":
        return True
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            pass
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdigit():
        if int(wanted) != port:
            return False
        entry = name.strip("[]")
    if address is not None:
        return _address(entry) == address
    domain = entry.removeprefix("*").strip(".")
    return host == domain or host.endswith(f".{domain}")


def _is_localhost(host: str) -> bool:
    name = host.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
