"""The linter: no board has a fault, and every rule finds the fault it is for."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from ufwatch.render.board import BoardSettings
from ufwatch.render.board_lint import faults
from ufwatch.render.boards import BOARDS, files

SETTINGS = BoardSettings()
DOCUMENTS = {name.removesuffix(".json"): json.loads(text) for name, text in files(SETTINGS).items()}
Spoil = Callable[[dict[str, Any]], object]


def _panel(board: dict[str, Any]) -> Any:
    return next(panel for panel in board["panels"] if panel["title"] == "Tokens per second")


def _expr(expression: str) -> Spoil:
    def spoil(board: dict[str, Any]) -> None:
        _panel(board)["targets"][0]["expr"] = expression

    return spoil


def _variable(name: str, **changes: object) -> Spoil:
    def spoil(board: dict[str, Any]) -> None:
        (one,) = (one for one in board["templating"]["list"] if one["name"] == name)
        one.update(changes)

    return spoil


_WHO = '{job=~"$job",instance=~"$instance"}'
_ANY = 'job=~"$job",instance=~"$instance"'


@pytest.mark.parametrize("name", BOARDS)
def test_no_board_has_a_fault(name: str) -> None:
    fixed = [panel.title for panel in BOARDS[name](SETTINGS).panels() if panel.fixed_windows]
    assert faults(DOCUMENTS[name], fixed) == []


@pytest.mark.parametrize("name", ["slo", "memory", "gpu"])
def test_windows_of_their_own_are_a_fault_unless_they_have_a_reason(name: str) -> None:
    assert {fault.partition(":")[0] for fault in faults(DOCUMENTS[name])} <= {"target-rate-interval-rule"}


@pytest.mark.parametrize(
    ("rule", "spoil"),
    [
        ("uneditable-dashboard-rule", lambda b: b.update(editable=True)),
        ("uid", lambda b: b.update(uid="")),
        ("ids", lambda b: b["panels"][1].update(id=b["panels"][2]["id"])),
        ("titles", lambda b: b["panels"][1].update(title=b["panels"][2]["title"])),
        ("template-datasource-rule", lambda b: b["templating"]["list"].pop(0)),
        ("template-datasource-rule", _variable("datasource", label="Prometheus")),
        ("template-job-rule", _variable("job", allValue=".*")),
        ("template-instance-rule", _variable("instance", multi=False)),
        ("template-target-rule", _variable("target", datasource={"uid": "prom"})),
        ("template-on-time-change-reload-rule", _variable("model", refresh=1)),
        ("template-label-promql-rule", _variable("target", query="label_values(ufwatch_nothing, target)")),
        ("template-order", lambda b: b["templating"]["list"].reverse()),
        ("panel-title-description-rule", lambda b: _panel(b).update(description="")),
        ("panel-datasource-rule", lambda b: _panel(b).update(datasource={"uid": "prom"})),
        ("panel-datasource-rule", lambda b: _panel(b)["targets"][0].update(datasource={"uid": "prom"})),
        ("panel-units-rule", lambda b: _panel(b)["fieldConfig"]["defaults"].update(unit="tokens")),
        ("panel-no-targets-rule", lambda b: _panel(b).update(targets=[])),
        ("no-value", lambda b: _panel(b)["fieldConfig"]["defaults"].update(noValue="")),
        ("thresholds", lambda b: _panel(b)["fieldConfig"]["defaults"]["thresholds"]["steps"][0].update(value=1)),
        ("ref-ids", lambda b: _panel(b)["targets"][0].update(refId="B")),
        ("legends", lambda b: _panel(b)["targets"][0].update(legendFormat="decode")),
        ("legends", lambda b: _panel(b)["targets"][0].update(legendFormat="{{colour}}")),
        ("grid", lambda b: _panel(b)["gridPos"].update(x=1)),
        ("grid", lambda b: _panel(b)["gridPos"].update(h=1)),
        ("grid", lambda b: _panel(b)["gridPos"].update(w=25)),
        ("target-promql-rule", _expr("ufwatch_targets{;}")),
        ("target-promql-rule", _expr("1")),
        ("target-promql-rule", _expr(f"ufwatch_nothing{_WHO}")),
        ("target-promql-rule", _expr(f'ufwatch_targets{{{_ANY},target="a"}}')),
        ("target-promql-rule", _expr(f"max by (uuid) (ufwatch_targets{_WHO})")),
        ("target-job-rule", _expr('ufwatch_targets{instance=~"$instance"}')),
        ("target-instance-rule", _expr('ufwatch_targets{job=~"$job",instance="$instance"}')),
        ("target-counter-agg-rule", _expr(f"ufwatch_scrapes_total{_WHO}")),
        ("target-counter-agg-rule", _expr(f"deriv(ufwatch_scrapes_total{_WHO}[$__rate_interval])")),
        ("target-counter-agg-rule", _expr(f"rate(ufwatch_targets{_WHO}[$__rate_interval])")),
        ("target-rate-interval-rule", _expr(f"rate(ufwatch_scrapes_total{_WHO}[5m])")),
        ("sources", _expr(f"sum (rate(ufwatch_kv_evictions_total{_WHO}[$__rate_interval]))")),
        ("sources", _expr(f"ufwatch_token_jitter_seconds{_WHO}")),
        ("sources", _expr(f"avg by (target) ((ufwatch_token_jitter_seconds{_WHO}))")),
    ],
)
def test_each_rule_finds_its_fault(rule: str, spoil: Spoil) -> None:
    board = copy.deepcopy(DOCUMENTS["overview"])
    spoil(board)
    assert rule in {fault.partition(":")[0] for fault in faults(board)}
