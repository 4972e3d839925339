"""The words everything else is written in: qualities, reasons, states, health and readings.

Floor 0: pure values. Ratios are 0–1, times are seconds, sizes are bytes; nothing downstream converts units.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    NOT_ATTRIBUTABLE = "not_attributable"
    """Several share what the value would speak of."""
    MIG = "mig"
    LOST = "lost"
    DRIVER = "driver"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    STATUS = "status"
    RESOURCES = "resources"
    CONTENT = "content"
    """An answer that is no exposition: wrong type, wrong encoding, too large, redirected elsewhere."""


REASONS: Mapping[Reason, str] = {
    Reason.WARMING_UP: "the window is not full yet, a second sample is to come, or too little is known to compare with",
    Reason.IDLE: "nothing happened that the signal could be made from",
    Reason.NO_SOURCE: "nothing that was read reports it",
    Reason.NOT_SUPPORTED: "this card or driver does not have it",
    Reason.PERMISSION: "reading it is not allowed",
    Reason.STALLED: "the engine has work and nothing has moved for 30 s",
    Reason.STALE: "the engine was not on the last page",
    Reason.STARTING: "the server has not answered yet since the agent began",
    Reason.ASLEEP: "the engine is in sleep mode",
    Reason.TOO_FEW_TOKENS: "fewer than 100 token intervals in the window",
    Reason.ONE_BUCKET: "all intervals lie in one bucket: only the upper bound is known",
    Reason.EDGES_ONLY: "only the two bucket edges around the quantile are known",
    Reason.FIRST_BUCKET: "the quantile lies under the lowest edge",
    Reason.OVERFLOW_BUCKET: "the quantile lies over the highest edge",
    Reason.RETRIES_COUNTED: "the server counts look-ups again for waiting requests",
    Reason.BUCKETS_CHANGED: "the bucket edges changed within the window",
    Reason.COUNTER_RESET: "the server's process is new; counted from its second answer on",
    Reason.INCONSISTENT: "the page comes from several processes in turn, or went back",
    Reason.TRUNCATED: "the body was cut",
    Reason.OUT_OF_RANGE: "the value is impossible",
    Reason.STATS_DISABLED: "the server runs with --disable-log-stats",
    Reason.NOT_AN_ENGINE: "the page has no family of an engine",
    Reason.NOTHING_ATTEMPTED: "nothing was attempted, so there is no rate",
    Reason.NOT_MAPPED: "no card is assigned to this target",
    Reason.NOT_ATTRIBUTABLE: "several servers, engines or kinds of card share it, so it tells of none",
    Reason.MIG: "the card is cut into instances that do not report it",
    Reason.LOST: "the card has fallen off the bus",
    Reason.DRIVER: "the driver does not answer",
    Reason.CONNECT: "the connection was refused or closed, or the name is unknown",
    Reason.TLS: "the TLS handshake failed",
    Reason.TIMEOUT: "no answer within the deadline",
    Reason.STATUS: "an answer other than 200",
    Reason.RESOURCES: "the agent itself ran out of file descriptors or buffers",
    Reason.CONTENT: "an answer that is no metrics page",
}
"""What each reason means, for people."""


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


class Exemplar(NamedTuple):
    """One observation that a histogram's bucket holds, and the trace that shows it."""

    trace_id: str
    value: float
    unix_seconds: float | None = None


Exemplars = Mapping[tuple[str, Labels], Exemplar]
"""Exemplars by the series (metric without prefix, labels) of their buckets."""


class Samples:
    """Samples as two lists, what does not change from scrape to scrape apart from what does.

    A target has some seventy of them; kept apart, the series are compared as a whole and the numbers moved as a whole.
    """

    __slots__ = ("series", "values")

    def __init__(self, series: Iterable[tuple[str, Labels]] = (), values: Iterable[float] = ()) -> None:
        self.series = list(series)
        self.values = list(values)

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Samples:
        """The same samples; these themselves where they are ``Samples`` already."""
        if isinstance(samples, cls):
            return samples
        made = cls()
        for metric, labels, value in samples:
            made.add(metric, labels, value)
        return made

    def add(self, metric: str, labels: Labels, value: float) -> None:
        """One more at the end."""
        self.series.append((metric, labels))
        self.values.append(value)

    def extend(self, series: Sequence[tuple[str, Labels]], values: Iterable[float]) -> None:
        """More at the end: a value for each of the series."""
        self.series += series
        self.values += values

    def __iadd__(self, other: Iterable[Sample]) -> Samples:
        more = Samples.of(other)
        self.extend(more.series, more.values)
        return self

    def __iter__(self) -> Iterator[Sample]:
        for (metric, labels), value in zip(self.series, self.values, strict=True):
            yield Sample(metric, labels, value)

    def __len__(self) -> int:
        return len(self.values)
