"""One streaming request, timed phase by phase, whatever the server does.

The body is only stamped as it arrives; it is read for its meaning when the stream is over, so that reading it moves no
moment. A request that fails is an :class:`~ufwatch.trace.model.Exchange` too, with the phase that it failed in.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from ufwatch.clock import Clock, SystemClock
from ufwatch.model import Reason
from ufwatch.sources.access import AccessFiles
from ufwatch.sources.answer import Answer as Response
from ufwatch.sources.failure import DroppedError, FetchError
from ufwatch.sources.proxy import ProxyRules, all_local, is_local
from ufwatch.sources.resolver import SystemResolver
from ufwatch.sources.route import AGENT, host_header, peer_of
from ufwatch.trace.connect import StampedBody, min_rtt, peer_address, session_over, timed
from ufwatch.trace.deltas import FirstContentWatch
from ufwatch.trace.failing import AnswerError, Named, named
from ufwatch.trace.lag import LagTicker
from ufwatch.trace.lookup import TimedResolver, TimedSystemResolver
from ufwatch.trace.model import Exchange
from ufwatch.trace.outcome import Raw, exchange_of, redirect_error, status_error
from ufwatch.trace.phases import Moment
from ufwatch.trace.recorder import Recorder, current
from ufwatch.trace.request import Ids, TraceRequest
from ufwatch.trace.sse import EndMark

_PROXY_LOOKUP_SECONDS = 1.0
_AFTER_DONE_SECONDS = 1.0
"""How long the end of the body may follow the end mark: some servers leave the connection open."""
_ERROR_BODY_CAP_BYTES = 65_536
_OPEN_SECONDS = 5.0
_HEADERS_OF_OPEN = ("User-Agent", "Host", "Authorization")
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(slots=True)
class _Run:
    """What is known so far of one request."""

    request: TraceRequest
    ids: Ids
    url: URL
    raw: Raw
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    tls: ssl.SSLContext | bool = True
    proxy: str | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    limit: asyncio.Timeout = field(default_factory=lambda: asyncio.timeout(None))
    waits_for: str = ""
    """What the limit that is set now waits for, for the message."""
    watch: FirstContentWatch | None = None


class Tracer:
    """Traces requests over one pool of connections. For one event loop; ``close`` must be awaited in it.

    ``environ`` gives the proxy variables, ``resolver`` the addresses of names (the operating system's by default, on
    threads of its own), ``random_bytes`` the identifiers.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        resolver: AbstractResolver | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock = clock or SystemClock()
        self._files = AccessFiles()
        self._proxies = ProxyRules(environ or {})
        self._plain_resolver = resolver or SystemResolver()
        self._timed_resolver = TimedSystemResolver() if resolver is None else TimedResolver(resolver)
        self._random_bytes = random_bytes
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        """Ends all connections."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
        await self._plain_resolver.close()

    def new_ids(self) -> Ids:
        """Fresh identifiers, for a caller that must know them before the request is over."""
        trace_id, span_id = self._random_bytes(16).hex(), self._random_bytes(8).hex()
        return Ids(trace_id, span_id, self._random_bytes(16).hex())

    async def open(self, request: TraceRequest) -> None:
        """Has a connection ready as a client has that asked a moment ago, by a GET of the server's ``/health``: servers
        close idle ones within seconds. Costs no token; what fails here shows in the request itself."""
        run = _Run(request, self.new_ids(), URL(request.endpoint), Raw(Recorder(self._clock.monotonic)))
        with suppress(FetchError, DroppedError, aiohttp.ClientError, OSError, ValueError):
            async with asyncio.timeout(min(_OPEN_SECONDS, request.deadline_seconds)):
                await self._prepare(run)
                async with self._pool().get(
                    request.health_url,
                    headers={name: value for name, value in run.headers.items() if name in _HEADERS_OF_OPEN},
                    allow_redirects=False,
                    ssl=run.tls,
                    server_hostname=request.access.server_name,
                    proxy=run.proxy,
                ) as response:
                    while await response.content.readany():  # to its end, or the connection is not kept
                        pass

    async def traced(self, request: TraceRequest, ids: Ids | None = None) -> Exchange:
        """The request from beginning to end. Nothing is raised except CancelledError."""
        now = self._clock.monotonic
        url = URL(request.endpoint)
        raw = Raw(Recorder(now), tls=url.scheme == "https")
        run = _Run(request, ids or self.new_ids(), url, raw)
        try:
            await self._prepare(run)
        except FetchError as error:
            raw.failure = self._named(run, error)
        mark = current.set(raw.recorder)
        try:
            with LagTicker() as lag:
                raw.started_unix_ns, raw.wanted_at = int(self._clock.wall() * 1e9), now()
                if raw.failure is None:
                    await self._timed(run)
            raw.loop_lag = max(0.0, lag.longest)
        finally:
            current.reset(mark)
        return exchange_of(request, run.ids, raw, run.secrets)

    async def _prepare(self, run: _Run) -> None:
        """All that takes time of ours and none of the request's: certificates alone may take 100 ms to load, and which
        way to go may take a look-up of its own. Raises FetchError."""
        access = run.request.access
        run.headers = {**run.request.headers(run.ids), "User-Agent": AGENT, "Host": host_header(run.url, access)}
        authorization = self._files.authorization(access)
        if authorization is not None:
            run.headers["Authorization"] = authorization
        run.secrets = self._files.secrets(access)
        run.body = run.request.body()
        if run.url.scheme == "https":
            run.tls = timed(self._files.tls(access))
        run.proxy = await self._proxy(run.url)
        run.raw.proxied = run.proxy is not None
        if self._closed:
            raise FetchError(Reason.CONNECT, "the tracer is closed")

    async def _timed(self, run: _Run) -> None:
        """Fills ``run.raw``, its failure included."""
        raw, own = run.raw, list[aiohttp.ClientSession]()
        try:
            async with run.limit:
                self._set_limit(run, "the head of an answer")
                response = await self._head(run, own)
                try:
                    await self._body(run, response)
                finally:
                    response.close()
        except (FetchError, DroppedError, AnswerError, aiohttp.ClientError, OSError, ValueError) as error:
            late = isinstance(error, TimeoutError) and run.limit.expired()
            raw.failure = self._late(run) if late else self._named(run, error)
        finally:
            # Before the sessions are closed: that may take the server's goodbye.
            raw.ended_at = self._clock.monotonic() if raw.ended_at is None else raw.ended_at
            for session in own:
                await session.close()

    async def _head(self, run: _Run, own: list[aiohttp.ClientSession]) -> Response:
        """The answer once its head is read. Sessions made for this request alone are added to ``own``."""
        while True:
            alone = run.request.fresh_connection or run.raw.retried
            if alone:
                own.append(self._new_session())
            try:
                response = await self._post(run, own[-1] if alone else self._pool())
            except DroppedError as dropped:
                if not dropped.retry or run.raw.retried:
                    raise
                # Nothing of an answer had come, so nothing was begun; and it must not meet a second dead connection.
                run.raw.retried = True
                run.raw.recorder.begin_again()
            else:
                run.raw.recorder.mark(Moment.HEAD)
                return response

    async def _post(self, run: _Run, session: aiohttp.ClientSession) -> Response:
        response = await session.post(
            run.url,
            data=StampedBody(run.body, run.raw.recorder),
            headers=run.headers,
            allow_redirects=False,
            ssl=run.tls,
            server_hostname=run.request.access.server_name,
            proxy=run.proxy,
        )
        assert isinstance(response, Response)
        return response

    async def _body(self, run: _Run, response: Response) -> None:
        """Stamps the reads of the body. Raises AnswerError where the status says that there is no answer in it."""
        raw, content, now = run.raw, response.content, self._clock.monotonic
        raw.status = response.status
        raw.content_type = response.headers.get("Content-Type", "")
        transport = response.wire.transport if response.wire is not None else None
        raw.peer = peer_address(transport)
        raw.min_rtt = min_rtt(transport)
        encrypted = None if transport is None else transport.get_extra_info("ssl_object")
        raw.tls_version = (encrypted.version() or "") if encrypted is not None else ""
        if response.status in _REDIRECTS:
            raise redirect_error(str(run.url), response.headers.get("Location", ""))
        size, mark = 0, EndMark()
        cap = run.request.body_cap_bytes if response.status == 200 else _ERROR_BODY_CAP_BYTES
        run.watch = FirstContentWatch() if run.request.first_token_seconds is not None else None
        try:
            while True:
                self._set_limit(run, "the first token" if not raw.reads else "the end of the stream")
                part = await content.readany()
                at = now()
                if not part:
                    break
                raw.reads.append((at, part))
                size += len(part)
                if size > cap:
                    raise AnswerError("too_large", f"an answer of more than {cap} bytes")
                if run.watch is not None and run.watch.seen(part):
                    run.watch = None
                if mark.came(part):
                    raw.ended_at = at
                    run.limit.reschedule(asyncio.get_running_loop().time() + _AFTER_DONE_SECONDS)
                    with suppress(aiohttp.ClientError, OSError):
                        while await content.readany():
                            raw.ended_at = now()
                    break
        except (aiohttp.ClientError, OSError):
            if response.status == 200:
                raise
        raw.ended_at = now() if raw.ended_at is None else raw.ended_at
        still = response.wire.transport if response.wire is not None else None
        raw.min_rtt = min_rtt(still) or raw.min_rtt
        if response.status != 200:
            if response.status in (401, 403):
                self._files.forget(run.request.access)
            raise status_error(raw)

    def _set_limit(self, run: _Run, awaited: str) -> None:
        """The nearest of the deadlines that hold now."""
        request, loop = run.request, asyncio.get_running_loop()
        behind = self._clock.monotonic() - run.raw.wanted_at
        limits = [(request.deadline_seconds - behind, f"{awaited} did not come within {request.deadline_seconds:g} s")]
        if request.first_token_seconds is not None and (run.raw.status is None or run.watch is not None):
            seconds = request.first_token_seconds
            limits.append((seconds - behind, f"the first token did not come within {seconds:g} s"))
        if request.idle_seconds is not None:
            limits.append((request.idle_seconds, f"nothing came for {request.idle_seconds:g} s"))
        left, run.waits_for = min(limits)
        run.limit.reschedule(loop.time() + left)

    def _late(self, run: _Run) -> Named | None:
        if run.raw.ended_at is not None:
            return None  # after the end mark nothing was owed but the end of the body
        if run.raw.status not in (None, 200):
            return status_error(run.raw).named
        return Named("timeout", f"{peer_of(run.url)}: {run.waits_for}")

    def _named(self, run: _Run, error: BaseException) -> Named:
        return named(error, peer_of(run.url), run.raw.recorder.last_errno)

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._new_session()
        return self._session

    def _new_session(self) -> aiohttp.ClientSession:
        return session_over(self._timed_resolver, Response)

    def _proxy_for(self, url: URL) -> str | None:
        return self._proxies.proxy_for(url.scheme, url.host or "", url.port or 0)

    async def _proxy(self, url: URL) -> str | None:
        """As for every source of ours: what is on this machine or in a private network is reached directly."""
        host = url.host or ""
        local = is_local(host)
        proxy = None if local else self._proxy_for(url)
        if proxy is None or local is not None:
            return proxy
        try:
            async with asyncio.timeout(_PROXY_LOOKUP_SECONDS):
                found = await self._plain_resolver.resolve(host, url.port or 0)
        except (OSError, ValueError):
            return proxy  # behind a proxy, names often mean nothing here
        return None if all_local([entry["host"] for entry in found]) else proxy
