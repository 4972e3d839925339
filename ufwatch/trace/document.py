"""What ``ufwatch trace --json`` prints, and what it takes as a baseline. Seconds everywhere, shares 0–1. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from ufwatch.errors import ConfigError
from ufwatch.trace.account import network
from ufwatch.trace.model import Exchange, SplitSource
from ufwatch.trace.summary import Spread, Summary
from ufwatch.trace.verdict import Verdict

VERSION = 1


def document(
    exchanges: Sequence[Exchange], cold: Summary | None, warm: Summary | None, found: Verdict
) -> dict[str, Any]:
    """The whole run as JSON. No prompt and no answer is in it."""
    return {
        "version": VERSION,
        "requests": len(exchanges),
        "failed": sum(each.failure is not None for each in exchanges),
        "cold": None if cold is None else _summary(cold),
        "warm": None if warm is None else _summary(warm),
        "findings": [finding._asdict() for finding in found.findings],
        "exchanges": [_exchange(each) for each in exchanges],
    }


def baseline_of(content: Any, source: str) -> Mapping[str, Mapping[str, float]]:
    """The medians by layer of an earlier run, for ``cold`` and ``warm``. Raises ConfigError where it is none."""
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise ConfigError(source, ["not what ufwatch trace --json prints; make one with --json > FILE"])
    found: dict[str, dict[str, float]] = {}
    for kind in ("cold", "warm"):
        of_kind = content.get(kind) or {}
        try:
            medians = {str(layer["layer"]): float(layer["median"]) for layer in of_kind.get("layers", [])}
        except (AttributeError, TypeError, KeyError, ValueError, OverflowError):
            raise ConfigError(source, [f"{kind}: layers without a name and a median; make one with --json"]) from None
        if not all(isfinite(value) for value in medians.values()):
            raise ConfigError(source, [f"{kind}: a median is no number"])
        found[kind] = medians
    return found


def _spread(of: Spread | None) -> dict[str, Any] | None:
    return None if of is None else of._asdict()


def _summary(of: Summary) -> dict[str, Any]:
    return {
        "requests": of.requests,
        "failed": of.failed,
        "first_token": _spread(of.first_token),
        "ttft": _spread(of.ttft),
        "tpot": _spread(of.tpot),
        "total": _spread(of.total),
        "layers": [
            {"layer": each.name, **each.spread._asdict(), "share": each.share, "estimate": each.estimate}
            for each in of.layers
        ],
    }


def _exchange(of: Exchange) -> dict[str, Any]:
    account = network(of)
    failure = of.failure
    return {
        "trace_id": of.trace_id,
        "request_id": of.request_id,
        "started_unix_ns": of.started_unix_ns,
        "url": of.url,
        "model": of.model,
        "status": of.status,
        "reused": of.reused,
        "peer_address": of.peer_address,
        "tls_version": of.tls_version,
        "total": of.total,
        "ttft": of.ttft,
        "tpot": of.tpot,
        "output_tokens": of.output_tokens,
        "phases": {span.phase.value: {"start": span.start, "end": span.end} for span in of.spans},
        "parts": {part.name: part.seconds for part in account.parts},
        "unaccounted": account.unaccounted,
        "min_rtt": of.min_rtt,
        "loop_lag": of.loop_lag,
        "clock_skew_suspected": account.clock_skew_suspected,
        "server": {
            "source": of.server.source.value,
            "exact": of.server.exact and of.server.source is not SplitSource.NONE,
            "queue": of.server.queue,
            "prefill": of.server.prefill,
            "decode": of.server.decode,
            "ttft": of.server.ttft,
            "pre_engine_wait": of.server.pre_engine_wait,
            "why": of.server.why or None,
        },
        "failure": None
        if failure is None
        else {
            "phase": None if failure.phase is None else failure.phase.value,
            "error_type": failure.error_type,
            "detail": failure.detail,
        },
    }
