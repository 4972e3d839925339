"""OpenSLO v1 in a named subset, read and written. Anything else is a mistake that names its field, never ignored.

Taken: documents of kind ``SLO`` (indicator inline, or by ``indicatorRef`` to a ``SLI`` of the same file) with one
rolling window and one objective. ``ratioMetric`` (``counter: true``, ``good`` or ``bad``, and ``total``) goes with
``Occurrences``, ``thresholdMetric`` with ``Timeslices``. A metric source is of type ``ufwatch`` or ``Prometheus``.
Names and descriptions are for people and are not kept. Floor 2: pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ufwatch.config import Objective
from ufwatch.configschema import Block, choice, converted, number, seconds, shown, text, truth
from ufwatch.core import objectives
from ufwatch.core.counting import SLICE_SECONDS
from ufwatch.core.queries import Count, count_of, gauge_of

VERSION = "openslo/v1"
_KINDS = ("SLO", "SLI")


def read(documents: Sequence[Block]) -> list[tuple[str, Objective]]:
    """The objectives of one file's documents, with their paths; mistakes are noted in the blocks' reports."""
    indicators: dict[str, Block] = {}
    slos: list[tuple[Block, str, Block]] = []
    for document in documents:
        document.required("apiVersion", _one_of(VERSION), f"write apiVersion: {VERSION}")
        kind = document.required("kind", _one_of(*_KINDS), "write kind: SLO")
        name = _metadata(document.block("metadata"))
        spec = document.block("spec")
        document.close()
        if kind == "SLI" and name:
            indicators[name] = spec
        elif kind == "SLO" and name:
            slos.append((document, name, spec))
    found = [(block.path, each) for block, name, spec in slos if (each := _slo(name, spec, indicators)) is not None]
    if documents and not slos:
        documents[0].note("holds no document of kind SLO; write one")
    return found


def _one_of(*allowed: str) -> Any:
    def convert(value: object) -> str:
        if value not in allowed:
            raise ValueError(f"{shown(value)} is not supported; known are {', '.join(allowed)}")
        return str(value)

    return convert


def _metadata(block: Block) -> str | None:
    name = block.required("name", objectives.objective_name, "write name: ttft")
    for key in ("displayName", "labels", "annotations"):
        block.has(key)
    block.close()
    return name


def _slo(name: str, spec: Block, indicators: Mapping[str, Block]) -> Objective | None:
    for key in ("description", "service"):
        spec.get(key, text, None)
    days = _window(spec)
    method = spec.required("budgetingMethod", _one_of("Occurrences", "Timeslices"), "write Occurrences or Timeslices")
    goals = [Block(item, path, spec.report, nullable=False) for path, item in spec.items("objectives")]
    if len(goals) != 1:
        spec.add("objectives", f"{len(goals)} objectives; write exactly one, and a document for each further one")
    indicator = _indicator(spec, indicators)
    spec.close()
    if len(goals) != 1 or indicator is None or method is None or days is None:
        return None
    sliced = method == "Timeslices"
    metric, limit = _threshold(indicator, goals[0]) if sliced else _ratio(indicator)
    ratio = _target(goals[0])
    goals[0].get("displayName", text, None)
    goals[0].close()
    if metric is None or ratio is None:
        return None
    try:
        return objectives.objective(name=name, metric=metric, limit=limit, ratio=ratio, days=days)
    except ValueError as error:
        goals[0].note(str(error))
        return None


def _window(spec: Block) -> int | None:
    windows = [Block(item, path, spec.report, nullable=False) for path, item in spec.items("timeWindow")]
    if len(windows) != 1:
        spec.add(
            "timeWindow", f"{len(windows)} windows; write exactly one, such as [{{duration: 30d, isRolling: true}}]"
        )
        return None
    days = windows[0].required("duration", objectives.window_days, "write duration: 30d")
    if windows[0].get("isRolling", truth, True) is not True:
        windows[0].add("isRolling", "calendar windows are not supported; write true")
    windows[0].close()
    return days


def _indicator(spec: Block, indicators: Mapping[str, Block]) -> Block | None:
    """The indicator's own ``spec``, wherever it is written."""
    if spec.has("indicator") == spec.has("indicatorRef"):
        spec.note("neither or both of indicator and indicatorRef are given; give exactly one")
        return None
    if spec.has("indicatorRef"):
        name = spec.get("indicatorRef", text, "")
        if name not in indicators:
            spec.add("indicatorRef", f"no SLI named {shown(name)} in this file; add that document or write indicator")
        return indicators.get(name)
    inline = spec.block("indicator")
    _metadata(inline.block("metadata"))
    inner = inline.block("spec")
    inline.close()
    return inner


