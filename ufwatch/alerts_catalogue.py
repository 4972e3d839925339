"""The twelve alerts, over the recorded names of :mod:`ufwatch.recordings`. Floor 1: pure.

A gauge enters only through ``min_over_time`` or ``max_over_time`` over at least two and a half scrapes, so one missed
scrape restarts no ``for``. Where two conditions of one alert must hold for different times, the time is in the window
and not in ``for``.
"""

from __future__ import annotations

from ufwatch import alerts_agent, alerts_serving
from ufwatch.rule_forms import Alert, RuleOptions

_TWELVE = (
    alerts_serving.jitter,
    alerts_serving.miss,
    alerts_serving.thrashing,
    alerts_serving.pinned,
    alerts_serving.graph_compile,
    alerts_serving.stalled,
    alerts_serving.imbalance,
    alerts_agent.burn_fast,
    alerts_agent.burn_slow,
    alerts_agent.stale,
    alerts_agent.breaker,
    alerts_agent.ageing,
)


def alerts(options: RuleOptions) -> tuple[Alert, ...]:
    """The twelve, in the order of their numbers."""
    return tuple(make(options) for make in _TWELVE)
