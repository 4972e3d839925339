"""The form of recording rules and alerts, and the words their expressions are made of. Floor 1: pure.

:mod:`ufwatch.recordings` and :mod:`ufwatch.alerts_catalogue` hold the rules, :mod:`ufwatch.render.rules` writes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ufwatch.config import DEFAULT_OBJECTIVES
from ufwatch.formula import Formula, promql
from ufwatch.spec import PREFIX
from ufwatch.thresholds import Thresholds

DEFAULT_INTERVAL_SECONDS = 15.0
MAX_INTERVAL_SECONDS = 60.0
"""Above it a rate over a few minutes holds too few samples to survive a missed one."""

AGENT = ("job", "instance")
ON_TARGET = (*AGENT, "target")
TARGET = (*ON_TARGET, "model_name")
ENGINE = (*TARGET, "engine")
SOURCE = (*ENGINE, "source")
CARD = (*AGENT, "gpu", "uuid", "mig")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions:
    """What the generated rules depend on. ``interval_seconds`` is Prometheus' scrape interval of the agent."""

    job: str = "ufwatch"
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    runbook_url: str = "http://localhost/ufwatch/runbooks"
    grafana_url: str = "http://localhost:3000"
    thresholds: Thresholds = field(default_factory=Thresholds)
    slos: tuple[tuple[str, str], ...] = tuple((slo.id, slo.metric) for slo in DEFAULT_OBJECTIVES)
    """Name and metric of every SLO of the agents."""

    def slo_names(self, metric: str) -> tuple[str, ...]:
        """The SLO named after its metric, else every one of the metric; none judges it where there is no such SLO."""
        names = tuple(name for name, of in self.slos if of == metric)
        return (metric,) if metric in names or not names else names

    def metric(self, name: str, *matchers: str) -> str:
        """A selector of one of our families (no prefix in ``name``), narrowed to the job."""
        return f"{PREFIX}{name}{{{', '.join((self.where, *matchers))}}}"

    def over(self, function: str, name: str, window: str, *matchers: str, offset: str = "") -> str:
        """A function of a range of one of our families, such as ``rate(ufwatch_…{…}[5m])``."""
        return f"{function}({self.metric(name, *matchers)}[{window}]{offset and f' offset {offset}'})"

    @property
    def where(self) -> str:
        """The inside of the matcher that every selector carries."""
        return f"job={quoted(self.job)}"

    @property
    def gauge_window(self) -> str:
        """Two and a half scrapes: at least two samples, so that a missed one leaves a gauge standing."""
        return duration(2.5 * self.interval_seconds)

    @property
    def jitter_window_seconds(self) -> float:
        """A minute, or two and a half scrapes where those are longer."""
        return max(60.0, 2.5 * self.interval_seconds)

    def at_least(self, seconds: float) -> str:
        """A window of a gauge that must hold for ``seconds``, and never under two and a half scrapes."""
        return duration(max(seconds, 2.5 * self.interval_seconds))

    @property
    def stale_seconds(self) -> float:
        """How long a source may be silent: the threshold, or three intervals if that is longer."""
        return max(self.thresholds.stale, 3 * self.interval_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One recording rule; its name is ``level:metric:operations``."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingGroup:
    """Rules that are evaluated in order, all at one moment. ``interval`` None is Prometheus' own."""

    name: str
    rules: tuple[Recording, ...]
    interval: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One of the twelve. ``labels`` are those its series have besides the job, in the order of the dashboard's query.

    ``optional`` are those only some of its series have. Texts are Prometheus templates; ``$value`` is the expression's.
    ``hold`` and ``keep`` are ``for`` and ``keep_firing_for`` in seconds.
    """

    name: str
    severity: str
    expression: str
    hold: float
    keep: float
    board: str
    labels: tuple[str, ...]
    optional: tuple[str, ...] = ()
    summary: str
    description: str
    when: str
    """When it fires, in words, for lists."""


def duration(seconds: float) -> str:
    """Seconds as Prometheus writes them, in the largest whole unit: ``300`` is ``5m``, ``37.5`` is ``38s``."""
    whole = math.ceil(seconds - 1e-9)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size and whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def quoted(text: str) -> str:
    """``text`` as a PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def number(value: float) -> str:
    """A float as PromQL reads it, without a tail of rounding: ``0.06``, ``14.4``."""
    return f"{value:.12g}"


def by(labels: tuple[str, ...]) -> str:
    return ", ".join(labels)


def summed(labels: tuple[str, ...], inner: str) -> str:
    return f"sum by ({by(labels)}) ({inner})"


def highest(labels: tuple[str, ...], inner: str) -> str:
    return f"max by ({by(labels)}) ({inner})"


def both(labels: tuple[str, ...], *parts: str) -> str:
    """All of the parts hold, matched on ``labels``; the value is the first one's."""
    return f"\nand on ({by(labels)})\n".join(f"({part})" for part in parts)


def either(*parts: str) -> str:
    return "\nor\n".join(f"({part})" for part in parts)


def of_signal(formula: Formula, options: RuleOptions, window: str, labels: tuple[str, ...], *matchers: str) -> str:
    """A signal's formula from its counters, kept only where it is a number: NaN is not >= anything."""
    where = ", ".join((options.where, *matchers))
    return f"({promql(formula, window=window, by=labels, where=where)}) >= 0"
