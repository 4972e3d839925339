"""Whether a server says that it is well: a GET of its ``/health`` once a second, apart from its metrics page."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ufwatch.config import TargetConfig
from ufwatch.model import Reason
from ufwatch.sources.failure import own_limit
from ufwatch.sources.fetch import Fetcher, Plain
from ufwatch.sources.line import End

PROBE_SECONDS = 1.0
"""Time between two probes of a target, and the most that one may take."""
_BODY_CAP_BYTES = 65_536
_REDIRECT = 3
_ANSWERED = (End.WHOLE, End.UNTOLD, End.TOO_LARGE)
"""The status is enough: a body without an end, or larger than anybody wants, still says that the server answers."""
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
        self._plain: Plain | None = None
        self._polls = 0

    async def poll(self, deadline_seconds: float = PROBE_SECONDS) -> Probe:
        """One probe. Nothing is raised except CancelledError."""
        if self._polls % _FRESH_POLLS == 0:
            self.close()
            self._plain = await self._fetcher.plain(self.url, self._access)
        self._polls += 1
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_seconds
        if self._plain is not None:
            try:
                reply = await self._plain.kept.ask(self._plain.request, end, _BODY_CAP_BYTES)
            except OSError as error:  # a time-out is one too
                return Probe(None, ours=own_limit(error))
            if reply is not None and (reply.status or 0) // 100 != _REDIRECT:
                if reply.status in (401, 403):
                    self._polls = 0  # the credentials may have been changed
                return Probe(reply.status if reply.end in _ANSWERED else None)
            self.close()
        return await self._through_the_client(end - loop.time())

    def close(self) -> None:
        """Ends the connection."""
        if self._plain is not None:
            self._plain.kept.close()
            self._plain = None

    async def _through_the_client(self, deadline_seconds: float) -> Probe:
        fetched = await self._fetcher.get(
            self.url, self._access, deadline_seconds=deadline_seconds, body_cap_bytes=_BODY_CAP_BYTES
        )
        reason = fetched.health.reason
        # An answer that is no metrics page is what we expect here; one that is cut or late is none.
        answered = reason in (None, Reason.CONTENT, Reason.STATUS)
        return Probe(fetched.status if answered else None, ours=reason is Reason.RESOURCES)


def health_url(url: str) -> str:
    """The address of a target's health: ``/health`` beside its ``/metrics``."""
    return f"{url.rstrip('/').removesuffix('/metrics')}/health"
