"""Whether a server says that it is well: a GET of its ``/health``, apart from its metrics page."""

from __future__ import annotations

from typing import NamedTuple

from ufwatch.config import TargetConfig
from ufwatch.model import Reason
from ufwatch.sources.fetch import Fetcher

PROBE_SECONDS = 1.0
"""Time between two probes of a target, and the most that one may take."""
_BODY_CAP_BYTES = 65_536


class Probe(NamedTuple):
    """One answer. ``status`` is None when none came in time; ``ours`` is a failure of the agent itself."""

    status: int | None
    ours: bool = False


class HealthSource:
    """Asks one target. Nothing but its own task asks, so one probe is in flight."""

    def __init__(self, target: TargetConfig, fetcher: Fetcher) -> None:
        self.url = health_url(target.url)
        self._access, self._fetcher = target.access, fetcher

    async def poll(self, deadline_seconds: float = PROBE_SECONDS) -> Probe:
        """One probe. Nothing is raised except CancelledError."""
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
