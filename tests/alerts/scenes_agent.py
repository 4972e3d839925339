"""Scenes of alerts 8–12: budgets, the agent's own sight, memory and cards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.alerts.scenes_serving import engine_state
from tests.alerts.series import AGENT, CARD, TARGET, UP, Page, Sample, series
from tests.alerts.stage import LATE, Scene, Stage


def burn(step: float) -> Iterator[Scene]:
    fast, slow = "UfwatchSloBurnFast", "UfwatchSloBurnSlow"
    s = Stage(step, 20)
    yield Scene(
        "four in five bad", s.page() | s.burning("ttft", 0.95, 0.8), step, fast, 0, 60 + step, (slow,), miss_at=300
    )
    yield Scene("one in five bad", s.page() | s.burning("ttft", 0.95, 0.2), step, slow, 285, 400 + step, miss_at=240)
    yield Scene("one in fifty bad", s.page() | s.burning("ttft", 0.95, 0.02), step)
    few = s.page() | s.burning("ttft", 0.95, 0.0, 3 / 1200)
    few[series("slo_bad_events_total", TARGET, slo="ttft", bound="low")] = s.count(
        lambda t: 1 / step if t in (240, 300) else 0
    )
    yield Scene("two of three bad", few, step)
    outage = s.burning("availability", 0.999, 0.0, 1.0)
    outage[series("slo_bad_events_total", TARGET, slo="availability", bound="low")] = s.count(lambda t: float(t > 300))
    yield Scene("an outage without users", s.page() | outage, step, fast, 300, 360 + step, (slow,))
    maybe = s.page() | s.burning("ttft", 0.95, 0.01)
    yield Scene("bad only by the high bound", maybe, step)


def days() -> Iterator[Scene]:
    """What takes days, at coarse steps: they hold for every scrape interval."""
    s = Stage(300, 60 * 50)
    trickle = s.burning("e2e", 0.95, 0.0, 12 / 172800)
    hits = {round(n * 48) for n in range(1, 13)}
    bad = s.count(lambda t: (1 / 300) if round(t / 300) in hits else 0)
    trickle[series("slo_bad_events_total", TARGET, slo="e2e", bound="low")] = bad
    trickle[series("slo_events_total", TARGET, slo="e2e")] = s.count(
        lambda t: (1 / 300) if round(t / 300) % 48 in (0, 24) else 0
    )
    yield Scene("a dozen bad events in two days", s.page() | trickle, 300, "UfwatchSloBurnSlow", 9 * 14400, 49 * 3600)


def _sources(s: Stage, source: str, age: Callable[[float], float], target: str = "chat") -> Page:
    labels = AGENT
    ages: list[Sample] = [age(n * s.step) for n in range(s.samples)]
    return {series("source_age_seconds", labels, source=source, **({"target": target} if target else {})): ages}


def stale(step: float) -> Iterator[Scene]:
    alert, limit = "UfwatchTelemetryStale", max(60.0, 3 * step)
    s = Stage(step, 14)
    dies = lambda t: max(2.0, t - 120)  # noqa: E731
    first, last = 120 + limit + 165, 120 + limit + 195 + step
    served = engine_state(s, "down", lambda t: t > 120)
    yield Scene(
        "a target that served is gone",
        s.page() | _sources(s, "vllm", dies) | served,
        step,
        alert,
        first,
        last,
        miss_at=220 + limit,
    )
    yield Scene(
        "a text file is old", s.page() | _sources(s, "textfile", dies), step, alert, first, last, miss_at=220 + limit
    )
    yield Scene(
        "the driver is silent", s.page() | _sources(s, "nvml", dies, ""), step, alert, first, last, miss_at=220 + limit
    )
    start = engine_state(s, "starting", lambda t: t < 480)
    ready = _sources(s, "vllm", lambda t: t if t < 480 else 2.0)
    yield Scene("a start of eight minutes", s.page() | start | ready, step)
    yield Scene("a source with nothing to say", s.page() | _sources(s, "kv_events", lambda _: 2.0), step)
    dead: Page = {UP: [float(n * step < 120) for n in range(s.samples)]}
    yield Scene("the agent is down", dead, step, alert, 120 + 165, 120 + 195 + 3.5 * step)
    back: Page = {UP: [float(not 120 <= n * step < 240) for n in range(s.samples)]}
    yield Scene("the agent was away for two minutes", back, step)
    yield Scene("no agent at all", {}, step, alert, 165, 210)


def _trips(
    s: Stage, kind: str, opened: Callable[[float], bool], trips: Callable[[float], bool] = lambda _: False
) -> Page:
    return {
        series("memory_breaker_open", TARGET, kind=kind): s.switched(opened),
        series("memory_breaker_trips_total", TARGET, kind=kind): s.count(lambda t: (1 / s.step) if trips(t) else 0),
    }


def breaker(step: float) -> Iterator[Scene]:
    alert = "UfwatchMemoryBreakerOpen"
    s = Stage(step, 14)
    stays = lambda t: t >= 180  # noqa: E731
    last = 300 + 2 * step
    yield Scene("a card stays full", s.page() | _trips(s, "device", stays), step, alert, 180 + step, last, miss_at=240)
    yield Scene("a card full for a moment", s.page() | _trips(s, "device", lambda t: t in (180, 180 + step)), step)
    again = lambda t: t in (180, 240, 300)  # noqa: E731
    yield Scene(
        "a card full again and again", s.page() | _trips(s, "device", lambda _: False, again), step, alert, 240, 330
    )
    redone = {series("preemptions_total"): s.count(0.25)}
    cache = _trips(s, "kv", stays)
    yield Scene("a full cache and preemptions", s.page() | cache | redone, step, alert, 180 + step, last, miss_at=240)
    late = s.burning("ttft", 0.95, 0.1, 1.0)
    yield Scene(
        "a full cache and late tokens",
        s.page() | cache | late,
        step,
        alert,
        180 + step,
        last,
        miss_at=240,
        companions=LATE,
    )
    yield Scene("a batch server, full all day", s.page() | _trips(s, "kv", lambda _: True), step)


def ageing(step: float) -> Iterator[Scene]:
    alert = "UfwatchGpuHardwareAgeing"
    s = Stage(step, 80)
    drift: Page = {series("gpu_ageing_drift_ratio", CARD): [0.08 if n * step > 300 else 0.01 for n in range(s.samples)]}
    yield Scene("a card got slower", s.page() | drift, step, alert, 3600, 3600 + 420 + step, miss_at=2000)
    short: Page = {
        series("gpu_ageing_drift_ratio", CARD): [0.08 if 300 < n * step < 3300 else 0.01 for n in range(s.samples)]
    }
    yield Scene("slower for less than an hour", s.page() | short, step)
    young: Page = {
        series("gpu_ageing_drift_ratio", CARD): [None if n * step < 3000 else 0.08 for n in range(s.samples)]
    }
    yield Scene("a drift known only now", s.page() | young, step)
    s = Stage(step, 10)
    ecc = {series("gpu_ecc_errors_total", CARD, type="uncorrected"): s.count(lambda t: (1 / step) if t == 240 else 0)}
    yield Scene("an uncorrected memory error", s.page() | ecc, step, alert, 240, 315 + step, miss_at=300)
    fixed = {series("gpu_ecc_errors_total", CARD, type="corrected"): s.count(1.0)}
    yield Scene("corrected errors", s.page() | fixed, step)
    remap = {series("gpu_row_remap_pending", CARD): s.switched(lambda t: t >= 240)}
    yield Scene("a row waits to be remapped", s.page() | remap, step, alert, 285, 315 + 3.5 * step, miss_at=300)
    xid = {series("gpu_xid_errors_total", CARD, **{"class": "hardware_memory"}): s.count(0.125)}
    yield Scene("XID errors", s.page() | xid, step)
