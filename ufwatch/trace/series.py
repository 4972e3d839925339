"""A series of requests to one server: over new connections and a kept one, each with the best split there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from ufwatch.config import HttpAccess
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.scrape import metrics_url
from ufwatch.trace.client import Tracer
from ufwatch.trace.model import Exchange, SplitSource
from ufwatch.trace.request import TraceRequest
from ufwatch.trace.server_spans import ServerSpan, split_of
from ufwatch.trace.split import Sums, best, from_histograms, read_sums

SPAN_WAIT_SECONDS = 7.0
"""vLLM sends its spans at most 5 s after the end of a request."""
_SCRAPE_SECONDS = 5.0

WaitFor = Callable[[str, str, float], Awaitable[ServerSpan | None]]
"""The receiver's: trace id, request id, seconds."""


def connections(requests: int) -> tuple[bool, ...]:
    """Which of so many requests get a connection of their own: the first opens the one that is kept, and of the others
    every second, in turn, so that a server that warms up does so for both kinds."""
    return tuple(number > 0 and number % 2 == 0 for number in range(requests))


@dataclass(slots=True)
class Metrics:
    """The server's own page, asked beside the requests; given up once it is none."""

    url: str
    access: HttpAccess
    fetcher: Fetcher
    useful: bool = True

    async def sums(self) -> Sums | None:
        """The request histograms as they stand; None where the page cannot be had."""
        if not self.useful:
            return None
        fetched = await self.fetcher.get(self.url, self.access, deadline_seconds=_SCRAPE_SECONDS)
        found = None if fetched.body is None else read_sums(fetched.body)
        self.useful = found is not None and bool(found.series)
        return found


def metrics_of(request: TraceRequest, fetcher: Fetcher) -> Metrics:
    """The page beside the address of a request."""
    return Metrics(metrics_url(request.base_url), request.access, fetcher)


async def run_series(
    requests: list[TraceRequest],
    tracer: Tracer,
    metrics: Metrics,
    *,
    wait_for: WaitFor | None = None,
    after_each: Callable[[Exchange], None] = lambda _: None,
) -> list[Exchange]:
    """The requests one after the other. With ``wait_for``, the server's spans are waited for when all are done.

    Before several, one that is not counted: the first request of its shape can take a server seconds.
    """
    found: list[Exchange] = []
    if len(requests) > 1:
        await tracer.traced(replace(requests[0], fresh_connection=True, sampled=False))
    before = await metrics.sums()
    for request in requests:
        exchange = await tracer.traced(request)
        if exchange.failure is None and exchange.server.source is SplitSource.NONE:
            after = await metrics.sums()
            counted = from_histograms(before, after, request.model)
            exchange = replace(exchange, server=best(exchange.server, counted))
            before = after
        after_each(exchange)
        found.append(exchange)
    return found if wait_for is None else list(await asyncio.gather(*(_joined(each, wait_for) for each in found)))


async def _joined(exchange: Exchange, wait_for: WaitFor) -> Exchange:
    if exchange.failure is not None and exchange.status is None:
        return exchange
    span = await wait_for(exchange.trace_id, exchange.request_id, SPAN_WAIT_SECONDS)
    return exchange if span is None else replace(exchange, server=best(split_of(span), exchange.server))
