"""One GET, whatever the server does: the whole exposition page, or one reason and one line saying why not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from ufwatch.clock import Clock, SystemClock
from ufwatch.config import HttpAccess
from ufwatch.model import UP, Health, Reason
from ufwatch.sources import body as page
from ufwatch.sources.access import AccessFiles
from ufwatch.sources.answer import Answer, Exchange, decoded, page_of, read_page, too_late
from ufwatch.sources.failure import DroppedError, FetchError, failure_of
from ufwatch.sources.kept import KEEPALIVE_SECONDS, Kept
from ufwatch.sources.line import End
from ufwatch.sources.proxy import ProxyRules, all_local, is_local
from ufwatch.sources.resolver import SystemResolver
from ufwatch.sources.route import ACCEPT, AGENT, Route, get_request, host_header, redirected, route_of

DEFAULT_BODY_CAP_BYTES = 16 * 1024 * 1024
_MAX_REDIRECTS = 3
_MAX_ROUTES = 4096
_PROXY_DECISION_SECONDS = 60.0
_PROXY_LOOKUP_SECONDS = 1.0
_READ_BUFFER_BYTES = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one GET gave. ``body`` is decoded and whole; it is None exactly when ``health`` is not up."""

    health: Health
    body: bytes | None
    seconds: float
    """From the call to the last byte of the body, or to the failure."""
    wire_bytes: int
    """Body bytes as they were sent, compressed or not; headers are not counted."""
    at_seconds: float
    """Monotonic time at which the body was complete, or the failure certain: the time of every value in it."""
    content_type: str = ""
    openmetrics: bool = False
    status: int | None = None
    """The last HTTP status seen; None where no answer came."""


class Plain(NamedTuple):
    """A GET as bytes and a line of the caller's own for it, where that takes neither TLS nor a proxy."""

    kept: Kept
    request: bytes


