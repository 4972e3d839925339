"""What every board shares: its variables, and the row that says whether the other rows can be believed.

Floor 2: pure.
"""

from __future__ import annotations

import json

from ufwatch.model import EngineState
from ufwatch.render.board import (
    BAD,
    GOOD,
    WARN,
    BoardSettings,
    Link,
    Panel,
    PanelKind,
    Query,
    Row,
    Variable,
    Word,
    over,
)
from ufwatch.render.board_query import ON_TARGET, by, labels_of, select, select_with_own
from ufwatch.spec import PREFIX

FIRING = 'ALERTS{component="ufwatch",alertstate="firing"}'
"""What the marks on every board are made of; it needs no alerting of Grafana's own."""
_CHOSEN_FIRING = FIRING[:-1] + ',job=~"$job|",instance=~"$instance|",target=~"$target|"}'
"""The same for what is chosen, with the alerts that speak of no target or agent at all."""
_STATES = {
    EngineState.SERVING: GOOD,
    EngineState.IDLE: "blue",
    EngineState.ASLEEP: "purple",
    EngineState.STARTING: "yellow",
    EngineState.STALLED: WARN,
    EngineState.DOWN: BAD,
}
_OWN = ("job", "instance", "target")
UP_OR_DOWN = (Word(1, "up", GOOD), Word(0, "down", BAD))
KEEP = "${__url_time_range}&${__all_variables}"
"""What a link takes along: the time range and everything that was chosen."""


def variables(settings: BoardSettings) -> tuple[Variable, ...]:
    """Job, instance, target and model, each narrowed by the ones before it."""
    only = "" if settings.job is None else f"{{job={json.dumps(settings.job, ensure_ascii=False)}}}"
    chosen = 'job=~"$job",instance=~"$instance"'
    return (
        Variable("job", "Job", f"{PREFIX}build_info{only}", "job"),
        Variable("instance", "Instance", f'{PREFIX}build_info{{job=~"$job"}}', "instance"),
        Variable("target", "Target", f"{PREFIX}source_up{{{chosen}}}", "target", ".*"),
        Variable("model", "Model", f'{PREFIX}engine_state{{{chosen},target=~"$target"}}', "model_name", ".*"),
    )


def following(settings: BoardSettings, board: str, title: str) -> Link:
    """A link to another board that keeps what was chosen."""
    return Link(title, f"{settings.to(board)}?{KEEP}")


def engine_states() -> str:
    """One number for each engine: the place of its state among ``EngineState``, from 1; nothing where it has none."""
    name = "engine_state"
    together = labels_of(name, "state")
    terms = (
        f"{place} * max {by(together)} ({select(name, state=state.value)})"
        for place, state in enumerate(EngineState, 1)
    )
    return f"({' + '.join(terms)}) > 0"


STATE_WORDS = tuple(Word(place, state.value, _STATES[state]) for place, state in enumerate(EngineState, 1))


def alerts_firing(settings: BoardSettings, *, width: int, height: int = 8) -> Panel:
    links = (Link("Runbook", settings.runbook_url + "/${__field.labels.alertname}.md"),) if settings.runbook_url else ()
    return Panel(
        title="Alerts firing",
        description="Which of ufwatch's alerts fired when. Empty is good only while the row on freshness below is.",
        unit="short",
        kind=PanelKind.STATES,
        queries=(
            Query(
                expr=f"max by (alertname, severity, instance, target, slo) ({_CHOSEN_FIRING})",
                legend="{{alertname}} {{target}} {{slo}}",
                optional="no alert is firing",
            ),
        ),
        words=(Word(1, "firing", BAD),),
        absent="no alert is firing",
        width=width,
        height=height,
        links=links,
    )


def believable(settings: BoardSettings) -> Row:
    """Which signals have a value, from where and how exact; how old the sources are; which of them answer."""
    available = Panel(
        title="Signals: source, quality, reason",
        description="One line for each signal of each target. exact is counted; bounded lies between the two bounds "
        "drawn; estimate is near the truth; proxy is another quantity that moves with it. An absent signal says why.",
        unit="short",
        kind=PanelKind.TABLE,
        queries=(Query(expr=select("signal_available")),),
        columns=("instance", "target", "signal", "Value", "source", "quality", "reason"),
        sort="now",
        words=(Word(1, "has a value", GOOD), Word(0, "absent", WARN)),
        width=12,
        height=9,
    )
    age = Panel(
        title="Age of each source",
        description="Time since a source last proved to be alive, counted by the agent itself. An alert follows once "
        f"it is over {settings.thresholds.stale:g} s, or over three scrape intervals if that is longer.",
        unit="s",
        queries=(
            Query(
                expr=f"max {by((*_OWN, 'source'))} ({select_with_own('source_age_seconds')})",
                legend=ON_TARGET + " {{source}}",
            ),
        ),
        steps=over(settings.thresholds.stale),
        low=0.0,
        absent="no source",
        width=6,
        height=9,
    )
    answering = Panel(
        title="Agents and sources that answer",
        description="Whether Prometheus reached the agent, and whether the agent's last read of each source "
        "succeeded. What is not drawn was not looked at.",
        unit="short",
        kind=PanelKind.STATES,
        queries=(
            Query(expr='up{job=~"$job",instance=~"$instance"}', legend="{{instance}} agent"),
            Query(
                expr=f"max {by((*_OWN, 'source'))} ({select_with_own('source_up')})",
                legend=ON_TARGET + " {{source}}",
            ),
        ),
        words=UP_OR_DOWN,
        absent="nothing is read",
        width=6,
        height=9,
    )
    return Row("Can this be believed?", (available, age, answering))
