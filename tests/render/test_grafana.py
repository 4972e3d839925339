"""The five boards: what is committed is what is generated, and what is generated keeps ufwatch's promise."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafanalib import _gen as grafanalib_generator

from tests.e2e.boards_live import filled
from tests.render.grafana_types import complaints
from tests.tools import require_tool
from ufwatch import catalogue
from ufwatch.render.board import COLUMNS, Board, BoardSettings, Panel, PanelKind, Query, Row, places
from ufwatch.render.board_lint import MAX_BYTES
from ufwatch.render.board_query import unit_of
from ufwatch.render.boards import BOARDS, SIDECAR_LABEL, configmaps, files
from ufwatch.render.promql_scan import scan
from ufwatch.spec import PREFIX, Kind
from ufwatch.thresholds import Thresholds

FOLDER = Path(__file__).parents[2] / "dashboards"
DEFAULT = BoardSettings()
_RATIOS = ("prefill_decode_ratio",)
"""Ratios that pass 1 and are no shares."""


def _boards() -> list[Board]:
    return [make(DEFAULT) for make in BOARDS.values()]


def _queries() -> Iterator[tuple[Board, Panel, Query]]:
    for board in _boards():
        for panel in board.panels():
            for query in panel.queries:
                yield board, panel, query


def _documents(settings: BoardSettings = DEFAULT) -> dict[str, Any]:
    return {name.removesuffix(".json"): json.loads(text) for name, text in files(settings).items()}


def _panel(board: str, title: str, settings: BoardSettings = DEFAULT) -> Any:
    (found,) = (panel for panel in _documents(settings)[board]["panels"] if panel["title"] == title)
    return found


def test_the_committed_files_are_what_is_generated() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == files(DEFAULT)


@pytest.mark.parametrize("name", BOARDS)
def test_grafanalibs_own_tool_writes_the_same_bytes(name: str, tmp_path: Path) -> None:
    shutil.copy(FOLDER / f"{name}.dashboard.py", tmp_path)
    grafanalib_generator.write_dashboards([str(tmp_path / f"{name}.dashboard.py")])
    assert (tmp_path / f"{name}.json").read_bytes() == (FOLDER / f"{name}.json").read_bytes()


def test_every_family_is_on_a_board() -> None:
    shown = {s.name.removeprefix(PREFIX) for _, _, query in _queries() for s in scan(query.expr).selectors}
    left_out = {
        "token_interval_seconds_total": "part of the deviation, which is shown",
        "token_interval_squared_low_total": "part of the deviation",
        "token_interval_squared_high_total": "part of the deviation",
        "token_interval_squared_total": "part of the deviation",
        "prefill_seconds_total": "part of the ratio by time",
        "decode_seconds_total": "part of the ratio by time",
    }
    assert {spec.name for spec in catalogue.FAMILIES if not shown & spec.series.keys()} == left_out.keys()


def test_every_query_can_be_read_by_prometheus(tmp_path: Path) -> None:
    rules = [
        {"record": f"board:{board.name}:q{number}", "expr": filled(query.expr)}
        for number, (board, _, query) in enumerate(_queries())
    ]
    rules += [{"record": f"board:variable:q{n}", "expr": filled(v.expr)} for n, v in enumerate(_boards()[1].variables)]
    assert len(rules) > 140
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "boards", "rules": rules}]}))
    done = subprocess.run(
        [require_tool("promtool"), "check", "rules", str(tmp_path / "rules.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_units_are_the_base_units_of_the_names() -> None:
    for board, panel, query in _queries():
        selectors = scan(query.expr).selectors
        names = {one.name.removeprefix(PREFIX) for one in selectors} & catalogue.FAMILY.keys()
        plain = re.fullmatch(r"max (by \([^)]*\) )?\((rate\()?[a-z0-9_]+\{[^}]*\}(\[[^]]*\]\))?\)", query.expr)
        if len(names) != 1 or plain is None or panel.kind in (PanelKind.STATES, PanelKind.TABLE):
            continue
        (name,) = names
        if name not in _RATIOS and unit_of(name) != "short" and name != "kv_turnover_per_minute":
            assert panel.unit == unit_of(name), f"{board.name}: {panel.title}: {name}"


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("token_jitter_seconds", "s"),
        ("sm_utilization_ratio", "percentunit"),
        ("gpu_pcie_bytes_per_second", "binBps"),
        ("kv_evictions_per_second", "cps"),
        ("kv_evictions_total", "cps"),
        ("gpu_energy_joules_total", "watt"),
        ("pinned_alloc_bytes_total", "binBps"),
        ("gpu_throttle_seconds_total", "percentunit"),
        ("engine_start_time_seconds", "dateTimeFromNow"),
        ("requests_running", "short"),
    ],
)
def test_a_units_name_is_read_from_the_metrics_name(name: str, unit: str) -> None:
    assert unit_of(name) == unit


def test_every_board_says_whether_it_can_be_believed() -> None:
    for name, document in _documents().items():
        expressions = [target["expr"] for panel in document["panels"] for target in panel.get("targets", [])]
        for family in ("signal_available", "source_up", "source_age_seconds"):
            assert any(f"{PREFIX}{family}{{" in one for one in expressions), f"{name}: {family}"
        (table,) = (p for p in document["panels"] if p["title"] == "Signals: source, quality, reason")
        places_ = table["transformations"][0]["options"]["indexByName"]
        assert {"source", "quality", "reason"} < places_.keys()


def test_absent_values_are_gaps_with_a_word_and_never_zero() -> None:
    for name, document in _documents().items():
        for panel in document["panels"]:
            if panel["type"] == "row":
                continue
            defaults = panel["fieldConfig"]["defaults"]
            assert defaults["noValue"].strip(" 0"), f"{name}: {panel['title']}"
            if panel["type"] == "timeseries":
                assert defaults["custom"]["spanNulls"] is False
            if panel["type"] == "stat":
                # The last point, also where it is null: what was true an hour ago is not shown as if it were so now.
                assert panel["options"]["reduceOptions"]["calcs"] == ["last"]
            for target in panel["targets"]:
                assert "or vector(" not in target["expr"]


def test_no_quantile_is_interpolated() -> None:
    assert not [query.expr for _, _, query in _queries() if "histogram_quantile" in query.expr]


def test_bounds_are_drawn_as_a_band() -> None:
    panel = _panel("streaming", "Token jitter")
    names = [target["legendFormat"] for target in panel["targets"]]
    by_name = {
        one["matcher"]["options"]: {p["id"]: p["value"] for p in one["properties"]}
        for one in panel["fieldConfig"]["overrides"]
    }
    lower, upper = names[1:]
    assert by_name[upper]["custom.fillBelowTo"] == lower
    assert "custom.fillBelowTo" not in by_name[lower]
    assert "token_jitter_low_seconds" in panel["targets"][1]["expr"]
    assert "token_jitter_high_seconds" in panel["targets"][2]["expr"]


def test_bands_stand_where_the_alerts_are() -> None:
    settings = replace(DEFAULT, thresholds=Thresholds(jitter=0.2, kv_usage=0.5, burn_fast=12.0, turnover=3.0))

    def limits(board: str, title: str) -> list[float | None]:
        steps = _panel(board, title, settings)["fieldConfig"]["defaults"]["thresholds"]["steps"]
        return [step["value"] for step in steps]

    assert limits("streaming", "Token jitter") == [None, 0.08, 0.2]
    assert limits("memory", "KV cache in use") == [None, 0.5]
    assert limits("memory", "Turnover of the cache per minute") == [None, 3.0]
    assert limits("slo", "Fast burn, 5 m and 1 h") == [None, 12.0]
    assert limits("slo", "Fast burn, 30 m and 6 h") == [None, 5.0]
    assert limits("slo", "Slow burn, 6 h and 3 d") == [None, 1.0]


def test_alerts_are_marked_on_every_board() -> None:
    for document in _documents().values():
        (marks,) = document["annotations"]["list"]
        assert marks["expr"] == 'ALERTS{component="ufwatch",alertstate="firing"}'


def test_links_lead_to_boards_of_ours_and_keep_what_was_chosen() -> None:
    uids = {board.uid for board in _boards()}
    for name, document in _documents().items():
        (between,) = document["links"]
        assert (between["type"], between["includeVars"], between["keepTime"]) == ("dashboards", True, True)
        assert set(between["tags"]) <= set(document["tags"])
        text = json.dumps(document)
        linked = set(re.findall(r'"/d/([a-z-]+)\?', text))
        assert linked <= uids, name
        for url in re.findall(r'"url": "(/d/[^"]+)"', text):
            assert "${__url_time_range}" in url
    (overview, *others) = _documents().items()
    assert set(re.findall(r"/d/([a-z-]+)\?", json.dumps(overview[1]))) >= {f"ufwatch-{name}" for name, _ in others}


def test_variables_form_a_chain() -> None:
    for name, document in _documents().items():
        variables = document["templating"]["list"]
        last = {"slo": ["slo"], "gpu": ["gpu"]}.get(name, [])
        assert [one["name"] for one in variables] == ["datasource", "job", "instance", "target", "model", *last]
        assert {one["refresh"] for one in variables[1:]} == {2}


def test_settings_are_in_the_files_and_named_in_them() -> None:
    settings = BoardSettings(
        thresholds=Thresholds(jitter=0.2),
        job='vllm "a"',
        interval_seconds=30,
        grafana_url="https://grafana.example/g",
        runbook_url="https://wiki.example/r",
    )
    for document in _documents(settings).values():
        assert {panel["interval"] for panel in document["panels"] if panel["type"] != "row"} == {"30s"}
        job = document["templating"]["list"][1]
        assert job["query"] == 'label_values(ufwatch_build_info{job="vllm \\"a\\""}, job)'
        assert job["current"]["value"] == ['vllm "a"']
        flags = "--interval 30s --job 'vllm \"a\"' --grafana-url https://grafana.example/g"
        assert (
            f"`ufwatch dashboards {flags} --runbook-url https://wiki.example/r --set jitter=0.2`"
            in document["description"]
        )
        text = json.dumps(document)
        assert '"/d/' not in text
    (link,) = _panel("overview", "Alerts firing", settings)["links"]
    assert link["url"] == "https://wiki.example/r/${__field.labels.alertname}.md"
    assert _panel("overview", "Alerts firing")["links"] == []


def test_only_histograms_are_asked_for_exemplars_and_drawn_as_buckets() -> None:
    histograms = {f"{PREFIX}{one.name}_bucket" for one in catalogue.FAMILIES if one.kind is Kind.HISTOGRAM}
    asked = {s.name for _, _, query in _queries() if query.exemplar for s in scan(query.expr).selectors}
    assert asked == histograms == {f"{PREFIX}probe_ttft_seconds_bucket", f"{PREFIX}probe_itl_seconds_bucket"}
    for panel in (p for document in _documents().values() for p in document["panels"] if p["type"] == "heatmap"):
        (target,) = panel["targets"]
        assert (target["format"], target["exemplar"], target["range"]) == ("heatmap", True, True)
        assert target["legendFormat"] == "{{le}}"
        assert panel["options"]["calculate"] is False
        assert panel["options"]["yAxis"]["unit"] == "s"


def test_the_phases_of_a_probe_are_parts_of_a_whole() -> None:
    stacked = _panel("streaming", "Where the time of a probe goes")["fieldConfig"]["defaults"]["custom"]
    assert stacked["stacking"] == {"group": "A", "mode": "normal"}
    assert "stacking" not in _panel("streaming", "Token jitter")["fieldConfig"]["defaults"]["custom"]


def test_what_needs_probes_says_so() -> None:
    for board, panel, query in _queries():
        if "probe_" in query.expr or "otlp_" in query.expr:
            assert query.optional, f"{board.name}: {panel.title}"


def test_panels_fill_their_lines_without_overlap() -> None:
    for board in _boards():
        cells = [
            (x, y)
            for _, place in places(board)
            for x in range(place.x, place.x + place.width)
            for y in range(place.y, place.y + place.height)
        ]
        assert len(cells) == len(set(cells)) == COLUMNS * (1 + max(y for _, y in cells))


def test_a_line_that_is_not_full_or_not_level_is_refused() -> None:
    panel = replace(next(_boards()[0].panels()), width=12)
    for row in (Row("short", (panel,)), Row("uneven", (panel, replace(panel, height=9)))):
        with pytest.raises(ValueError, match=row.title):
            replace(_boards()[0], rows=(row,))


def test_configmaps_hold_the_same_boards_under_the_sidecars_label() -> None:
    for name, text in configmaps(DEFAULT).items():
        assert len(text) < MAX_BYTES
        document = yaml.safe_load(text)
        board = name.removesuffix(".configmap.yaml")
        assert (document["apiVersion"], document["kind"]) == ("v1", "ConfigMap")
        assert document["metadata"]["labels"] == {SIDECAR_LABEL: "1"}
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", document["metadata"]["name"])
        assert document["data"] == {f"ufwatch-{board}.json": files(DEFAULT)[f"{board}.json"]}


def test_grafanas_published_types_allow_every_board() -> None:
    packages = os.environ.get("UFWATCH_GRAFANA_TYPES")
    if not packages or shutil.which("node") is None:
        pytest.skip("needs node, and UFWATCH_GRAFANA_TYPES naming a folder with npm's @grafana/schema and typescript")
    assert complaints(Path(packages), files(DEFAULT)) == []
