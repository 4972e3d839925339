"""The words everything else is written in: qualities, reasons, states, health and readings.

Floor 0: pure values. Ratios are 0–1, times are seconds, sizes are bytes; nothing downstream converts units.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

Labels = tuple[tuple[str, str], ...]
"""Label pairs in the order in which they are written on the page."""


class Quality(StrEnum):
    """How far a value may be from the truth."""

    EXACT = "exact"
    BOUNDED = "bounded"
    """The truth lies between ``low`` and ``high``."""
    ESTIMATE = "estimate"
    PROXY = "proxy"
    """Another quantity that moves with the one asked for."""


class Reason(StrEnum):
    """Why a value is absent, or why it must be read with care. A closed set: it becomes a label."""

    WARMING_UP = "warming_up"
    IDLE = "idle"
    NO_SOURCE = "no_source"
    NOT_SUPPORTED = "not_supported"
    PERMISSION = "permission"
    STALLED = "stalled"
    STALE = "stale"
    STARTING = "starting"
    ASLEEP = "asleep"
    TARGET_DOWN = "target_down"
    TOO_FEW_TOKENS = "too_few_tokens"
    ONE_BUCKET = "one_bucket"
    EDGES_ONLY = "edges_only"
    """The quantile lies between two bucket edges, and nothing finer is known."""
    FIRST_BUCKET = "first_bucket"
    """The quantile lies under the lowest edge: only an upper bound is known."""
    OVERFLOW_BUCKET = "overflow_bucket"
    """The quantile lies over the highest edge: only a lower bound is known."""
    RETRIES_COUNTED = "retries_counted"
    BUCKETS_CHANGED = "buckets_changed"
    COUNTER_RESET = "counter_reset"
    INCONSISTENT = "inconsistent"
    TRUNCATED = "truncated"
    OUT_OF_RANGE = "out_of_range"
    STATS_DISABLED = "stats_disabled"
    NOT_AN_ENGINE = "not_an_engine"
    NOTHING_ATTEMPTED = "nothing_attempted"
    NOT_MAPPED = "not_mapped"
    MIG = "mig"
    LOST = "lost"
    DRIVER = "driver"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    STATUS = "status"
    CONTENT = "content"
    """An answer that is no exposition: wrong type, wrong encoding, too large, redirected elsewhere."""


class EngineState(StrEnum):
    """What an engine is doing; ``once`` shows the worst, in this order from best to worst."""

    SERVING = "serving"
    IDLE = "idle"
    ASLEEP = "asleep"
    STARTING = "starting"
    STALLED = "stalled"
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a source answered, kept apart from its data: a failed read carries no values."""

    up: bool
    reason: Reason | None = None
    detail: str = ""
    """For the log and the doctor, never a label; no credentials."""

    def __post_init__(self) -> None:
        if self.up == (self.reason is not None):
            raise ValueError("a source is up without a reason, or down with one")


UP = Health(up=True)


class Reading(NamedTuple):
    """One signal at one label set. ``value`` is None exactly when it is not known; ``reason`` then says why.

    A named tuple and not a dataclass because some forty are made per engine and scrape, and it is four times cheaper.
    ``low`` and ``high`` bound the truth where ``quality`` is ``bounded``.
    """

    signal: str
    labels: Labels
    value: float | None
    low: float | None = None
    high: float | None = None
    source: str | None = None
    quality: Quality | None = None
    reason: Reason | None = None


class Sample(NamedTuple):
    """One line of our own page: metric name without prefix, labels in page order, value (never NaN)."""

    metric: str
    labels: Labels
    value: float
