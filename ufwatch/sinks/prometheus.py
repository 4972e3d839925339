"""The page that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from ufwatch.model import Exemplars, Sample
from ufwatch.render.exposition import Page
from ufwatch.sinks.negotiation import CONTENT_TYPES, negotiate


class PrometheusSink:
    """Keeps the page. For the event loop's thread only; reading it waits for nobody."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None:
        """Replaces everything this owner has on the page."""
        self._page.put(owner, samples, exemplars)

    def forget(self, owner: str) -> None:
        """Takes an owner's series off the page; Prometheus marks them stale at its next scrape."""
        self._page.drop(owner)

    def answer(self, accept: str | None, accept_encoding: str | None) -> tuple[bytes, str, bool]:
        """Body, content type, and whether the body is gzip."""
        form, gzip = negotiate(accept, accept_encoding)
        return self._page.body(form, gzip=gzip), CONTENT_TYPES[form], gzip
