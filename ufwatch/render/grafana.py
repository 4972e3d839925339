"""A board as grafanalib's objects, which Grafana 10.4 and later read without migrating them.

Floor 2: pure. The only file that imports grafanalib. What grafanalib 0.7.1 (schema 12) writes otherwise is written
here over its classes: targets with ``range``, ``instant`` and ``exemplar``, panels with ``fieldConfig.custom``, full
links. Ids follow the order of the panels; links between boards are by uid.
"""

from __future__ import annotations

import json
from typing import Any

import grafanalib.core as grafana

from ufwatch.render.board import Board, Link, Panel, PanelKind, Place, Query, Row, Variable, places
from ufwatch.render.board_parts import FIRING
from ufwatch.render.grafana_fields import LETTERS, field_defaults, options, overrides, transformations

SCHEMA_VERSION = 39
"""Grafana 10.4's; every later one reads it."""
TAG = "ufwatch"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_DEAD = frozenset(("cacheTimeout", "editable", "error", "height", "span", "minSpan", "hideTimeOverride"))
"""Keys of grafanalib's panels that no Grafana with ``fieldConfig`` knows."""
_FORMATS = {PanelKind.TABLE: "table", PanelKind.HEATMAP: "heatmap"}


class PromTarget(grafana.Target):
    """A query for Prometheus: over the range, or at its end where one number is shown.

    Grafana reduces a range to the last value that was there, so a series that ended long ago would still show it.
    """

    def __init__(self, query: Query, ref: str, kind: PanelKind) -> None:
        super().__init__(
            expr=query.expr,
            legendFormat=query.legend or "__auto",
            refId=ref,
            instant=kind in (PanelKind.TABLE, PanelKind.NUMBER),
            format=_FORMATS.get(kind, "time_series"),
        )
        self.exemplar = query.exemplar

    def to_json_data(self) -> dict[str, Any]:
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "exemplar": self.exemplar,
            "expr": self.expr,
            "format": self.format,
            "instant": self.instant,
            "legendFormat": self.legendFormat,
            "range": not self.instant,
            "refId": self.refId,
        }


class BoardPanel(grafana.Panel):
    """A panel of any kind."""

    def __init__(self, panel: Panel, place: Place, number: int, interval: str) -> None:
        super().__init__(
            title=panel.title,
            description=panel.description,
            id=number,
            gridPos=_grid(place),
            interval=interval,
            maxDataPoints=None,
            links=[_link(link) for link in panel.links if not link.field],
            targets=[PromTarget(q, ref, panel.kind) for q, ref in zip(panel.queries, LETTERS, strict=False)],
            transformations=list(transformations(panel)) if panel.kind is PanelKind.TABLE else [],
        )
        self.panel = panel

    def to_json_data(self) -> dict[str, Any]:
        panel = self.panel
        body: dict[str, Any] = grafana.Panel.panel_json(
            self,
            {
                "type": panel.kind.value,
                "datasource": DATASOURCE,
                "options": options(panel),
                "fieldConfig": {"defaults": field_defaults(panel), "overrides": list(overrides(panel))},
            },
        )
        return {key: value for key, value in body.items() if key not in _DEAD and value is not None}


class RowHeading(grafana.RowPanel):
    """The heading of a row that is never collapsed: what is folded away is not seen."""

    def to_json_data(self) -> dict[str, Any]:
        return {
            "type": "row",
            "title": self.title,
            "collapsed": False,
            "panels": [],
            "gridPos": self.gridPos,
            "id": self.id,
        }


class DropDown(grafana.Template):
    """A variable that is asked for again whenever the time range changes."""

    def __init__(self, variable: Variable, only: str | None) -> None:
        super().__init__(
            name=variable.name,
            label=variable.title,
            query=f"label_values({variable.expr}, {variable.label})",
            allValue=variable.every,
            includeAll=True,
            multi=True,
            refresh=grafana.REFRESH_ON_TIME_RANGE_CHANGE,
            sort=grafana.SORT_ALPHA_ASC,
        )
        self.only = only

    def to_json_data(self) -> dict[str, Any]:
        chosen = (
            {"text": ["All"], "value": ["$__all"]} if self.only is None else {"text": [self.only], "value": [self.only]}
        )
        return {
            "type": "query",
            "name": self.name,
            "label": self.label,
            "datasource": DATASOURCE,
            "query": self.query,
            "refresh": self.refresh,
            "includeAll": self.includeAll,
            "allValue": self.allValue,
            "multi": self.multi,
            "sort": self.sort,
            "hide": self.hide,
            "regex": "",
            "options": [],
            "current": {"selected": True, **chosen},
        }


