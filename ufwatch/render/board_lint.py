"""The rules of Grafana's dashboard-linter, over a dashboard's JSON, and a few of our own.

Floor 2: pure. Ported by what each rule demands (Grafana's linter is a Go program that is not packaged): its names are
kept, so that a fault can be looked up there. ``target-rate-interval-rule`` lets a panel have windows of its own where
the board says why; everything else is as strict as there or stricter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ufwatch import catalogue, families
from ufwatch.render.board import COLUMNS
from ufwatch.render.board_query import RATE_WINDOW, SCRAPED
from ufwatch.render.promql_scan import Selector, scan
from ufwatch.spec import PREFIX

UNITS = frozenset(
    (
        *("none", "short", "percentunit", "bytes", "binBps", "celsius", "hertz", "joule", "watt"),
        *("s", "dtdurations", "dateTimeFromNow", "cps", "cpm"),
    )
)
"""Those of Grafana's units that we have a use for."""
FOREIGN = {"up": (), "ALERTS": ("alertname", "alertstate", "severity", "component", "target", "slo")}
"""Series that are not ours, with the labels they are asked by."""
MAX_BYTES = 1 << 20
"""A ConfigMap holds no more."""
_TEMPLATED = ("$datasource", "${datasource}")
_COUNTING = ("rate", "irate", "increase")
_AGGREGATIONS = ("sum", "avg", "max", "min", "count", "topk", "bottomk", "quantile", "group", "stddev", "stdvar")
_OF_THE_AGENT = frozenset(spec.name for spec in families.AGENT)
"""Families whose source is what they speak of, and not where a value comes from."""


def faults(board: Mapping[str, Any], fixed_windows: Sequence[str] = ()) -> list[str]:
    """What is wrong with a dashboard, each as ``rule: where: what``; empty where nothing is.

    ``fixed_windows`` are the titles of panels whose windows are fixed for a reason.
    """
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    found = [*_board(board), *_variables(board), *_grid(board["panels"])]
    for panel in panels:
        where = panel.get("title") or f"panel {panel.get('id')}"
        found += [f"{rule}: {where}: {what}" for rule, what in _panel(panel)]
        for target in panel.get("targets", []):
            found += [f"{rule}: {where}: {what}" for rule, what in _target(target, where in fixed_windows)]
    return found


def _board(board: Mapping[str, Any]) -> Iterator[str]:
    if board.get("editable"):
        yield "uneditable-dashboard-rule: the dashboard can be edited"
    if not str(board.get("uid", "")).startswith("ufwatch-"):
        yield "uid: no uid that others can link to"
    ids = [panel["id"] for panel in board["panels"]]
    if len(set(ids)) != len(ids):
        yield "ids: two panels have one id"
    titles = [panel["title"] for panel in board["panels"]]
    for title in sorted({title for title in titles if titles.count(title) > 1}):
        yield f"titles: two panels are named {title}"


def _variables(board: Mapping[str, Any]) -> Iterator[str]:
    variables = {one["name"]: one for one in board["templating"]["list"]}
    sources = [one for one in variables.values() if one["type"] == "datasource"]
    if [one["name"] for one in sources] != ["datasource"] or sources[0]["label"] != "Data source":
        yield "template-datasource-rule: there must be one, named datasource and labelled Data source"
    for name, label in (("job", "Job"), ("instance", "Instance")):
        one = variables.get(name)
        if one is None or (one["type"], one["label"], one["multi"], one["allValue"]) != ("query", label, True, ".+"):
            yield f"template-{name}-rule: {name} must be a query labelled {label} with several values, All being .+"
    before: set[str] = set()
    for name, one in variables.items():
        if one["type"] == "query":
            if one["refresh"] != 2:
                yield f"template-on-time-change-reload-rule: {name} is not asked for again when the time range changes"
            if one["datasource"].get("uid") not in _TEMPLATED:
                yield f"template-{name}-rule: {name} does not use the templated data source"
            expression = str(one["query"]).removeprefix("label_values(").rpartition(",")[0]
            try:
                selectors = scan(expression).selectors
            except ValueError as error:
                yield f"template-label-promql-rule: {name}: {error}"
                continue
            for selector in selectors:
                yield from (f"template-label-promql-rule: {name}: {fault}" for fault in _names(selector))
                used = {matcher.value.strip("$|") for matcher in selector.matchers if "$" in matcher.value}
                for missing in sorted(used - before):
                    yield f"template-order: {name} is narrowed by {missing}, which comes after it"
        before.add(name)


