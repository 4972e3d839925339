"""What several alerts say alike: conditions, and the words of their texts. Floor 1: pure."""

from __future__ import annotations

from ufwatch import recordings as rec
from ufwatch.rule_forms import RuleOptions, number, summed

SHOWN_TARGET = ("target", "model_name", "instance")
"""The labels that open a dashboard on one target."""
WHO = "{{ $labels.target }} ({{ $labels.model_name }})"


def burning(options: RuleOptions, *judged: str) -> str:
    """Any SLO of these metrics burns: over 1 in 5 m and 1 h, on proved bad events, ten of them or more."""
    names = [name for metric in judged for name in options.slo_names(metric)]
    return f'{rec.BURNING}{{slo=~"{"|".join(names)}"}}'


def preempted(options: RuleOptions, labels: tuple[str, ...]) -> str:
    """Requests were preempted within ten minutes."""
    return f"{summed(labels, options.over('increase', 'preemptions_total', '10m'))} > 0"


def ms(seconds: float) -> str:
    return f"{number(1000 * seconds)} ms"


def percent(ratio: float) -> str:
    return f"{number(100 * ratio)} %"