class SourceOfData(grafana.Template):
    """The choice of the Prometheus that everything is asked of; Grafana's default one at first."""

    def __init__(self) -> None:
        super().__init__(name="datasource", label="Data source", query="prometheus", type="datasource", refresh=1)

    def to_json_data(self) -> dict[str, Any]:
        return {
            "type": "datasource",
            "name": self.name,
            "label": self.label,
            "query": self.query,
            "refresh": self.refresh,
            "includeAll": False,
            "multi": False,
            "hide": self.hide,
            "regex": "",
            "options": [],
        }


class Dashboard(grafana.Dashboard):
    """A whole board without the keys that Grafana has dropped."""

    def to_json_data(self) -> dict[str, Any]:
        return {
            "annotations": {"list": [_alerts_firing()]},
            "description": self.description,
            "editable": self.editable,
            "fiscalYearStartMonth": 0,
            "graphTooltip": self.graphTooltip,
            "links": self.links,
            "panels": self.panels,
            "refresh": self.refresh,
            "schemaVersion": self.schemaVersion,
            "tags": self.tags,
            "templating": self.templating,
            "time": self.time,
            "timepicker": {"refresh_intervals": ["5s", "15s", "30s", "1m", "5m", "15m"]},
            "timezone": self.timezone,
            "title": self.title,
            "uid": self.uid,
            "version": self.version,
            "weekStart": "",
        }


def dashboard(board: Board, header: str) -> Dashboard:
    """The board in grafanalib's form; ``header`` says what generated it and ends its description."""
    interval = f"{board.settings.interval_seconds:g}s"
    panels: list[object] = []
    for number, (item, place) in enumerate(places(board), 1):
        if isinstance(item, Row):
            panels.append(RowHeading(title=item.title, id=number, gridPos=_grid(place)))
        else:
            panels.append(BoardPanel(item, place, number, interval))
    variables: list[object] = [SourceOfData()]
    variables += [DropDown(v, board.settings.job if v.name == "job" else None) for v in board.variables]
    return Dashboard(
        title=board.title,
        uid=board.uid,
        description=f"{board.description}\n\n{header}",
        tags=[TAG],
        editable=False,
        graphTooltip=grafana.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        links=[_between_boards()],
        panels=panels,
        refresh="30s",
        schemaVersion=SCHEMA_VERSION,
        templating=grafana.Templating(list=variables),
        time=grafana.Time("now-1h", "now"),
        timezone="browser",
        version=1,
    )


def document(board: Board, header: str) -> dict[str, Any]:
    """The board as the plain values of its JSON."""
    found: dict[str, Any] = json.loads(json.dumps(dashboard(board, header), default=lambda one: one.to_json_data()))
    return found


def _grid(place: Place) -> grafana.GridPos:
    return grafana.GridPos(h=place.height, w=place.width, x=place.x, y=place.y)


def _full_link(**more: object) -> dict[str, object]:
    plain = {"asDropdown": False, "icon": "dashboard", "includeVars": False, "keepTime": False, "tags": []}
    return {**plain, "targetBlank": False, "tooltip": "", "type": "link", "url": "", **more}


def _link(link: Link) -> dict[str, object]:
    return _full_link(title=link.title, url=link.url)


def _between_boards() -> dict[str, object]:
    return _full_link(title="ufwatch", type="dashboards", tags=[TAG], includeVars=True, keepTime=True)


def _alerts_firing() -> dict[str, object]:
    return {
        "name": "Alerts firing",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "expr": FIRING,
        "titleFormat": "{{alertname}}",
        "textFormat": "{{severity}} {{instance}} {{target}} {{slo}}",
        "tagKeys": "alertname,severity,target",
        "step": "60s",
        "useValueForTime": False,
    }
