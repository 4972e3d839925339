"""A probe: one short streamed request to a target at a time, and what is kept of all of them for the page.

When it asks is its caller's matter (:mod:`ufwatch.probes`). Each request costs the server its tokens and takes the
place of somebody else's, so prompt and answer are small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ufwatch.clock import Clock
from ufwatch.config import ProbeConfig, TargetConfig
from ufwatch.core.counting import Asked
from ufwatch.core.histogram import Histogram
from ufwatch.model import Exemplars, Labels, Samples
from ufwatch.sources.fetch import Fetcher
from ufwatch.trace.account import network
from ufwatch.trace.client import Tracer
from ufwatch.trace.model import PREPARE, Exchange, Phase, ServerSplit, SplitSource
from ufwatch.trace.request import Operation, TraceRequest
from ufwatch.trace.series import metrics_of, run_series
from ufwatch.trace.summary import UNACCOUNTED

TTFT_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 0.8, 1.0, 2.3, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""vLLM's, so that both can be laid over one another, and those of the default objectives."""
ITL_EDGES = (
    *(0.01, 0.025, 0.05, 0.06, 0.075, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
"""vLLM's, and the limits that jitter is judged by."""
SHOWN_INTERVALS = 3
"""For so many intervals the phases of a request are shown."""
_PHASES = (PREPARE, *(phase.value for phase in Phase))
_BODY_CAP_BYTES, _TOKEN_CAP_BYTES = 64 << 10, 2 << 10
"""Of an answer, and for each token that was asked for. It is read in the agent's own loop, which a server that sends
4 MB of nothing would hold up for a second."""
_OPERATIONS = {"chat": Operation.CHAT, "completions": Operation.COMPLETION}
_UNKNOWN_STATUS = tuple(f"status_{status}" for status in (400, 401, 403, 404, 405, 422))
"""Answers that say how we ask, and nothing of how the server serves."""


class _Shown(NamedTuple):
    """The phases of the last request that went well, in seconds, and when it ended on the monotonic clock."""

    phases: tuple[tuple[str, float], ...]
    at: float


class Probe:
    """One probe and its past. For the event loop's thread only; ``once`` never twice at a time.

    ``random_bytes`` makes prompts that no other request had.
    """

    def __init__(
        self,
        config: ProbeConfig,
        target: TargetConfig,
        *,
        tracer: Tracer,
        fetcher: Fetcher,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.config, self.target = config, target
        self._tracer, self._fetcher, self._clock, self._random_bytes = tracer, fetcher, clock, random_bytes
        self._ttft, self._itl = Histogram(TTFT_EDGES), Histogram(ITL_EDGES)
        self._shown: _Shown | None = None
        self._requests = 0
        self._failures: Counter[str] = Counter()
        self._counts_tokens = True

    async def once(self, model: str) -> Exchange:
        """One request for ``model`` (empty: whichever the server has), taken into the figures. Raises nothing but
        CancelledError; takes the probe's timeout and what a look at the server's page before and after it may take."""
        request = self._request(model)
        if not request.fresh_connection:
            await self._tracer.open(request)
        # Anew each time: a page that could not be had once is given up only for that request.
        (exchange,) = await run_series([request], self._tracer, metrics_of(request, self._fetcher))
        self.take(exchange)
        return exchange

    def take(self, exchange: Exchange) -> None:
        """Counts a request that has ended."""
        self._requests += 1
        wall = self._clock.wall()
        if exchange.ttft is not None and exchange.ttft >= 0:
            self._ttft.add(exchange.ttft, exchange.trace_id, wall)
        for gap in token_gaps(exchange):
            self._itl.add(gap, exchange.trace_id, wall)
        if exchange.failure is None:
            self._shown = _Shown(phases_of(exchange), self._clock.monotonic())
            return
        self._shown = None
        self._failures[exchange.failure.where] += 1
        if exchange.failure.error_type in ("status_400", "status_422"):
            self._counts_tokens = False  # perhaps it was that wish, which not every server knows

    def samples(self, model_name: str) -> Samples:
        """All of the probe's series as they stand now."""
        labels = self._labels(model_name)
        samples = self._ttft.samples("probe_ttft_seconds", labels)
        samples += self._itl.samples("probe_itl_seconds", labels)
        shown = self._shown
        if shown is not None and self._clock.monotonic() - shown.at <= SHOWN_INTERVALS * self.config.interval_seconds:
            for phase, seconds in shown.phases:
                samples.add("probe_phase_seconds", (*labels, ("phase", phase)), seconds)
        samples.add("probe_requests_total", labels, float(self._requests))
        for phase in _PHASES:
            samples.add("probe_failures_total", (*labels, ("phase", phase)), float(self._failures[phase]))
        return samples

    def exemplars(self, model_name: str) -> Exemplars:
        """The traces behind the histograms' buckets."""
        labels = self._labels(model_name)
        return {
            **self._ttft.exemplars("probe_ttft_seconds", labels),
            **self._itl.exemplars("probe_itl_seconds", labels),
        }

    def _labels(self, model_name: str) -> Labels:
        return (("target", self.target.name), ("model_name", model_name))

    def _request(self, model: str) -> TraceRequest:
        config = self.config
        fresh = self._requests % 2 == 0 if config.fresh_connection is None else config.fresh_connection
        return TraceRequest(
            url=self.target.url,
            model=model,
            # What is new stands in front: a prefix that is cached ends where prompts begin to differ.
            prompt=config.prompt or f"{self._random_bytes(6).hex()}: count from one to ten in words.",
            operation=_OPERATIONS[config.operation],
            max_tokens=config.max_tokens,
            continuous_usage=self._counts_tokens,
            access=self.target.access,
            fresh_connection=fresh,
            deadline_seconds=config.timeout_seconds,
            body_cap_bytes=_BODY_CAP_BYTES + config.max_tokens * _TOKEN_CAP_BYTES,
        )


def token_gaps(exchange: Exchange) -> tuple[float, ...]:
    """Seconds between tokens: only between chunks of one token each, the later of which had its read to itself.

    Where the server does not tell tokens by chunk, chunks are tokens if there are as many of either.
    """
    gaps, single = exchange.chunk_gaps, {chunk.choice for chunk in exchange.chunks} == {0}
    told = any(chunk.tokens is not None for chunk in exchange.chunks)
    same = single and not told and exchange.usage.completion_tokens == len(exchange.chunks)
    return tuple(g.seconds for g in gaps if (g.token_interval or same) and not g.coalesced and g.seconds >= 0)


def phases_of(exchange: Exchange) -> tuple[tuple[str, float], ...]:
    """Where the time of a request went, the server's own pieces in place of our wait for them; all add up to it.

    A mean over the requests of others too is none of its pieces, and a gauge could not say so: then they are absent.
    """
    account = network(exchange if exchange.server.exact else replace(exchange, server=ServerSplit(SplitSource.NONE)))
    return (*((part.name, part.seconds) for part in account.parts), (UNACCOUNTED, account.unaccounted))


def asked_of(exchange: Exchange) -> Asked:
    """The request as objectives judge it: as from the last byte sent, as a server counts from the arrival."""
    sent, failure = exchange.span(Phase.SEND), exchange.failure
    told = {
        "ttft": exchange.ttft,
        "tpot": exchange.tpot,
        "e2e": None if sent is None or failure is not None else exchange.total - sent.end,
    }
    ours = failure is not None and (
        failure.phase is None or failure.error_type == "configuration" or failure.error_type in _UNKNOWN_STATUS
    )
    seconds = {metric: value for metric, value in told.items() if value is not None}
    return Asked(seconds, failed=failure is not None, ours=ours)
