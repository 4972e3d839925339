"""The parts of a Grafana panel that are plain values: options by kind, field settings, overrides, transformations.

Floor 2: pure. Written against Grafana's published types (``tests/render/grafana_types.py`` checks them).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ufwatch.render.board import BAD, CLEAR, GOOD, WARN, Panel, PanelKind, Step

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The names Grafana gives a panel's queries, in order."""


def _step(step: Step, kind: PanelKind) -> dict[str, object]:
    # The room where nothing is wrong is not painted behind lines.
    clear = kind is PanelKind.LINES and step.value is None and step.color == GOOD
    return {"color": CLEAR if clear else step.color, "value": step.value}


def _mappings(panel: Panel) -> list[dict[str, object]]:
    if not panel.words or (panel.kind is PanelKind.TABLE and len(panel.queries) > 1):
        return []
    return [_words(panel)]


def _words(panel: Panel) -> dict[str, object]:
    options = {
        str(word.value): {"text": word.text, "color": word.color, "index": at} for at, word in enumerate(panel.words)
    }
    return {"type": "value", "options": options}


_WIDE = 12
"""Columns from which on the names of the series stand beside the lines."""
_TOOLTIP = {"mode": "multi", "sort": "desc"}


def _lines_options(panel: Panel) -> dict[str, object]:
    """The worst series comes first: the smallest where a limit is undercut, otherwise the largest."""
    legend = {
        "showLegend": True,
        "displayMode": "table",
        "placement": "right" if panel.width >= _WIDE else "bottom",
        "calcs": ["lastNotNull", "max"],
        "sortBy": "Last *",
        "sortDesc": panel.steps[0].color not in (BAD, WARN),
    }
    return {"legend": legend, "tooltip": _TOOLTIP}


def _number_options(_: Panel) -> dict[str, object]:
    return {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": {"calcs": ["last"], "fields": "", "values": False},
        "showPercentChange": False,
        "textMode": "auto",
        "wideLayout": True,
    }


def _states_options(_: Panel) -> dict[str, object]:
    return {
        "alignValue": "left",
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }


def _table_options(panel: Panel) -> dict[str, object]:
    order = [{"displayName": panel.sort, "desc": False}] if panel.sort else []
    return {"cellHeight": "sm", "frameIndex": 0, "showHeader": True, "sortBy": order}


def _heatmap_options(panel: Panel) -> dict[str, object]:
    """Buckets as they come, with their exemplars on top."""
    return {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "none"},
        "color": {
            "exponent": 0.5,
            "fill": "dark-orange",
            "mode": "scheme",
            "reverse": False,
            "scale": "exponential",
            "scheme": "Oranges",
            "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": panel.unit},
    }


def _heatmap_custom(_: Panel) -> dict[str, object]:
    hide = {"legend": False, "tooltip": False, "viz": False}
    return {"hideFrom": hide, "scaleDistribution": {"type": "linear"}}


def _lines_custom(panel: Panel) -> dict[str, object]:
    limited = len(panel.steps) > 1
    style = "dashed+area" if panel.shaded else "dashed"
    stack = {"stacking": {"group": "A", "mode": "normal"}} if panel.stacked else {}
    return {
        "axisBorderShow": False,
        "axisCenteredZero": False,
        "axisLabel": "",
        "axisPlacement": "auto",
        "drawStyle": "line",
        "fillOpacity": 40 if panel.stacked else 0,
        "gradientMode": "none",
        "hideFrom": {"legend": False, "tooltip": False, "viz": False},
        "insertNulls": False,
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "pointSize": 5,
        "showPoints": "auto",
        "spanNulls": False,
        "thresholdsStyle": {"mode": style if limited else "off"},
        **stack,
    }


def _states_custom(_: Panel) -> dict[str, object]:
    hide = {"legend": False, "tooltip": False, "viz": False}
    return {"fillOpacity": 80, "lineWidth": 0, "hideFrom": hide}


def _table_custom(_: Panel) -> dict[str, object]:
    return {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True, "inspect": False}


_OPTIONS = {
    PanelKind.LINES: _lines_options,
    PanelKind.NUMBER: _number_options,
    PanelKind.STATES: _states_options,
    PanelKind.TABLE: _table_options,
    PanelKind.HEATMAP: _heatmap_options,
}
_CUSTOM = {
    PanelKind.LINES: _lines_custom,
    PanelKind.NUMBER: lambda _: {},
    PanelKind.STATES: _states_custom,
    PanelKind.TABLE: _table_custom,
    PanelKind.HEATMAP: _heatmap_custom,
}


def options(panel: Panel) -> dict[str, object]:
    """What the kind of panel is told beside its fields."""
    return _OPTIONS[panel.kind](panel)


def field_defaults(panel: Panel) -> dict[str, object]:
    """How every series of the panel is shown: unit, limits, words for states, and what stands for no value."""
    limits = {"min": panel.low, "max": panel.high}
    return {
        "unit": panel.unit,
        "noValue": panel.absent,
        "color": {"mode": "thresholds" if panel.kind is PanelKind.NUMBER else "palette-classic"},
        "custom": _CUSTOM[panel.kind](panel),
        "mappings": _mappings(panel),
        "thresholds": {"mode": "absolute", "steps": [_step(step, panel.kind) for step in panel.steps]},
        **{key: value for key, value in limits.items() if value is not None},
    }


def _override(matcher: str, on: str, **properties: object) -> dict[str, object]:
    named = [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()]
    return {"matcher": {"id": matcher, "options": on}, "properties": named}


def overrides(panel: Panel) -> Iterator[dict[str, object]]:
    """What single series or columns have otherwise: bounds, limits drawn dashed, links, units, words."""
    dash = {"fill": "dash", "dash": [6, 6]}
    if panel.between is not None:
        lower, upper = panel.between
        edge = {"custom__lineStyle": dash, "custom__showPoints": "never"}
        grey: Mapping[str, object] = {"color": {"mode": "fixed", "fixedColor": "gray"}}
        yield _override("byName", lower, **edge, **grey)
        yield _override("byName", upper, **edge, **grey, custom__fillBelowTo=lower, custom__fillOpacity=15)
    for ending in panel.dashed:
        yield _override("byRegexp", f"/{ending}$/", custom__lineStyle=dash)
    for link in panel.links:
        if link.field:
            value = [{"title": link.title, "url": link.url, "targetBlank": False}]
            yield _override("byName", link.field, links=value)
    if panel.kind is PanelKind.TABLE:
        colored = {"type": "color-text"}
        if len(panel.queries) == 1:
            if panel.words:
                yield _override("byName", "Value", custom__cellOptions=colored, displayName="now")
            return
        for query in panel.queries:
            if query.unit:
                yield _override("byName", query.legend, unit=query.unit)
            else:
                yield _override("byName", query.legend, mappings=[_words(panel)], custom__cellOptions=colored)


def transformations(panel: Panel) -> Iterator[dict[str, object]]:
    """One frame with the columns asked for, in their order; values of several queries are named by their legends."""
    if len(panel.queries) > 1:
        yield {"id": "merge", "options": {}}
    renamed = {}
    if len(panel.queries) > 1:
        renamed = {f"Value #{ref}": query.legend for ref, query in zip(LETTERS, panel.queries, strict=False)}
    shown = (*panel.columns, *renamed)
    yield {
        "id": "organize",
        "options": {
            "excludeByName": {name: True for name in ("Time", "__name__", "job", "Value") if name not in shown},
            "indexByName": {name: place for place, name in enumerate(shown)},
            "renameByName": renamed,
        },
    }
