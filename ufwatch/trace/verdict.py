"""Which layer is at fault, and what to try. Pure; seconds, shares 0–1.

A layer is out of the ordinary when it takes more than it should beside a baseline from an earlier run, or, without
one, more than its kind of work takes on a connection of this round trip; and only when it matters, being a tenth of
the wait for the first token or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ufwatch.trace.model import Exchange
from ufwatch.trace.summary import AFTER_FIRST_TOKEN, Layer, Summary

MATTERS_SHARE = 0.1
WORSE_FACTOR, WORSE_SECONDS = 1.5, 0.005
"""Beside a baseline, a layer is worse by half and by 5 ms at least: of little, half is noise."""


class Finding(NamedTuple):
    """One layer that takes more than it should."""

    layer: str
    seconds: float
    expected: float
    """What it should take at most, or what it took in the baseline."""
    share: float | None
    against_baseline: bool
    advice: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the requests say. ``leading`` are the layers by their share of the wait, the largest first."""

    leading: tuple[Layer, ...]
    findings: tuple[Finding, ...]
    unjudged: tuple[str, ...] = ()
    """Layers that matter and that there is nothing to compare with: neither a rule nor a layer of the baseline."""


class _Rule(NamedTuple):
    """The most that is ordinary: ``seconds`` and so many round trips, or a share of the prefill where that is more."""

    seconds: float
    round_trips: float
    of_prefill: float
    advice: str


_RULES: Mapping[str, _Rule] = {
    "dns": _Rule(
        *(0.020, 0, 0),
        "no cache near by answers; run a caching resolver (or ask by address), and check the search domains (ndots) "
        "that are tried first",
    ),
    "tcp_connect": _Rule(
        *(0.010, 2, 0),
        "more than one round trip: lost packets, a full accept queue, or an address tried first that is dead",
    ),
    "proxy_connect": _Rule(
        *(0.020, 2, 0),
        "the proxy is slow to reach the server; go past it, or keep connections",
    ),
    "tls_handshake": _Rule(
        *(0.015, 2, 0),
        "no session is reused: keep connections, allow TLS 1.3, use an ECDSA certificate and a short chain",
    ),
    "request_send": _Rule(
        *(0.010, 1, 0),
        "the request is large for the line, or the receiver's buffer is full",
    ),
    "http_frontend": _Rule(
        *(0.020, 0, 0),
        "the HTTP side of the server is busy, or a proxy buffers: more API server processes, less on their event loops",
    ),
    "pre_engine_wait": _Rule(
        *(0.020, 0, 0.5),
        "requests wait for the engine between its steps, or for the tokenizer: smaller prefill chunks "
        "(--max-num-batched-tokens), more API servers",
    ),
    "queue": _Rule(
        *(0.050, 0, 0.5),
        "all slots are taken: more replicas, or a higher --max-num-seqs while the KV cache has room",
    ),
    "prefill": _Rule(
        *(0.800, 0, 0),
        "the prompt itself takes that long: shorter prompts, prefix caching, or a faster card",
    ),
}


def _expected(rule: _Rule, rtt: float, summary: Summary) -> float:
    prefill = summary.layer("prefill")
    most = 0.0 if prefill is None else rule.of_prefill * prefill.spread.median
    return max(rule.seconds + rule.round_trips * rtt, most)


def verdict(summary: Summary, rtt: float | None, baseline: Mapping[str, float] | None = None) -> Verdict:
    """``rtt`` is the connection's round trip, taken as 0 where it is not known; ``baseline`` medians by layer."""
    shares = [layer for layer in summary.layers if layer.name not in AFTER_FIRST_TOKEN and layer.share is not None]
    leading = tuple(sorted(shares, key=lambda layer: -layer.spread.median))
    known = _RULES.keys() | {"network"} if baseline is None else baseline.keys()
    unjudged = tuple(
        layer.name for layer in leading if layer.name not in known and (layer.share or 0.0) >= MATTERS_SHARE
    )
    findings = []
    for layer in summary.layers:
        rule = _RULES.get(layer.name)
        advice = rule.advice if rule is not None else ""
        median, share = layer.spread.median, layer.share
        if baseline is not None:
            before = baseline.get(layer.name)
            if before is not None and median > WORSE_FACTOR * before and median > before + WORSE_SECONDS:
                findings.append(Finding(layer.name, median, before, share, True, advice))
        elif rule is not None and share is not None and share >= MATTERS_SHARE:
            expected = _expected(rule, rtt or 0.0, summary)
            if median > expected:
                findings.append(Finding(layer.name, median, expected, share, False, advice))
    return Verdict(
        leading, tuple(sorted(findings, key=lambda finding: -(finding.seconds - finding.expected))), unjudged
    )


def round_trip(exchanges: tuple[Exchange, ...]) -> float | None:
    """The smallest round trip that any of the connections showed."""
    return min((each.min_rtt for each in exchanges if each.min_rtt is not None), default=None)
