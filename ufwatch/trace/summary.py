"""Several requests to one server as medians by layer. Pure; seconds, shares 0–1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ufwatch.trace.account import network
from ufwatch.trace.model import Exchange, Phase

UNACCOUNTED = "unaccounted"
ORDER = (
    *(Phase.DNS.value, Phase.TCP.value, Phase.PROXY.value, Phase.TLS.value, Phase.SEND.value),
    *("network", "http_frontend", "http_frontend_and_network"),
    *("pre_engine_and_http", "pre_engine_and_http_and_network", "server_and_http", "server_and_http_and_network"),
    *("pre_engine_wait", "queue", "server_ttft", "prefill"),
    *(Phase.HEADERS.value, Phase.FIRST_TOKEN.value, "decode", Phase.STREAM.value, UNACCOUNTED),
)
"""The layers from the name to the last token, as they are shown."""
CONNECTING = (Phase.DNS.value, Phase.TCP.value, Phase.PROXY.value, Phase.TLS.value)
AFTER_FIRST_TOKEN = ("decode", Phase.STREAM.value, UNACCOUNTED)


class Spread(NamedTuple):
    """Some durations; ``p90`` is the least that nine of ten do not exceed."""

    n: int
    median: float
    p90: float
    low: float
    high: float


class Layer(NamedTuple):
    """One layer over all requests that have it."""

    name: str
    spread: Spread
    share: float | None
    """Of the time to the first token; None for what comes after it, and where no token came."""
    estimate: bool
    """Not measured alone: by the kernel's best round trip, or as a mean over several requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Requests of one kind: over new connections (cold), or over a kept one (warm)."""

    requests: int
    failed: int
    first_token: Spread | None
    """From the moment at which the request was wanted, connecting included."""
    ttft: Spread | None
    """From the last byte of the request."""
    tpot: Spread | None
    total: Spread | None
    layers: tuple[Layer, ...]

    def layer(self, name: str) -> Layer | None:
        """The layer of that name, where any request had it."""
        return next((layer for layer in self.layers if layer.name == name), None)


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of some durations; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(len(ordered), median(ordered), ordered[math.ceil(0.9 * len(ordered)) - 1], ordered[0], ordered[-1])


def summary(exchanges: Sequence[Exchange]) -> Summary:
    """Medians over those that succeeded; those that failed are only counted."""
    good = [each for each in exchanges if each.failure is None]
    found: dict[str, list[float]] = {}
    estimates: set[str] = set()
    for exchange in good:
        account = network(exchange)
        for part in account.parts:
            found.setdefault(part.name, []).append(part.seconds)
            if part.estimate:
                estimates.add(part.name)
        found.setdefault(UNACCOUNTED, []).append(account.unaccounted)
    first = spread([span.end for each in good if (span := each.span(Phase.FIRST_TOKEN)) is not None])
    layers = []
    for name in (*ORDER, *sorted(found.keys() - set(ORDER))):
        over = spread(found.get(name, []))
        if over is not None:
            before = first is not None and first.median > 0 and name not in AFTER_FIRST_TOKEN
            share = over.median / first.median if before and first is not None else None
            layers.append(Layer(name, over, share, name in estimates))
    return Summary(
        requests=len(exchanges),
        failed=len(exchanges) - len(good),
        first_token=first,
        ttft=spread([each.ttft for each in good if each.ttft is not None]),
        tpot=spread([each.tpot for each in good if each.tpot is not None]),
        total=spread([each.total for each in good]),
        layers=tuple(layers),
    )