class Fetcher:
    """GETs over one pool of connections. For one event loop; ``close`` must be awaited in it.

    ``environ`` gives the proxy variables. ``resolver`` finds the addresses of names; the operating system's by default.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._files = AccessFiles()
        self._proxies = ProxyRules(environ or {})
        self._resolver = resolver or SystemResolver()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._routes: dict[tuple[str, str | None], Route] = {}

    async def get(
        self, url: str, access: HttpAccess, *, deadline_seconds: float, body_cap_bytes: int = DEFAULT_BODY_CAP_BYTES
    ) -> Fetched:
        """The page at ``url``, or why there is none. Nothing is raised except CancelledError.

        The deadline covers everything: names, connection, redirects and body. The cap holds for the body on the wire
        and for the body after decompression.
        """
        started = self._clock.monotonic()
        limit = asyncio.timeout(deadline_seconds)
        exchange = Exchange()
        body: bytes | None = None
        health = UP
        try:
            body = await self._over_line(url, access, limit, body_cap_bytes, exchange)
            if body is None:
                async with limit:
                    body = await self._page(url, access, body_cap_bytes, exchange)
        except (FetchError, DroppedError, aiohttp.ClientError, OSError, ValueError) as error:
            expired = isinstance(error, TimeoutError) and (exchange.late or limit.expired())
            # In a call of its own: an error kept in a name of this frame would hold the frame that it holds, and with
            # it the page, until the cyclic collector comes by.
            health = self._failed(
                too_late(exchange, deadline_seconds) if expired else failure_of(error, exchange.peer), access, exchange
            )
        at = self._clock.monotonic() if exchange.complete_at is None else exchange.complete_at
        return Fetched(
            health=health,
            body=body,
            content_type=exchange.content_type,
            openmetrics=page.is_openmetrics(exchange.content_type),
            status=exchange.status,
            seconds=at - started,
            wire_bytes=exchange.wire_bytes,
            at_seconds=at,
        )

    def _failed(self, failure: FetchError, access: HttpAccess, exchange: Exchange) -> Health:
        detail = page.redact(failure.detail, self._files.secrets(access))
        if exchange.status in (401, 403):
            self._files.forget(access)
        return Health(up=False, reason=failure.reason, detail=detail)

    async def plain(self, url: str, access: HttpAccess) -> Plain | None:
        """The GET of ``url``, for any kind of answer; None where that takes more than plain HTTP."""
        try:
            route = self._route(url, access.server_name)
            if route.first.scheme != "http" or await self._proxy(route) is not None:
                return None
            request = get_request(route.first, access, {"Accept": "*/*"}, self._files.authorization(access))
        except FetchError:
            return None
        return Plain(self._line_to(route.first), request)

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a name in the order to try them. OSError when there are none."""
        return [found["host"] for found in await self._resolver.resolve(host, port, socket.AF_UNSPEC)]

    async def close(self) -> None:
        """Closes every connection; a GET under way fails, and so does every later one."""
        self._closed = True
        for route in self._routes.values():
            route.hang_up()
        if self._session is not None:
            await self._session.close()

    async def _over_line(
        self, url: str, access: HttpAccess, limit: asyncio.Timeout, cap: int, exchange: Exchange
    ) -> bytes | None:
        """The page over a line; None where the client is to be asked. Raises as :meth:`_page` does."""
        route = self._route(url, access.server_name)
        exchange.peer = route.peer
        if route.kept is None or self._closed or asyncio.get_running_loop().time() >= route.proxy_decided_until:
            return None  # so the client looks up proxy and name anew once a minute
        authorization = self._files.authorization(access)
        if not route.request or authorization != route.authorization:
            headers = {"Accept": ACCEPT, "Accept-Encoding": route.accept_encoding}
            route.authorization = authorization
            route.request = get_request(route.first, access, headers, authorization)
        try:
            reply = await route.kept.ask(route.request, limit.when() or 0.0, cap)
        except OSError:
            route.hang_up()
            return None
        if reply is None:
            return None
        if reply.end is not End.WHOLE or reply.status != 200:
            route.hang_up()
            if reply.end is End.UNTOLD:
                return None
        raw, encoding = page_of(reply, cap, exchange)
        exchange.complete_at = self._clock.monotonic()
        if not page.may_be_packed(encoding, raw[:2]):
            return await decoded(raw, encoding, cap, exchange)
        async with limit:  # inflating may take its time
            return await decoded(raw, encoding, cap, exchange)

    async def _page(self, url: str, access: HttpAccess, cap: int, exchange: Exchange) -> bytes:
        route = self._route(url, access.server_name)
        exchange.peer = route.peer
        headers = {"Accept": ACCEPT, "Accept-Encoding": route.accept_encoding, "User-Agent": AGENT}
        authorization = self._files.authorization(access)
        if authorization is not None:
            headers["Authorization"] = authorization
        if access.server_name is not None:
            headers["Host"] = host_header(route.first, access)
        proxy = await self._proxy(route)
        try:
            response = await self._follow(route, headers, access, proxy, exchange)
            try:
                raw, encoding = await read_page(response, cap, exchange)
            finally:
                response.release()
        except BaseException:
            # What a redirect led to last time may be what fails now.
            route.url = route.first
            raise
        if proxy is None and route.url is route.first and response.is_plain():
            route.kept = route.kept or self._line_to(route.first)
        exchange.complete_at = self._clock.monotonic()
        return await decoded(raw, encoding, cap, exchange)

    async def _follow(
        self, route: Route, headers: dict[str, str], access: HttpAccess, proxy: str | None, exchange: Exchange
    ) -> Answer:
        """The first answer that is no redirect; its address is kept for the next time."""
        url = route.url
        for _ in range(_MAX_REDIRECTS + 1):
            response = await self._send(url, headers, access, proxy, exchange)
            exchange.status = response.status
            if response.status not in (301, 302, 303, 307, 308):
                route.url = url
                return response
            location = response.headers.get("Location", "")
            response.release()
            url = redirected(url, location, access.server_name, exchange.peer)
        raise FetchError(Reason.CONTENT, f"{exchange.peer}: more than {_MAX_REDIRECTS} redirects")

    async def _send(
        self, url: URL, headers: dict[str, str], access: HttpAccess, proxy: str | None, exchange: Exchange
    ) -> Answer:
        tls = self._files.tls(access) if url.scheme == "https" else True
        while True:
            try:
                response = await self._pool().get(
                    url,
                    headers=headers,
                    allow_redirects=False,
                    ssl=tls,
                    server_hostname=access.server_name,
                    proxy=proxy,
                )
            except DroppedError as dropped:
                if not (dropped.retry and exchange.may_retry):
                    raise
                exchange.may_retry = False
            else:
                assert isinstance(response, Answer)
                return response

    def _pool(self) -> aiohttp.ClientSession:
        if self._closed:
            raise FetchError(Reason.CONNECT, "the agent is stopping")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, resolver=self._resolver),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                auto_decompress=False,
                read_bufsize=_READ_BUFFER_BYTES,
                response_class=Answer,
            )
        return self._session

    def _route(self, address: str, server_name: str | None) -> Route:
        route = self._routes.get((address, server_name))
        if route is None:
            route = route_of(address)
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.pop(next(iter(self._routes))).hang_up()
            self._routes[address, server_name] = route
        return route

    def _line_to(self, url: URL) -> Kept:
        return Kept(url.host or "", url.port or 80, self.addresses)

    async def _proxy(self, route: Route) -> str | None:
        """The proxy for a target; whether its name is a local one is looked up once a minute."""
        now = asyncio.get_running_loop().time()
        if now < route.proxy_decided_until:
            return route.proxy
        host, port = route.first.host or "", route.first.port or 0
        local = is_local(host)
        proxy = None if local else self._proxies.proxy_for(route.first.scheme, host, port)
        if proxy is not None and local is None and all_local(await self._addresses(host, port)):
            proxy = None
        route.proxy = proxy
        route.proxy_decided_until = now + _PROXY_DECISION_SECONDS
        return proxy

    async def _addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a name; none where this machine cannot resolve it, which behind a proxy is usual."""
        try:
            async with asyncio.timeout(_PROXY_LOOKUP_SECONDS):
                return await self.addresses(host, port)
        except (OSError, ValueError):
            return []