def _target(goal: Block) -> float | None:
    if goal.has("target") == goal.has("targetPercent"):
        goal.note("neither or both of target and targetPercent are given; give exactly one")
        return None
    percent = goal.has("targetPercent")
    key = "targetPercent" if percent else "target"

    def ratio(value: object) -> float:
        found = number(-1e6, 1e6)(value)
        return objectives.reachable(objectives.percentage(f"{found:.9f}%") if percent else found)

    return goal.get(key, ratio, None)


def _ratio(indicator: Block) -> tuple[str | None, float | None]:
    """Metric and limit of a ratio of counters."""
    indicator.get("description", text, None)
    if not indicator.has("ratioMetric"):
        indicator.note("ratioMetric is missing; Occurrences are counted by one")
    block = indicator.block("ratioMetric")
    indicator.close()
    if block.get("counter", truth, False) is not True:
        block.add("counter", "only counters are supported; write counter: true")
    if block.has("good") == block.has("bad"):
        block.note("neither or both of good and bad are given; give exactly one")
        return None, None
    key = "bad" if block.has("bad") else "good"
    part, total = _source(block.block(key), part=key), _source(block.block("total"), part="total")
    block.close()
    if part is None or total is None:
        return None, None
    if total.metric != part.metric:
        block.add("total", f"counts {total.metric}, but {key} counts {part.metric}; count the same events")
        return None, None
    return part.metric, part.at_most


def _threshold(indicator: Block, goal: Block) -> tuple[str | None, float | None]:
    """Metric and limit of a gauge that is judged in slices."""
    indicator.get("description", text, None)
    if not indicator.has("thresholdMetric"):
        indicator.note("thresholdMetric is missing; Timeslices are judged by one")
    found = _source(indicator.block("thresholdMetric"), part="gauge")
    indicator.close()
    goal.required("op", _one_of("lte", "lt"), "write op: lte")
    limit = goal.required("value", seconds(0.001, 3600), "write the limit in seconds, such as value: 0.08")
    window = goal.required("timeSliceWindow", seconds(0, 86400), "write timeSliceWindow: 10s")
    if window is not None and window != SLICE_SECONDS:
        goal.add("timeSliceWindow", f"{window:g} s is not supported; slices are {SLICE_SECONDS:g}s")
    if goal.get("timeSliceTarget", number(0, 1), 1.0) != 1.0:
        goal.add("timeSliceTarget", "a slice is judged as a whole; write 1 or remove it")
    return (None, None) if found is None or limit is None else (found.metric, limit)


def _source(block: Block, *, part: str) -> Count | None:
    """What the metric source of ``good``, ``bad``, ``total`` or the ``gauge`` counts."""
    inner = block.block("metricSource")
    block.close()
    kind = inner.required("type", choice("ufwatch", "prometheus"), "write type: ufwatch or Prometheus")
    spec = inner.block("spec")
    inner.close()
    if kind is None:
        return None
    if kind == "prometheus":
        return _queried(spec, part)
    metric = spec.required("metric", objectives.known_metric, f"write one of {', '.join(objectives.METRICS)}")
    limit = None
    if part in ("good", "bad"):
        if metric == objectives.AVAILABILITY:
            spec.required("state", _one_of(part), f"write state: {part}")
        else:
            key = "atMost" if part == "good" else "over"
            limit = spec.required(key, seconds(0.001, 3600), f"write {key}: 800ms")
    elif (metric == objectives.JITTER) != (part == "gauge") and metric is not None:
        spec.add("metric", f"{metric} does not go here; jitter is a thresholdMetric, and everything else a ratioMetric")
        metric = None
    spec.close()
    return None if metric is None else Count(metric, limit)


