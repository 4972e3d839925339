"""The board of the objectives: how much budget is left, how fast it burns, and when it will be gone. Floor 2: pure."""

from __future__ import annotations

from ufwatch.render.board import (
    BAD,
    CLEAR,
    Board,
    BoardSettings,
    Panel,
    PanelKind,
    Query,
    Row,
    Step,
    Variable,
    under,
)
from ufwatch.render.board_parts import alerts_firing, believable, following, variables
from ufwatch.render.board_query import ON_TARGET, best, by, labels_of, rate, select
from ufwatch.spec import PREFIX

_SLO = 'slo=~"$slo"'
_NAMED = ON_TARGET + " {{slo}}"
_EVENTS = "only once events were counted"
_WINDOWS = "a burn rate is defined over the windows that the alert compares"


def slo(settings: BoardSettings) -> Board:
    """Budgets, the four pairs of burn windows with the limits of the alerts, and the events they are made of."""
    fast, slow = settings.thresholds.burn_fast, settings.thresholds.burn_slow
    return Board(
        name="slo",
        title="ufwatch / SLO",
        description="Which objective is in danger, since when, and how long its error budget will last.",
        rows=(
            Row("Budget", (_left(), _exhausted(), _objectives())),
            Row(
                "Burn: fast pages, slow makes a ticket; both windows must be over the limit",
                (
                    _burn("Fast burn, 5 m and 1 h", "5m", "1h", fast),
                    _burn("Fast burn, 30 m and 6 h", "30m", "6h", fast * 6 / 14.4),
                    _burn("Slow burn, 2 h and 1 d", "2h", "1d", slow),
                    _burn("Slow burn, 6 h and 3 d", "6h", "3d", slow / 3),
                ),
            ),
            Row("Events", (*_events(settings), alerts_firing(settings, width=8))),
            believable(settings),
        ),
        variables=(
            *variables(settings),
            Variable(
                "slo",
                "Objective",
                f'{PREFIX}slo_events_total{{job=~"$job",instance=~"$instance",target=~"$target"}}',
                "slo",
            ),
        ),
        settings=settings,
    )


def _left() -> Panel:
    return Panel(
        title="Error budget left",
        description="Share of the budget left in the objective's own window, kept by the agent through restarts of "
        "itself and of Prometheus. The full line counts all that may have been bad, the dashed one only what is "
        "proved: the truth lies between. Under 0 the budget is overspent; the axis ends at -100 %.",
        unit="percentunit",
        queries=(
            Query(expr=best("slo_error_budget_remaining_ratio", _SLO, bound="low"), legend=_NAMED, optional=_EVENTS),
            Query(
                expr=best("slo_error_budget_remaining_ratio", _SLO, bound="high"),
                legend=_NAMED + " at most",
                optional=_EVENTS,
            ),
        ),
        steps=under(0.0),
        low=-1.0,
        high=1.0,
        dashed=("at most",),
        absent="no events yet",
        width=12,
        height=9,
    )


def _exhausted() -> Panel:
    left = best("slo_error_budget_remaining_ratio", _SLO, bound="low")
    fall = f"deriv({select('slo_error_budget_remaining_ratio', _SLO, bound='low')}[6h])"
    fall = f"max {by(labels_of('slo_error_budget_remaining_ratio'))} (-{fall})"
    return Panel(
        title="Budget gone in",
        description="How long the budget lasts at the pace of the last six hours. No value: it is not shrinking, or it "
        "is already spent.",
        unit="dtdurations",
        kind=PanelKind.NUMBER,
        queries=(Query(expr=f"({left}) / (({fall}) > 0) > 0", legend=_NAMED, optional="the budget is not shrinking"),),
        steps=(Step(None, BAD), Step(86400.0, "orange"), Step(7 * 86400.0, "green")),
        absent="not shrinking",
        width=6,
        height=9,
        fixed_windows="the pace is that of six hours, whatever the zoom",
    )


def _objectives() -> Panel:
    return Panel(
        title="Objectives",
        description="Share of events that must be good, as the agent is configured.",
        unit="percentunit",
        kind=PanelKind.TABLE,
        queries=(Query(expr=best("slo_objective_ratio", _SLO), optional=_EVENTS),),
        columns=("instance", "slo", "Value"),
        width=6,
        height=9,
    )


def _burn(title: str, short: str, long: str, limit: float) -> Panel:
    return Panel(
        title=title,
        description=f"Provably bad events over all, over what the objective allows: 1 spends exactly the whole budget. "
        f"The alert fires when the full line ({short}) and the dashed one ({long}) are both over {limit:g} and at "
        "least ten events were bad. No traffic, no line.",
        unit="none",
        queries=(
            Query(expr=_burnt(short), legend=f"{_NAMED} {short}", optional=_EVENTS),
            Query(expr=_burnt(long), legend=f"{_NAMED} {long} window", optional=_EVENTS),
        ),
        steps=(Step(None, CLEAR), Step(limit, BAD)),
        low=0.0,
        dashed=("window",),
        absent="no events",
        width=12,
        height=9,
        fixed_windows=_WINDOWS,
    )


def _burnt(window: str) -> str:
    labels = by(labels_of("slo_events_total"))
    bad = f"max {labels} (rate({select('slo_bad_events_total', _SLO, bound='low')}[{window}]))"
    every = rate("slo_events_total", _SLO, window=window)
    allowed = f"1 - {best('slo_objective_ratio', _SLO)}"
    return f"({bad} / ({every} > 0)) / on (job, instance, slo) group_left () ({allowed})"


def _events(settings: BoardSettings) -> tuple[Panel, ...]:
    return (
        Panel(
            title="Events per second",
            description="Events each objective speaks of, per second.",
            unit="cps",
            queries=(Query(expr=rate("slo_events_total", _SLO), legend=_NAMED, optional=_EVENTS),),
            low=0.0,
            absent="no events",
            links=(following(settings, "streaming", "Streaming"),),
        ),
        Panel(
            title="Bad events per second",
            description="Events that missed the objective, per second: the full line those that are proved bad, the "
            "dashed one all that may be. They are one where the source counts the threshold itself.",
            unit="cps",
            queries=(
                Query(expr=rate("slo_bad_events_total", _SLO, bound="low"), legend=_NAMED, optional=_EVENTS),
                Query(
                    expr=rate("slo_bad_events_total", _SLO, bound="high"), legend=_NAMED + " at most", optional=_EVENTS
                ),
            ),
            low=0.0,
            dashed=("at most",),
            absent="no events",
            links=(following(settings, "streaming", "Streaming"),),
        ),
    )
