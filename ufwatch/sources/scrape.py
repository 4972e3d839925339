"""One inference server's ``/metrics``: one GET in flight, however many want its result."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from ufwatch.config import TargetConfig
from ufwatch.model import Health
from ufwatch.sources.fetch import Fetcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One attempt at a target. ``body`` is a whole exposition page, None exactly when ``health`` is not up."""

    at_seconds: float
    """Monotonic time at which the body was complete, or the failure certain: the time of every value in it."""
    health: Health
    body: bytes | None
    openmetrics: bool
    seconds: float
    wire_bytes: int


class ScrapeSource:
    """Scrapes one target. Raises ValueError where its ``url`` cannot be an address (see :func:`metrics_url`)."""

    def __init__(self, target: TargetConfig, fetcher: Fetcher) -> None:
        self.target = target
        self.url = metrics_url(target.url)
        self._fetcher = fetcher
        self._flight: asyncio.Task[Scrape] | None = None
        self._waiting = 0

    async def poll(self, deadline_seconds: float) -> Scrape:
        """One scrape. Whoever calls while one is under way gets that one's result, within its first caller's deadline.

        Nothing is raised except CancelledError. A cancelled caller leaves the scrape to the others; the last ends it.
        """
        flight = self._flight
        if flight is None:
            flight = self._flight = asyncio.create_task(self._scrape(deadline_seconds), name=f"scrape {self.url}")
            self._waiting = 0
        self._waiting += 1
        try:
            return await asyncio.shield(flight)
        finally:
            if self._flight is flight:
                self._waiting -= 1
                if flight.done() or self._waiting == 0:
                    self._flight = None
                    flight.cancel()

    async def _scrape(self, deadline_seconds: float) -> Scrape:
        fetched = await self._fetcher.get(self.url, self.target.access, deadline_seconds=deadline_seconds)
        return Scrape(
            at_seconds=fetched.at_seconds,
            health=fetched.health,
            body=fetched.body,
            openmetrics=fetched.openmetrics,
            seconds=fetched.seconds,
            wire_bytes=fetched.wire_bytes,
        )


def metrics_url(url: str) -> str:
    """The address to scrape: ``/metrics`` is added to the path unless it ends so; a query is kept, a fragment dropped.

    Raises ValueError, its text without the address's credentials, for anything but ``http(s)://host[:port][/path][?query]``.
    """
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("not a valid address; write http://HOST:PORT") from None
    if "@" in parts.netloc:
        raise ValueError("holds a user or a password; put them into a file and name it in basic_auth_file")
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if not host or port == 0 or any(c.isspace() for c in parts.netloc):
        raise ValueError("names no host and port; write http://HOST:PORT")
    path = parts.path.rstrip("/")
    path = parts.path if path.endswith("/metrics") else f"{path}/metrics"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
