"""What was asked for on the command line, as :class:`RuleOptions`; every mistake at once. Floor 1: pure.

A burn rate cannot be more than everything bad: at an objective of 95 % it is at most 20. A factor over that would be
an alert that never fires, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

from ufwatch.address import http_url
from ufwatch.alerts_agent import burn_factors
from ufwatch.config import DEFAULT_OBJECTIVES, Objective
from ufwatch.configschema import Report, converted, label, number, seconds, shown
from ufwatch.rule_forms import (
    DEFAULT_INTERVAL_SECONDS,
    MAX_INTERVAL_SECONDS,
    RuleOptions,
)
from ufwatch.rule_forms import number as plain
from ufwatch.thresholds import Thresholds

_WHERE = "ufwatch alerts"
_NOT_IN_A_URL = set("{}\"'`\\<>|^")


def settle(
    *,
    job: str | None = None,
    interval: str | None = None,
    runbook_url: str | None = None,
    grafana_url: str | None = None,
    sets: Sequence[str] = (),
    slos: Sequence[Objective] = DEFAULT_OBJECTIVES,
    objectives: Sequence[str] = (),
    looks_every: float = 0.0,
) -> RuleOptions:
    """The options, from text as typed; None is the default. ConfigError lists every mistake, one line each.

    ``sets`` are ``THRESHOLD=VALUE``. The burn of ``slos``, or of ``objectives`` (``SLO=PERCENT``) where any is
    named, must be able to reach the factors. ``looks_every`` is the agent's own interval: between two of its looks no
    counter moves, so that a window made for faster scrapes would be empty again and again.
    """
    report = Report()
    default = RuleOptions()

    def take(path: str, typed: str | None, convert: Callable[[object], str], otherwise: str) -> str:
        found = converted(typed, convert, None, report, path) if typed is not None else None
        return otherwise if found is None else found

    every = None
    if interval is not None:
        every = converted(interval, _interval, None, report, "--interval")
    options = RuleOptions(
        job=take("--job", job, label, default.job),
        interval_seconds=max(DEFAULT_INTERVAL_SECONDS if every is None else every, looks_every),
        runbook_url=take("--runbook-url", runbook_url, _url, default.runbook_url),
        grafana_url=take("--grafana-url", grafana_url, _url, default.grafana_url),
        thresholds=_thresholds(sets, report),
        slos=tuple((slo.id, slo.metric) for slo in slos),
    )
    shares = _objectives(objectives, report) if objectives else {slo.id: slo.ratio for slo in slos}
    for name, pairs in burn_factors(options).items():
        _check_reachable(name, max(factor for _, _, factor in pairs), shares, report)
    report.raise_if_any(_WHERE)
    return options


def _objectives(words: Sequence[str], report: Report) -> Mapping[str, float]:
    named = _named_values(words, "--objective", report)
    shares = {n: converted(typed, _objective, None, report, f"--objective {n}") for n, typed in named.items()}
    return {name: share for name, share in shares.items() if share is not None}


def _objective(value: object) -> float:
    """An objective as ``99.9%`` or ``0.999``: over 0 and under 1, because 100 % leaves no budget to burn."""
    found = _ratio(0.0, 1.0)(value)
    if not 0 < found < 1:
        raise ValueError(f"{shown(value)} leaves nothing to measure; an objective is over 0 % and under 100 %")
    return found


def _named_values(words: Sequence[str], flag: str, report: Report) -> dict[str, str]:
    """``NAME=VALUE`` words as a mapping; a word without either part and a name given twice are mistakes."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            report.add(flag, f"{shown(word)} is not NAME=VALUE; write such as {flag} {_example(flag)}")
        elif name in found:
            report.add(f"{flag} {name}", "is given twice; keep one")
        else:
            found[name] = value
    return found


def _example(flag: str) -> str:
    return "jitter=80ms" if flag == "--set" else "ttft=95%"


def _interval(value: object) -> float:
    if isinstance(value, str):
        found = seconds(0, 1e9)(value)
        if found > MAX_INTERVAL_SECONDS:
            raise ValueError(
                f"{shown(value)} leaves too few samples for rules of minutes; scrape every "
                f"{plain(MAX_INTERVAL_SECONDS)}s or more often"
            )
    return seconds(1, MAX_INTERVAL_SECONDS)(value)


def _url(value: object) -> str:
    text = http_url(str(value))
    if _NOT_IN_A_URL & set(text):
        raise ValueError("holds a character that no URL has as it is; escape it with %")
    return text


def _ratio(low: float, high: float) -> Callable[[object], float]:
    def convert(value: object) -> float:
        if isinstance(value, str) and value.endswith("%"):
            return number(low, high)(number(-1e9, 1e9)(value[:-1].strip()) / 100)
        return number(low, high)(value)

    return convert


_KINDS: dict[str, Callable[[object], float]] = {
    "jitter": seconds(0.001, 60),
    "miss": _ratio(0.001, 0.999),
    "turnover": number(0.01, 1e6),
    "kv_usage": _ratio(0.01, 0.999),
    "pinned_success": _ratio(0.01, 1.0),
    "compile": seconds(1, 1800),
    "sm_utilization": _ratio(0.001, 0.999),
    "prefill_decode": number(0.01, 1e6),
    "burn_fast": number(0.1, 1e6),
    "burn_slow": number(0.1, 1e6),
    "stale": seconds(1, 3600),
    "breaker_trips": number(1, 1000),
    "ageing": _ratio(0.001, 1.0),
}


def _thresholds(sets: Sequence[str], report: Report) -> Thresholds:
    known = {field.name for field in fields(Thresholds)}
    given: dict[str, float] = {}
    for name, typed in _named_values(sets, "--set", report).items():
        if name not in known:
            report.add(f"--set {name[:40]}", f"is no threshold; choose from {', '.join(sorted(known))}")
            continue
        value = converted(typed, _KINDS[name], None, report, f"--set {name}")
        if value is not None:
            given[name] = value
    return replace(Thresholds(), **given)


def _check_reachable(name: str, factor: float, objectives: Mapping[str, float], report: Report) -> None:
    short = {slo: 1 / (1 - share) for slo, share in objectives.items() if factor >= 1 / (1 - share) - 1e-9}
    if short:
        most = "; ".join(f"{slo} at {plain(100 * objectives[slo])} % burns at most {n:.4g}" for slo, n in short.items())
        report.add(
            name, f"{plain(factor)} can never be reached ({most}); choose a smaller factor or a higher objective"
        )
