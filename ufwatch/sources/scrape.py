"""One inference server's ``/metrics``."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from ufwatch.config import TargetConfig
from ufwatch.sources.fetch import Fetched, Fetcher


class ScrapeSource:
    """Scrapes one target. Raises ValueError where its ``url`` cannot be an address (see :func:`metrics_url`).

    Only the target's own task asks it, so that one GET is in flight however many read what came of it.
    """

    def __init__(self, target: TargetConfig, fetcher: Fetcher) -> None:
        self.target = target
        self.url = metrics_url(target.url)
        self._fetcher = fetcher

    async def poll(self, deadline_seconds: float) -> Fetched:
        """One scrape. Nothing is raised except CancelledError."""
        return await self._fetcher.get(self.url, self.target.access, deadline_seconds=deadline_seconds)


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
