"""Reads ``probes:`` and ``otlp:``: requests of our own, and where their traces go."""

from __future__ import annotations

from collections.abc import Sequence

from ufwatch.config import ProbeConfig
from ufwatch.configschema import Block, choice, label, seconds, shown, text, truth, whole
from ufwatch.errors import ConfigError
from ufwatch.trace.endpoint import endpoint_from

SHORTEST_SECONDS = 5.0
"""A request of ours takes the place of one of somebody else's."""
_DEFAULT = ProbeConfig(target="")
_DAY = 86_400.0
_MOST_TOKENS = 1024
_LONGEST_SECONDS = 600.0


def probes(top: Block, targets: Sequence[str]) -> tuple[ProbeConfig, ...]:
    """The probes of the document ``top``; ``targets`` are the names of its targets."""
    found: dict[str, tuple[str, ProbeConfig]] = {}
    for path, item in top.items("probes"):
        block = Block(item, path, top.report, nullable=False)
        target = block.required("target", label, "write target: and the name of a target")
        probe = ProbeConfig(
            target=target or "",
            interval_seconds=block.get("interval", seconds(SHORTEST_SECONDS, _DAY), _DEFAULT.interval_seconds),
            operation=block.get("operation", choice("chat", "completions"), _DEFAULT.operation),
            prompt=block.get("prompt", text, None),
            max_tokens=block.get("max_tokens", whole(1, _MOST_TOKENS), _DEFAULT.max_tokens),
            timeout_seconds=block.get("timeout", seconds(1, _LONGEST_SECONDS), _DEFAULT.timeout_seconds),
            fresh_connection=block.get("fresh_connection", _freshness, None),
        )
        block.close()
        if target is None:
            continue
        if target not in targets:
            known = f"known are {', '.join(targets)}" if targets else "there are none"
            block.add("target", f"{shown(target)} is the name of no target; {known}")
        elif target in found:
            # Their series would be the same: no label tells two probes of one target apart.
            block.add("target", f"{shown(target)} is probed by {found[target][0]} already; keep one of them")
        found.setdefault(target, (path, probe))
    return tuple(probe for _, probe in found.values())


def otlp(block: Block) -> tuple[str | None, bool]:
    """Where traces go, as it is written, checked as far as it can be without the environment; and whether servers may
    send theirs here."""
    if not block.given:
        return None, False
    found = block.get("endpoint", _endpoint, None), block.get("receive", truth, default=False)
    block.close()
    return found


def _freshness(value: object) -> bool | None:
    if isinstance(value, str) and value.lower() == "alternate":
        return None
    try:
        return truth(value)
    except ValueError:
        raise ValueError(f"{shown(value)} is not known; choose from true, false, alternate") from None


def _endpoint(value: object) -> str:
    found = text(value)
    try:
        endpoint_from({}, file=found)
    except ConfigError as error:
        raise ValueError(error.mistakes[0]) from None
    return found
