"""The OTLP receiver as part of a running agent: vLLM's spans in, whole trees out, and what became of them."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ufwatch.clock import Clock
from ufwatch.model import Samples
from ufwatch.trace.endpoint import Endpoint

if TYPE_CHECKING:  # gRPC and OpenTelemetry are imported only where OTLP is taken
    from ufwatch.trace.receiver import Receiver

STOP_SECONDS = 0.7
"""What the end may take for spans that wait."""


class Receiving:
    """For one event loop. Until ``start`` and after ``stop`` nothing is taken."""

    def __init__(self, clock: Clock, env: Mapping[str, str], endpoint: Endpoint | None) -> None:
        """Without an ``endpoint`` spans are counted and go nowhere."""
        self._clock, self._env, self._endpoint = clock, env, endpoint
        self._receiver: Receiver | None = None

    async def start(self, *, grpc_port: int | None = None, http_port: int | None = None) -> None:
        """Listens on 127.0.0.1, at the usual ports. Raises ListenError and ConfigError, each with one line."""
        from ufwatch.trace.receiver import GRPC_PORT, HTTP_PORT, ReceiverConfig, start_receiver, transport_to
        from ufwatch.web.server import serve

        self._receiver = await start_receiver(
            ReceiverConfig(
                grpc_port=GRPC_PORT if grpc_port is None else grpc_port,
                http_port=HTTP_PORT if http_port is None else http_port,
            ),
            serve=serve,
            now=self._clock.monotonic,
            random=random.random,
            random_bytes=os.urandom,
            transport=None if self._endpoint is None else transport_to(self._endpoint, self._env),
        )

    @property
    def ports(self) -> tuple[int | None, int | None]:
        """Of gRPC and of HTTP, while it listens."""
        return (None, None) if self._receiver is None else (self._receiver.grpc_port, self._receiver.http_port)

    def samples(self) -> Samples:
        """What came in and what became of it, since the start."""
        samples = Samples()
        if self._receiver is None:
            return samples
        received, forwarded = self._receiver.received, self._receiver.forwarded
        samples.add("otlp_received_spans_total", (), float(received.spans))
        for refusal, requests in received.refused.items():
            samples.add("otlp_refused_requests_total", (("reason", refusal.value),), float(requests))
        if forwarded is not None:
            samples.add("otlp_forwarded_spans_total", (), float(forwarded.delivered))
            for drop, spans in forwarded.dropped.items():
                samples.add("otlp_forward_dropped_spans_total", (("reason", drop.value),), float(spans))
        return samples

    async def stop(self) -> None:
        """Closes the doors and passes on what waits, as far as there is time."""
        if self._receiver is not None:
            await self._receiver.stop(STOP_SECONDS)
            self._receiver = None
