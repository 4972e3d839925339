"""The one-line form of an objective (``ttft < 800ms, 95%``), and what is wrong with objectives together.

Floor 2: pure. What cannot be an objective raises ValueError with ``what is wrong; what to do``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from ufwatch.config import DEFAULT_WINDOW_DAYS, Objective
from ufwatch.configschema import Report, seconds, shown, text
from ufwatch.thresholds import Thresholds

REQUESTS = ("ttft", "itl", "tpot", "e2e", "queue")
"""Metrics whose events are observations of a latency histogram."""
JITTER, AVAILABILITY = "jitter", "availability"
METRICS = (*REQUESTS, JITTER, AVAILABILITY)
WINDOWS_DAYS = (7, 28, 30)
MAX_OBJECTIVES = 20
"""Each is five series for each target."""

EXAMPLE = "write it as ttft < 800ms, 95%"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}", re.ASCII)
_LINE = re.compile(
    r"(?:(?P<name>[^:<≤,]+):)?\s*(?P<metric>[^:<≤,\s]+)\s*(?:(?:<=|<|≤)\s*(?P<limit>[^,]+?))?\s*,\s*"
    r"(?P<percent>[^,]+?)\s*(?:,\s*(?P<window>[^,]+?))?\s*"
)
_PERCENT = re.compile(r"(-?[0-9]{1,6}(?:\.[0-9]{1,9})?)\s*%", re.ASCII)
_limit = seconds(0.001, 3600)


def native(value: object) -> Objective:
    """The objective of one line: ``[name:] metric < duration, percentage% [, 7d|28d|30d]``; the name is the metric's.

    The limit itself is still good, as in a histogram. ``availability, 99.9%`` has no limit.
    """
    line = text(value)
    matched = _LINE.fullmatch(line.strip())
    if matched is None:
        raise ValueError(f"{shown(line)} is not an objective; {EXAMPLE}")
    found = matched.groupdict()
    metric = known_metric(found["metric"])
    return objective(
        name=(found["name"] or metric).strip(),
        metric=metric,
        limit=found["limit"],
        ratio=percentage(found["percent"]),
        days=window_days(found["window"]) if found["window"] else DEFAULT_WINDOW_DAYS,
    )


def objective(*, name: object, metric: str, limit: object, ratio: float, days: int) -> Objective:
    """The checked objective of its parts; ``limit`` is a duration, or None for ``availability``. Raises ValueError."""
    name = objective_name(name)
    if metric == AVAILABILITY and limit is not None:
        raise ValueError("availability has no limit, it counts health probes; write availability, 99.9%")
    if metric != AVAILABILITY and limit is None:
        raise ValueError(f"{metric} needs a limit; write {metric} < 800ms, 95%")
    threshold = None if limit is None else _limit(limit)
    return Objective(id=name, metric=metric, threshold_seconds=threshold, ratio=reachable(ratio), window_days=days)


def objective_name(value: object) -> str:
    """A name fit for the ``slo`` label."""
    name = text(value)
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{shown(name)} is no name; use up to 40 of a-z, 0-9, _ and -, a letter first")
    return name


def known_metric(value: object) -> str:
    """One of ``METRICS``."""
    if value not in METRICS:
        raise ValueError(f"unknown metric {shown(value)}; known are {', '.join(METRICS)}")
    return str(value)


def percentage(value: object) -> float:
    """The share (0–1) that a percentage such as ``99.9%`` stands for, to its last digit."""
    matched = _PERCENT.fullmatch(str(value))
    if matched is None:
        raise ValueError(f"{shown(value)} is not a percentage; {EXAMPLE}")
    return float(Decimal(matched[1]) / 100)


def window_days(value: object) -> int:
    """The days of a rolling window: ``7d``, ``28d`` or ``30d``, or the same in weeks."""
    days = {**{f"{days}d": days for days in WINDOWS_DAYS}, "1w": 7, "4w": 28}.get(str(value))
    if days is None:
        raise ValueError(f"a window of {shown(value)} is not supported; use 7d, 28d or 30d")
    return days


def reachable(ratio: float) -> float:
    """``ratio``, where it leaves a budget that can be spent fast enough for the alert to see it. Raises ValueError.

    Burn is at most 1/(1 − objective): under 93.06 % the factor 14.4 is never reached, and nobody would be told.
    """
    if ratio >= 1:
        raise ValueError(f"an objective of {_percent(ratio)} leaves no error budget; choose less, such as 99.9%")
    if ratio <= 0:
        raise ValueError(f"an objective of {_percent(ratio)} asks for nothing; choose more, such as 95%")
    factor = Thresholds().burn_fast
    if 1 / (1 - ratio) <= factor:
        raise ValueError(
            f"an objective of {_percent(ratio)} can burn {1 / (1 - ratio):.3g} times its budget at most, so the alert "
            f"at {factor:g} could never fire; choose over {100 * (1 - 1 / factor):.2f}%"
        )
    return ratio


def check_objectives(placed: Iterable[tuple[str, Objective]], report: Report) -> None:
    """Notes what is wrong between objectives, given as (path, objective): equal names, and too many of them."""
    names: dict[str, str] = {}
    for number, (path, each) in enumerate(placed):
        if each.id in names:
            advice = "give each a name of its own, as in patience: ttft < 2.3s, 99%"
            report.add(path, f'the same name "{each.id}" as {names[each.id]}; {advice}')
        names.setdefault(each.id, path)
        if number == MAX_OBJECTIVES:
            report.add(path, f"more than {MAX_OBJECTIVES} objectives; remove some")


def native_line(each: Objective) -> str:
    """The one-line form that :func:`native` reads back as the same objective."""
    limit = "" if each.threshold_seconds is None else f" < {each.threshold_seconds:.12g}s"
    return f"{each.id}: {each.metric}{limit}, {_percent(each.ratio)}, {each.window_days}d"


def _percent(ratio: float) -> str:
    return f"{Decimal(repr(ratio)) * 100:.9f}".rstrip("0").rstrip(".")[:12] + "%"
