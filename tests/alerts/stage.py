"""A scene: a page over time, and what must fire on it; and the stage it is built on, at one scrape interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.alerts.series import AGENT, ENGINE, TARGET, UP, Page, Sample, counter, gauge, series

HISTOGRAM = {"source": "histogram"}
LATE = ("UfwatchSloBurnSlow",)
"""Fires wherever an SLO burns for a while."""


@dataclass(frozen=True)
class Scene:
    """A page over time. ``fires`` is the alert that must fire: not at ``before``, but at ``by`` (seconds).

    An empty ``fires`` is silence throughout. ``companions`` may fire beside it.
    """

    name: str
    page: Page
    step: float
    fires: str = ""
    before: float = 0.0
    by: float = 0.0
    companions: tuple[str, ...] = ()
    miss_at: float | None = None
    """Seconds at which the missed scrape of the variant lies; None: there are no variants."""


class Stage:
    """Builds pages at one scrape interval."""

    def __init__(self, step: float, minutes: float) -> None:
        self.step = step
        self.samples = round(minutes * 60 / step) + 1

    def count(self, per_second: float | Callable[[float], float]) -> list[Sample]:
        return counter(self.samples, self.step, per_second)

    def level(self, value: float) -> list[Sample]:
        return gauge(self.samples, value)

    def switched(self, on: Callable[[float], bool]) -> list[Sample]:
        """A gauge of 0 and 1."""
        return [float(on(n * self.step)) for n in range(self.samples)]

    def page(self) -> Page:
        """Nothing but an agent that answers."""
        return {UP: self.level(1.0)}

    def burning(self, slo: str, objective: float, bad_share: float, per_second: float = 10.0) -> Page:
        return {
            series("slo_objective_ratio", AGENT, slo=slo): self.level(objective),
            series("slo_events_total", TARGET, slo=slo): self.count(per_second),
            series("slo_bad_events_total", TARGET, slo=slo, bound="low"): self.count(per_second * bad_share),
            series("slo_bad_events_total", TARGET, slo=slo, bound="high"): self.count(per_second * max(bad_share, 0.9)),
        }

    def tokens(self, deviation: Callable[[float], float], per_second: float = 50.0, engine: str = ENGINE) -> Page:
        """Token intervals with a mean of 31 ms and a deviation that depends on the time."""
        mean = 0.03125
        return {
            series("token_intervals_total", engine, unit="token", **HISTOGRAM): self.count(per_second),
            series("token_interval_seconds_total", engine, **HISTOGRAM): self.count(per_second * mean),
            **{
                series(f"token_interval_squared_{bound}_total", engine, **HISTOGRAM): self.count(
                    lambda t: per_second * (deviation(t) ** 2 + mean**2)
                )
                for bound in ("low", "high")
            },
        }
