"""What ``ufwatch trace`` does between its arguments and its text: requests, the server's spans, and where they go."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from ufwatch.clock import SystemClock
from ufwatch.config import HttpAccess
from ufwatch.errors import ConfigError
from ufwatch.render.table import plain
from ufwatch.sources.fetch import Fetcher
from ufwatch.trace.client import Tracer
from ufwatch.trace.endpoint import Endpoint, endpoint_from
from ufwatch.trace.model import Exchange
from ufwatch.trace.record import ids_from
from ufwatch.trace.request import Operation, TraceRequest
from ufwatch.trace.series import Metrics, WaitFor, connections, metrics_of, run_series
from ufwatch.trace.spans import tree_of

_SEND_SECONDS, _PASS_ON_SECONDS = 1.0, 0.5
"""How long the end may take for our own spans that wait, and for those received: with all else under two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was asked for, checked."""

    url: str
    requests: int
    model: str | None
    prompt: str | None
    operation: Operation
    max_tokens: int
    timeout_seconds: float
    access: HttpAccess
    otlp: str | None
    receive: bool


@dataclass(frozen=True, slots=True)
class Traced:
    """What came of it. ``spans`` counts what became of the spans; ``lines`` say it."""

    exchanges: list[Exchange]
    spans: Mapping[str, int]
    lines: tuple[str, ...]


async def traced(plan: Plan, env: Mapping[str, str], tell: Callable[[str], None] | None = None) -> Traced:
    """Sends the requests. ``tell`` hears of each as it ends. Raises ConfigError, SourceError and ListenError."""
    endpoint = endpoint_from(env, plan.otlp)
    fetcher, tracer = Fetcher(env), Tracer(env)
    try:
        async with _receiving(plan, env, endpoint) as wait_for:
            requests, metrics = await _requests(plan, fetcher)
            ended = 0

            def after_each(exchange: Exchange) -> None:
                nonlocal ended
                ended += 1
                if tell is not None:
                    how = "failed" if exchange.failure is not None else f"{1000 * exchange.total:.0f} ms"
                    tell(f"request {ended} of {len(requests)}: {how}")

            exchanges = await run_series(requests, tracer, metrics, wait_for=wait_for, after_each=after_each)
        spans, lines = await _sent(exchanges, endpoint, env)
        return Traced(exchanges, spans, lines)
    finally:
        await tracer.close()
        await fetcher.close()


async def _requests(plan: Plan, fetcher: Fetcher) -> tuple[list[TraceRequest], Metrics]:
    """One request for each that was asked for, each with a prompt of its own unless one was given."""
    first = TraceRequest(
        url=plan.url,
        model=plan.model or "",
        operation=plan.operation,
        max_tokens=plan.max_tokens,
        access=plan.access,
        deadline_seconds=plan.timeout_seconds,
    )
    metrics = metrics_of(first, fetcher)
    model = plan.model
    if model is None:
        sums = await metrics.sums()
        models = sorted(sums.models) if sums is not None else []
        if len(models) != 1:
            several = f"the server has several ({', '.join(map(plain, models))})"
            why = several if models else "the server's metrics name none"
            raise ConfigError("ufwatch", [f"--model: {why}; give one"])
        (model,) = models
    return [
        replace(
            first,
            model=model,
            prompt=plan.prompt or f"{os.urandom(6).hex()}: count from one to ten in words.",
            fresh_connection=fresh,
        )
        for fresh in connections(plan.requests)
    ], metrics


@asynccontextmanager
async def _receiving(plan: Plan, env: Mapping[str, str], endpoint: Endpoint | None) -> AsyncIterator[WaitFor | None]:
    """The receiver while the requests run; None where none was asked for."""
    if not plan.receive:
        yield None
        return
    from ufwatch.trace.receiver import ReceiverConfig, start_receiver, transport_to
    from ufwatch.web.server import serve

    receiver = await start_receiver(
        ReceiverConfig(),
        serve=serve,
        now=SystemClock().monotonic,
        random=random.random,
        random_bytes=os.urandom,
        transport=None if endpoint is None else transport_to(endpoint, env),
    )
    try:
        yield receiver.wait_for
    finally:
        await receiver.stop(_PASS_ON_SECONDS)


async def _sent(
    exchanges: list[Exchange], endpoint: Endpoint | None, env: Mapping[str, str]
) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Sends our own spans, and says what became of them."""
    if endpoint is None:
        return {}, ()
    from ufwatch.trace.export import Export, exporter_to

    export = Export(exporter_to(endpoint), env)
    ids = ids_from(os.urandom)
    for exchange in exchanges:
        export.add(tree_of(exchange, ids))
    counts = await asyncio.to_thread(export.close, _SEND_SECONDS)
    spans = {
        "exported": counts.exported,
        "waiting": counts.waiting,
        "not_sampled": counts.not_sampled,
        "dropped": counts.dropped,
    }
    lost = counts.dropped + counts.waiting
    line = f"{counts.exported} spans sent to {endpoint.target}"
    return spans, (f"{line}, {lost} lost" if lost else line,)
