"""Each of the twelve from a provoked condition to a page and back to resolved, through the agent itself.

    python -m tests.e2e.alerts_demo_live [--without NAME ...] [--logs DIR]

A real agent scrapes simulated vLLMs every second, reads text files and replayed cards; a real Prometheus scrapes the
agent every second and evaluates the generated rules with every duration a twentieth (thresholds as committed, but a
source is stale after 3 s); a real Alertmanager has the generated routes without their waits. What goes wrong goes wrong
at the sources: see :mod:`tests.e2e.demo_acts`. Prints one JSON object; exits 1 when anything did not come.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.alertmanager_server import Alertmanager, Webhook
from tests.e2e.alerts_live import ACCELERATION, accelerated, quick_routes
from tests.e2e.demo_acts import Stage
from tests.e2e.prometheus_server import Prometheus
from tests.e2e.watched import Agent, parser_of, played, say
from ufwatch.render.rules import rule_files
from ufwatch.rule_forms import RuleOptions
from ufwatch.thresholds import Thresholds

WARM_SECONDS = 45.0
"""More than two twentieths of an hour's quarter: the rates of before that the alerts compare with."""
END_SECONDS = 600.0
CARD = "card"


class Key(NamedTuple):
    """An alert of a target, and the value of one of its labels that tells which; a card's and the agent's have none."""

    alert: str
    target: str
    which: str = ""

    @property
    def condition(self) -> str:
        return self.target or CARD


WANTED = (
    Key("UfwatchTokenJitterHigh", "jitter"),
    Key("UfwatchPageTableMissHigh", "miss", "token"),
    Key("UfwatchKvThrashing", "thrash"),
    Key("UfwatchPinnedAllocFailing", "pinned"),
    Key("UfwatchGraphCompileSlow", "compile"),
    Key("UfwatchEngineStalled", "stalled"),
    Key("UfwatchEngineStalled", "slack"),
    Key("UfwatchPrefillDecodeImbalance", "prefill"),
    Key("UfwatchSloBurnFast", "fast", "ttft"),
    Key("UfwatchSloBurnFast", "outage", "availability"),
    Key("UfwatchSloBurnSlow", "slow", "ttft"),
    Key("UfwatchTelemetryStale", "silent", "source_stale"),
    Key("UfwatchMemoryBreakerOpen", "breaker", "device"),
    Key("UfwatchMemoryBreakerOpen", "full", "kv"),
    Key("UfwatchGpuHardwareAgeing", "", "row_remap"),
)
NO_AGENT = Key("UfwatchTelemetryStale", "", "agent_down")
"""Last and alone, because nothing else can be seen meanwhile."""
SILENCED = (
    Key("UfwatchTelemetryStale", "outage", "target_down"),
    Key("UfwatchSloBurnSlow", "fast", "ttft"),
    Key("UfwatchKvThrashing", "full"),
)
"""Held back by the alert of the same target above; that one is healed when this has been seen."""


@dataclass
class Course:
    """When each was provoked, paged, healed and resolved, in Unix time, and what else was notified."""

    provoked: dict[Key, float] = field(default_factory=dict)
    paged: dict[Key, float] = field(default_factory=dict)
    healed: dict[Key, float] = field(default_factory=dict)
    resolved: dict[Key, float] = field(default_factory=dict)
    summaries: dict[Key, str] = field(default_factory=dict)
    silenced: set[Key] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    def read(self, hook: Webhook, wanted: Collection[Key]) -> None:
        """Takes in all that the webhook has got."""
        for when, _, body in list(hook.got):
            for alert in body["alerts"]:
                key = _key(alert["labels"])
                if key not in wanted:
                    if alert["status"] == "firing":
                        self.others.add(":".join(key))
                elif alert["status"] == "firing":
                    self.paged.setdefault(key, when)
                    self.summaries.setdefault(key, alert["annotations"]["summary"])
                elif when > self.healed.get(key, when):
                    self.resolved.setdefault(key, when)


