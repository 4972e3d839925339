"""The agent's account of its sources: up, proof of life, failures by reason. Its series never vanish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from ufwatch.model import Health, Labels, Reason, Samples

FAILURES = (Reason.CONNECT, Reason.TIMEOUT, Reason.STATUS, Reason.TLS, Reason.TRUNCATED, Reason.CONTENT)
"""The reasons a failed scrape is counted under; every other is ``other``."""
_CLASSES = (*(reason.value for reason in FAILURES), "other")


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


def life_samples(target: str, lives: Mapping[str, Life], now: float) -> Samples:
    """``source_up`` and ``source_age_seconds`` of one target's sources (target empty: the agent's own, like NVML)."""
    samples = Samples()
    for source, life in lives.items():
        samples.extend(_life_series(source, target), (float(life.health.up), life.age(now)))
    return samples


@lru_cache(maxsize=16384)
def _life_series(source: str, target: str) -> tuple[tuple[str, Labels], ...]:
    labels: Labels = (("source", source), ("target", target))
    return ("source_up", labels), ("source_age_seconds", labels)


def scrape_samples(target: str, counts: ScrapeCounts) -> Samples:
    """What scraping this target costs and how often it fails, every reason from 0."""
    failures = [float(counts.failures.get(name, 0)) for name in _CLASSES]
    numbers = counts.last_seconds, float(counts.last_bytes), float(counts.scrapes), float(counts.parse_errors)
    return Samples(_scrape_series(target), (*numbers, *failures))


@lru_cache(maxsize=4096)
def _scrape_series(target: str) -> tuple[tuple[str, Labels], ...]:
    base: Labels = (("target", target),)
    names = "scrape_seconds", "scrape_bytes", "scrapes_total", "parse_errors_total"
    failed = (("scrape_failures_total", (*base, ("reason", name))) for name in _CLASSES)
    return (*((name, base) for name in names), *failed)
