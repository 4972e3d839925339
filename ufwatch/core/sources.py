"""The agent's account of its sources: up, proof of life, failures by reason. Its series never vanish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ufwatch.model import Health, Labels, Reason, Sample

FAILURES = (Reason.CONNECT, Reason.TIMEOUT, Reason.STATUS, Reason.TLS, Reason.TRUNCATED, Reason.CONTENT)
"""The reasons a failed scrape is counted under; every other is ``other``."""


@dataclass(frozen=True, slots=True)
class Life:
    """One source of one target: its health now, and when it last proved to be alive (monotonic seconds).

    ``since`` is when the source was first looked at, so that one that never answered has an age too.
    """

    since: float
    health: Health
    proof: float | None = None

    def seen(self, health: Health, at_seconds: float) -> Life:
        return Life(self.since, health, at_seconds if health.up else self.proof)

    def age(self, now: float) -> float:
        return max(0.0, now - (self.proof if self.proof is not None else self.since))


@dataclass(frozen=True, slots=True)
class ScrapeCounts:
    """What scraping one target has come to since the agent started."""

    scrapes: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    parse_errors: int = 0
    last_seconds: float = 0.0
    last_bytes: int = 0

    def add(self, health: Health, *, seconds: float, wire_bytes: int, faults: int) -> ScrapeCounts:
        failures = self.failures
        if health.reason is not None:
            name = failure_class(health.reason)
            failures = {**failures, name: failures.get(name, 0) + 1}
        return ScrapeCounts(self.scrapes + 1, failures, self.parse_errors + faults, seconds, wire_bytes)


def failure_class(reason: Reason) -> str:
    """The ``reason`` label of a failed scrape: six and ``other``."""
    return reason.value if reason in FAILURES else "other"


def life_samples(target: str, lives: Mapping[str, Life], now: float) -> list[Sample]:
    """``source_up`` and ``source_age_seconds`` of one target's sources (target empty: the agent's own, like NVML)."""
    samples = []
    for source, life in lives.items():
        labels = _life_labels(source, target)
        samples.append(Sample("source_up", labels, float(life.health.up)))
        samples.append(Sample("source_age_seconds", labels, life.age(now)))
    return samples


@lru_cache(maxsize=16384)
def _life_labels(source: str, target: str) -> Labels:
    return (("source", source), ("target", target))


def scrape_samples(target: str, counts: ScrapeCounts) -> list[Sample]:
    """What scraping this target costs and how often it fails, every reason from 0."""
    base, by_reason = _scrape_labels(target)
    samples = [
        Sample("scrape_seconds", base, counts.last_seconds),
        Sample("scrape_bytes", base, float(counts.last_bytes)),
        Sample("scrapes_total", base, float(counts.scrapes)),
        Sample("parse_errors_total", base, float(counts.parse_errors)),
    ]
    for name, labels in by_reason:
        samples.append(Sample("scrape_failures_total", labels, float(counts.failures.get(name, 0))))
    return samples


@lru_cache(maxsize=4096)
def _scrape_labels(target: str) -> tuple[Labels, tuple[tuple[str, Labels], ...]]:
    """The target's own labels, and with each class of failures."""
    base = (("target", target),)
    classes = (*(reason.value for reason in FAILURES), "other")
    return base, tuple((name, (*base, ("reason", name))) for name in classes)