def _key(labels: dict[str, str]) -> Key:
    which = next((labels[name] for name in ("slo", "reason", "kind", "unit") if name in labels), "")
    return Key(labels["alertname"], labels.get("target", ""), which)


def run(work: Path, without: set[str]) -> dict[str, Any]:
    """Everything started, provoked, healed and stopped."""
    files = rule_files(RuleOptions(interval_seconds=1.0, thresholds=Thresholds(stale=3)))
    for name in ("recording.yml", "alerts.yml"):
        (work / name).write_text(accelerated(files[name], ACCELERATION), encoding="utf-8")
    rules = [work / "recording.yml", work / "alerts.yml"]
    wanted = tuple(key for key in WANTED if key.condition not in without)
    with Stage(work) as stage, Webhook() as hook:
        agent = Agent(work, stage.config(), stage.cards)
        routes = quick_routes(files["alertmanager.yml"], hook.url, quick=True)
        try:
            agent.start()
            with (
                Alertmanager(work, routes) as alertmanager,
                Prometheus(work, agent.address, rules, alertmanager=alertmanager.url, seconds=1.0),
            ):
                time.sleep(WARM_SECONDS)
                early = Course()
                early.read(hook, ())
                course, told = Course(), _Told(hook, alertmanager, (*wanted, NO_AGENT))
                _drive(course, told, wanted, stage.provoke, stage.heal)
                _drive(course, told, (NO_AGENT,), lambda _: agent.stop(), lambda _: agent.start())
        finally:
            agent.stop()
    return _result(course, told.wanted, early)


class _Told(NamedTuple):
    """Where pages are read from, and every one that is to come."""

    hook: Webhook
    alertmanager: Alertmanager
    wanted: tuple[Key, ...]


def _drive(
    course: Course,
    told: _Told,
    keys: tuple[Key, ...],
    provoke: Callable[[str], None],
    heal: Callable[[str], None],
) -> None:
    """Provokes these all at once, and heals each as soon as it is paged and what it silences has been silent."""
    began = time.time()
    course.provoked |= dict.fromkeys(keys, began)
    for condition in {key.condition for key in keys}:
        provoke(condition)
    say("provoked", began)
    while not set(keys) <= course.resolved.keys() and time.time() < began + END_SECONDS:
        time.sleep(0.2)
        course.read(told.hook, told.wanted)
        held_back = {_key(labels) for labels, state in told.alertmanager.states() if state == "suppressed"}
        course.silenced |= held_back & set(SILENCED)
        for key in course.paged.keys() - course.healed.keys():
            behind = {silent for silent in SILENCED if silent.target == key.target}
            if behind <= course.silenced:
                course.healed[key] = time.time()
                heal(key.condition)
                say(f"paged and healed: {' '.join(key)}", began)


def _result(course: Course, wanted: tuple[Key, ...], early: Course) -> dict[str, Any]:
    silenced = {key for key in SILENCED if key.target in {one.target for one in wanted}}
    missing = [":".join(key) for key in wanted if key not in course.resolved]
    return {
        "passed": not missing and not early.others and silenced <= course.silenced,
        "durations_divided_by": ACCELERATION,
        "pages_before_anything_was_provoked": sorted(early.others),
        "alerts": {
            ":".join(key): {
                "page_after_seconds": _after(course.paged.get(key), course.provoked.get(key)),
                "resolved_after_seconds": _after(course.resolved.get(key), course.healed.get(key)),
                "summary": course.summaries.get(key),
            }
            for key in wanted
        },
        "silenced": {":".join(key): key in course.silenced for key in sorted(silenced)},
        "also_notified": sorted(course.others),
        "missing": missing,
    }


def _after(when: float | None, since: float | None) -> float | None:
    return None if when is None or since is None else round(when - since, 1)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--without", action="append", default=[], choices=sorted({key.condition for key in WANTED}))
    args = parser.parse_args()
    return played("demo-live", args.logs, lambda work: run(work, set(args.without)))


if __name__ == "__main__":
    sys.exit(main())