def _queried(spec: Block, part: str) -> Count | None:
    if part == "gauge":
        gauge = spec.required("query", gauge_of, "write query: ufwatch_token_jitter_seconds")
        spec.close()
        return None if gauge is None else Count(gauge)

    def fitting(value: object) -> Count:
        found = count_of(value)
        wanted = {"good": (True, False), "bad": (True, True), "total": (False, False)}[part]
        if (found.at_most is not None, found.bad) != wanted:
            raise ValueError(f"{shown(value)} does not count the {part} events; see the README for the three queries")
        return found

    count = spec.required("query", fitting, "write the query")
    spec.close()
    return count


def document(each: Objective) -> dict[str, Any]:
    """The objective as an OpenSLO document, which :func:`read` takes back as the same objective."""
    goal: dict[str, Any] = {"target": each.ratio}
    if each.metric == objectives.JITTER:
        gauge = _ufwatch({"metric": each.metric})
        indicator: dict[str, Any] = {"thresholdMetric": gauge}
        goal = {"op": "lte", "value": each.threshold_seconds, "timeSliceWindow": f"{SLICE_SECONDS:g}s"} | goal
    else:
        limit = {"state": "good"} if each.threshold_seconds is None else {"atMost": f"{each.threshold_seconds:.12g}s"}
        good, total = _ufwatch({"metric": each.metric, **limit}), _ufwatch({"metric": each.metric})
        indicator = {"ratioMetric": {"counter": True, "good": good, "total": total}}
    return {
        "apiVersion": VERSION,
        "kind": "SLO",
        "metadata": {"name": each.id},
        "spec": {
            "service": "inference",
            "indicator": {"metadata": {"name": each.id}, "spec": indicator},
            "timeWindow": [{"duration": f"{each.window_days}d", "isRolling": True}],
            "budgetingMethod": "Timeslices" if each.metric == objectives.JITTER else "Occurrences",
            "objectives": [goal],
        },
    }


def _ufwatch(spec: Mapping[str, object]) -> dict[str, Any]:
    return {"metricSource": {"type": "ufwatch", "spec": dict(spec)}}


def sloth(document: Block) -> list[tuple[str, Objective]]:
    """The objectives of a Sloth ``prometheus/v1`` file. Its ``alerting`` is passed over: two alerts serve every SLO."""
    document.get("version", text, None)
    for key in ("service", "labels"):
        document.has(key)
    found = []
    for path, item in document.items("slos"):
        block = Block(item, path, document.report, nullable=False)
        for key in ("description", "labels", "alerting"):
            block.has(key)
        name = block.required("name", objectives.objective_name, "write name: ttft")
        ratio = block.required(
            "objective",
            lambda value: objectives.reachable(objectives.percentage(f"{number(-1e6, 1e6)(value):.9f}%")),
            "write the percentage, such as objective: 95",
        )
        sli = block.block("sli")
        events = sli.block("events")
        if not events.given:
            sli.note("events is missing; a raw ratio or a plugin says no counts that ufwatch could take")
        bad = events.required("error_query", count_of, "write the query") if events.given else None
        total = events.required("total_query", count_of, "write the query") if events.given else None
        for each in (events, sli, block):
            each.close()
        if bad is not None and (not bad.bad or total != Count(bad.metric)):
            events.note("error_query and total_query are not the bad and all events of one histogram; see the README")
        elif name and ratio and bad and total:
            made = converted(
                bad.at_most,
                lambda limit, n=name, m=bad.metric, r=ratio: objectives.objective(  # type: ignore[misc]
                    name=n, metric=m, limit=limit, ratio=r, days=30
                ),
                None,
                document.report,
                path,
            )
            found += [(path, made)] if made is not None else []
    if not document.has("slos"):
        document.note("slos is missing; write the list")
    document.close()
    return found
