"""Whether a server says that it is well: a GET of its ``/health`` once a second, apart from its metrics page.

At one probe a second and target the HTTP client would cost more than all scrapes together. So a plain address is asked
over one kept connection of our own (:class:`Line`); what needs TLS, a proxy or a redirect goes through the client.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast

from ufwatch.config import TargetConfig
from ufwatch.model import Reason
from ufwatch.sources.failure import own_limit
from ufwatch.sources.fetch import Fetcher, Plain

PROBE_SECONDS = 1.0
"""Time between two probes of a target, and the most that one may take."""
_BODY_CAP_BYTES = 65_536
_REDIRECTS = range(300, 400)
_FRESH_POLLS = 60
"""After so many, proxy, credentials and redirects are looked at anew."""


class Probe(NamedTuple):
    """One answer. ``status`` is None when none came in time; ``ours`` is a failure of the agent itself."""

    status: int | None
    ours: bool = False


class HealthSource:
    """Asks one target. Nothing but its own task asks, so one probe is in flight."""

    def __init__(self, target: TargetConfig, fetcher: Fetcher) -> None:
        self.url = health_url(target.url)
        self._access, self._fetcher = target.access, fetcher
        self._line: Line | None = None
        self._redirected = False
        self._plain: Plain | None = None
        self._polls = 0

    async def poll(self, deadline_seconds: float = PROBE_SECONDS) -> Probe:
        """One probe. Nothing is raised except CancelledError."""
        if self._polls % _FRESH_POLLS == 0:
            self._redirected, self._plain = False, await self._fetcher.plain(self.url, self._access)
        self._polls += 1
        plain = None if self._redirected else self._plain
        if plain is None:
            return await self._through_the_client(deadline_seconds)
        probe = await self._over_the_line(plain, deadline_seconds)
        if probe.status in (401, 403):
            self._polls = 0  # the credentials may have been changed
        self._redirected = probe.status in _REDIRECTS
        return probe if not self._redirected else await self._through_the_client(deadline_seconds)

    def close(self) -> None:
        """Ends the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None

    async def _through_the_client(self, deadline_seconds: float) -> Probe:
        fetched = await self._fetcher.get(
            self.url, self._access, deadline_seconds=deadline_seconds, body_cap_bytes=_BODY_CAP_BYTES
        )
        reason = fetched.health.reason
        # An answer that is no metrics page is what we expect here; one that is cut or late is none.
        answered = reason in (None, Reason.CONTENT, Reason.STATUS)
        return Probe(fetched.status if answered else None, ours=reason is Reason.RESOURCES)

    async def _over_the_line(self, plain: Plain, deadline_seconds: float) -> Probe:
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_seconds
        kept = self._line
        if kept is not None and kept.open:
            status = await kept.ask(plain.request, end)
            # Between two probes a server may close the connection just as we ask: that says nothing of its health.
            if status is not None or not kept.dropped:
                return Probe(status)
        self.close()
        try:
            async with asyncio.timeout_at(end):
                line = self._line = await self._connected(plain)
        except OSError as error:  # a time-out is one too
            return Probe(None, ours=own_limit(error))
        return Probe(await line.ask(plain.request, end))

    async def _connected(self, plain: Plain) -> Line:
        """A new connection to the first address of the name that takes one. Raises OSError."""
        failure: OSError | None = None
        try:
            for address in await self._fetcher.addresses(plain.host, plain.port):
                try:
                    _, line = await asyncio.get_running_loop().create_connection(Line, address, plain.port)
                except OSError as error:
                    failure = error
                else:
                    return line
            raise failure or OSError(f"{plain.host}: no address")
        finally:
            failure = None  # it holds this frame, which would hold it


class Line(asyncio.Protocol):
    """One connection, asked one GET at a time; kept while the answers tell where they end."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._answer: asyncio.Future[int | None] | None = None
        self.dropped = False
        """The connection was closed before any byte of the answer came."""

    @property
    def open(self) -> bool:
        """Whether it can be asked."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, end: float) -> int | None:
        """The status of the answer; None when it is not whole by ``end`` (in the loop's time) or is no HTTP."""
        if self._transport is None:
            self.dropped = True
            return None
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int | None] = loop.create_future()
        self._answer = answer
        self._data.clear()
        self._transport.write(request)
        late = loop.call_at(end, self._done, None)
        try:
            return await answer
        finally:
            late.cancel()
            if not answer.done() or answer.cancelled():
                self.close()
            self._answer = None

    def close(self) -> None:
        """Ends the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has not the same ancestors

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()  # nobody asked
            return
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            if len(self._data) > _BODY_CAP_BYTES:
                self._done(None)
            return
        status, length = _status_and_length(bytes(self._data[:head]))
        if status is None or length is None:
            # Where the body ends is not told in advance: the status is enough, the connection is not kept.
            self._done(status, keep=False)
        elif len(self._data) >= head + 4 + length:
            self._done(status, keep=len(self._data) == head + 4 + length)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport = None
        self.dropped = not self._data
        self._done(None)

    def _done(self, status: int | None, *, keep: bool = False) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)
        if not keep:
            self.close()


def _status_and_length(head: bytes) -> tuple[int | None, int | None]:
    """The status of an answer's head, and its body's length; None for what is not told, or not to be kept open."""
    first, _, rest = head.partition(b"\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit() or len(words[1]) != 3:
        return None, None
    length: int | None = 0 if words[1] == b"204" else None
    for line in rest.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        value = value.strip()
        if name == b"content-length" and value.isdigit() and len(value) < 6:
            length = int(value)
        elif name == b"transfer-encoding" or (name == b"connection" and value == b"close"):
            return int(words[1]), None
    return int(words[1]), length if words[0] == b"HTTP/1.1" else None


def health_url(url: str) -> str:
    """The address of a target's health: ``/health`` beside its ``/metrics``."""
    return f"{url.rstrip('/').removesuffix('/metrics')}/health"