def _grid(panels: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Nothing overlaps and nothing is left empty, from the top to the last line."""
    cells: dict[tuple[int, int], str] = {}
    for panel in panels:
        grid = panel["gridPos"]
        if grid["w"] < 1 or grid["h"] < 1 or grid["x"] < 0 or grid["x"] + grid["w"] > COLUMNS:
            yield f"grid: {panel['title']} is not within the {COLUMNS} columns"
        for y in range(grid["y"], grid["y"] + grid["h"]):
            for x in range(grid["x"], grid["x"] + grid["w"]):
                other = cells.setdefault((x, y), panel["title"])
                if other != panel["title"]:
                    yield f"grid: {panel['title']} lies over {other}"
                    return
    height = max((y for _, y in cells), default=-1) + 1
    if len(cells) != height * COLUMNS:
        yield f"grid: {height * COLUMNS - len(cells)} cells are empty"


def _panel(panel: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not panel.get("title") or not panel.get("description"):
        yield "panel-title-description-rule", "has no title or no description"
    if panel.get("datasource", {}).get("uid") not in _TEMPLATED:
        yield "panel-datasource-rule", "does not use the templated data source"
    defaults = panel["fieldConfig"]["defaults"]
    if defaults.get("unit") not in UNITS:
        yield "panel-units-rule", f"unit {defaults.get('unit')!r} is not known"
    if not panel.get("targets"):
        yield "panel-no-targets-rule", "asks for nothing"
    if not defaults.get("noValue"):
        yield "no-value", "says nothing where there is no value"
    steps = defaults["thresholds"]["steps"]
    limits = [step["value"] for step in steps]
    if limits[0] is not None or limits[1:] != sorted(limits[1:]):
        yield "thresholds", "must begin without a value and rise"
    refs = [target["refId"] for target in panel.get("targets", [])]
    if len(set(refs)) != len(refs):
        yield "ref-ids", "two queries have one name"
    legends = [target["legendFormat"] for target in panel.get("targets", [])]
    if panel["type"] != "table" and (len(set(legends)) != len(legends) or "__auto" in legends):
        yield "legends", "two queries have one legend, or one has none"


def _target(target: Mapping[str, Any], fixed: bool) -> Iterator[tuple[str, str]]:
    if target.get("datasource", {}).get("uid") not in _TEMPLATED:
        yield "panel-datasource-rule", "a query does not use the templated data source"
    expression = str(target["expr"])
    try:
        scanned = scan(expression)
    except ValueError as error:
        yield "target-promql-rule", str(error)
        return
    if not scanned.selectors:
        yield "target-promql-rule", "selects nothing"
    known = set(SCRAPED)
    for selector in scanned.selectors:
        known |= set(_labels(selector.name))
        for fault in _names(selector):
            yield "target-promql-rule", fault
        for label in SCRAPED:
            asked = [(one.how, one.value.removesuffix("|")) for one in selector.matchers if one.label == label]
            if asked != [("=~", f"${label}")]:
                yield f"target-{label}-rule", f'{selector.name} is not narrowed by {label}=~"${label}"'
        yield from _counting(selector)
        if selector.window not in ("", RATE_WINDOW) and not fixed:
            yield "target-rate-interval-rule", f"the window of {selector.name} is not {RATE_WINDOW}"
    for label in sorted(scanned.grouped - known):
        yield "target-promql-rule", f"groups by {label}, which nothing here has"
    for label in sorted(set(_legend_labels(str(target["legendFormat"]))) - known):
        yield "legends", f"speaks of {label}, which nothing here has"


def _counting(selector: Selector) -> Iterator[tuple[str, str]]:
    """Counters are counted, gauges are not, and two sources of one signal are never added."""
    counted = bool(selector.window and selector.inside) and selector.inside[-1] in _COUNTING
    if (selector.name.removeprefix(PREFIX) in catalogue.COUNTED) != counted:
        how = "is not inside" if not counted else "is no counter but inside"
        yield "target-counter-agg-rule", f"{selector.name} {how} rate, irate or increase"
    if "source" in _labels(selector.name) and selector.name.removeprefix(PREFIX) not in _OF_THE_AGENT:
        first = next((one for one in reversed(selector.inside) if one in _AGGREGATIONS), "")
        if first not in ("max", "min"):
            yield "sources", f"{selector.name} has a source, so the first thing taken of it must be max or min"


def _names(selector: Selector) -> Iterator[str]:
    if selector.name not in FOREIGN and selector.name.removeprefix(PREFIX) not in catalogue.SERIES:
        yield f"{selector.name} is exported by nobody"
        return
    allowed = {*SCRAPED, *_labels(selector.name)}
    for matcher in selector.matchers:
        if matcher.label not in allowed:
            yield f"{selector.name} has no label {matcher.label}"


def _labels(name: str) -> tuple[str, ...]:
    if name in FOREIGN:
        return FOREIGN[name]
    return catalogue.SERIES.get(name.removeprefix(PREFIX), ())


def _legend_labels(legend: str) -> Iterator[str]:
    for part in legend.split("{{")[1:]:
        yield part.partition("}}")[0].strip()
