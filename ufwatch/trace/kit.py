"""What all probes of an agent share: one client, and the way of their traces to a backend."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ufwatch.clock import Clock
from ufwatch.config import ProbeConfig, TargetConfig
from ufwatch.model import Samples
from ufwatch.sources.fetch import Fetcher
from ufwatch.trace.client import Tracer
from ufwatch.trace.endpoint import Endpoint
from ufwatch.trace.model import Exchange
from ufwatch.trace.probing import Probe
from ufwatch.trace.record import ids_from
from ufwatch.trace.spans import tree_of

if TYPE_CHECKING:  # OpenTelemetry is imported only where traces are sent
    from ufwatch.trace.export import Export

_LOG = logging.getLogger("ufwatch.probe")
CLOSE_SECONDS = 0.7
"""What the end may take for spans that wait."""


class ProbeKit:
    """For one event loop; ``close`` must be awaited in it. Without ``spans`` no trace is sent anywhere."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        clock: Clock,
        fetcher: Fetcher,
        spans: Export | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._tracer = Tracer(env, clock=clock, random_bytes=random_bytes)
        self._clock, self._fetcher, self._spans, self._random_bytes = clock, fetcher, spans, random_bytes
        self._ids = ids_from(random_bytes)

    def probe(self, config: ProbeConfig, target: TargetConfig) -> Probe:
        """A probe without a past."""
        return Probe(
            config,
            target,
            tracer=self._tracer,
            fetcher=self._fetcher,
            clock=self._clock,
            random_bytes=self._random_bytes,
        )

    def export(self, exchange: Exchange) -> None:
        """Sends the request's trace. Never waits; what is lost is counted."""
        if self._spans is not None:
            self._spans.add(tree_of(exchange, self._ids))

    def samples(self) -> Samples:
        """What became of our spans; nothing where none are sent."""
        samples = Samples()
        if self._spans is not None:
            counts = self._spans.counts
            samples.add("otlp_spans_exported_total", (), float(counts.exported))
            for reason, spans in counts.lost.items():
                samples.add("otlp_spans_dropped_total", (("reason", reason.value),), float(spans))
        return samples

    async def close(self) -> None:
        """Ends the connections and sends the spans that wait, as far as there is time."""
        await self._tracer.close()
        if self._spans is not None:
            counts = await asyncio.to_thread(self._spans.close, CLOSE_SECONDS)
            _LOG.info("spans sent", extra={"fields": {"exported": counts.exported, "dropped": counts.dropped}})


async def open_kit(
    env: Mapping[str, str], *, clock: Clock, fetcher: Fetcher, endpoint: Endpoint | None = None
) -> ProbeKit:
    """The kit of an agent. OpenTelemetry is imported, in a thread, only where there is an ``endpoint``. Raises
    ConfigError for a sampler, resource attributes or a certificate that cannot be used."""
    if endpoint is None:
        return ProbeKit(env, clock=clock, fetcher=fetcher)
    spans = await asyncio.to_thread(_spans_to, endpoint, env)
    return ProbeKit(env, clock=clock, fetcher=fetcher, spans=spans)


def _spans_to(endpoint: Endpoint, env: Mapping[str, str]) -> Export:
    from ufwatch.trace.export import Export, exporter_to

    return Export(exporter_to(endpoint), env)
