"""Alertmanager's routes and inhibitions for the twelve alerts. Floor 2: pure.

Only labels that an alert has are grouped by: a label missing everywhere would put all of them into one group. In an
inhibition a label missing on both sides counts as equal, so every source is pinned to a case that has its labels.
"""

from __future__ import annotations

from ufwatch.render.block_yaml import Value
from ufwatch.rule_forms import RuleOptions

PAGER = "pager"
TICKET = "ticket"
_SAME_TARGET: list[Value] = ["instance", "target"]
_TARGET_DOWN: list[Value] = ['alertname = "UfwatchTelemetryStale"', 'reason = "target_down"']


def alertmanager_config(options: RuleOptions) -> Value:
    """The whole configuration; the two receivers are webhooks, to be replaced by one's own."""
    names = options.slo_names("availability")
    is_it, is_not = ("=", "!=") if len(names) == 1 else ("=~", "!~")
    health = "|".join(names)
    outage: list[Value] = ['alertname = "UfwatchSloBurnFast"', f'slo {is_it} "{health}"']
    return {
        "route": {
            "receiver": TICKET,
            "group_by": ["alertname", "instance"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": _routes(outage),
        },
        "inhibit_rules": _inhibitions(outage, f'slo {is_not} "{health}"'),
        "receivers": [
            {"name": PAGER, "webhook_configs": [{"url": "http://127.0.0.1:9095/pager", "send_resolved": True}]},
            {"name": TICKET, "webhook_configs": [{"url": "http://127.0.0.1:9095/ticket", "send_resolved": True}]},
        ],
    }


def _route(matchers: list[Value], receiver: str, group_by: list[Value], wait: str, interval: str, again: str) -> Value:
    return {
        "matchers": matchers,
        "receiver": receiver,
        "group_by": group_by,
        "group_wait": wait,
        "group_interval": interval,
        "repeat_interval": again,
    }


def _routes(outage: list[Value]) -> list[Value]:
    """First match wins. What may strike fifty targets at once is grouped by what it is, and is one page."""
    ours = 'component = "ufwatch"'
    stale: list[Value] = [ours, 'alertname = "UfwatchTelemetryStale"']
    return [
        _route(stale, PAGER, ["alertname", "reason"], "30s", "1m", "4h"),
        _route([ours, *outage], PAGER, ["alertname", "slo"], "30s", "1m", "4h"),
        _route([ours, 'severity = "critical"'], PAGER, ["instance", "model_name"], "10s", "1m", "4h"),
        _route([ours, 'severity = "warning"'], TICKET, ["alertname", "instance"], "5m", "30m", "24h"),
    ]


def _inhibit(source: list[Value], target: list[Value], equal: list[Value]) -> Value:
    return {"source_matchers": source, "target_matchers": target, "equal": equal}


def _inhibitions(outage: list[Value], no_outage: str) -> list[Value]:
    """An outage pages once.

    A target that is down silences everything else about it, and is itself silenced by its availability SLO, which
    notices first. That SLO is left out of the first rule, or the two would silence each other's repeats.
    """
    ours = 'component = "ufwatch"'
    return [
        _inhibit(_TARGET_DOWN, [ours, 'reason != "target_down"', no_outage], _SAME_TARGET),
        _inhibit(outage, _TARGET_DOWN, _SAME_TARGET),
        _inhibit(
            ['alertname = "UfwatchSloBurnFast"'],
            ['alertname = "UfwatchSloBurnSlow"'],
            ["instance", "target", "model_name", "slo"],
        ),
        _inhibit(
            ['alertname = "UfwatchMemoryBreakerOpen"'],
            ['alertname =~ "UfwatchKvThrashing|UfwatchPinnedAllocFailing"'],
            _SAME_TARGET,
        ),
        _inhibit(['alertname = "UfwatchEngineStalled"'], ['alertname = "UfwatchMemoryBreakerOpen"'], _SAME_TARGET),
    ]
