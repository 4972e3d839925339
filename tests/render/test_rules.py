"""The rule files: exactly twelve alerts on metrics that exist, each with its runbook, committed as generated."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.tools import require_tool
from ufwatch import catalogue
from ufwatch.alerts_catalogue import alerts
from ufwatch.decode.promql import metrics, parse
from ufwatch.recordings import groups
from ufwatch.render.block_yaml import block_yaml
from ufwatch.render.rules import dashboard_url, rule_files
from ufwatch.rule_forms import RuleOptions, duration
from ufwatch.rules_lint import lint_file
from ufwatch.spec import PREFIX, Kind
from ufwatch.thresholds import Thresholds

ALERTS = Path(__file__).parents[2] / "alerts"
OPTIONS = RuleOptions()
FILES = rule_files(OPTIONS)
INTERVALS = [1.0, 5.0, 15.0, 18.0, 20.0, 30.0, 60.0]
SECTIONS = ["Meaning", "First three checks", "Causes", "Remedy", "When to silence"]
BOARDS = {"ufwatch-overview", "ufwatch-slo", "ufwatch-streaming", "ufwatch-memory", "ufwatch-gpu"}


def _rules(name: str, files: dict[str, str] = FILES) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(files[name])["groups"] for rule in group["rules"]]


def test_the_committed_files_are_the_generated_ones() -> None:
    for name, text in FILES.items():
        assert (ALERTS / name).read_text(encoding="utf-8") == text, name


def test_there_are_exactly_twelve_alerts() -> None:
    names = [rule["alert"] for rule in _rules("alerts.yml")]
    assert names == [
        "UfwatchTokenJitterHigh",
        "UfwatchPageTableMissHigh",
        "UfwatchKvThrashing",
        "UfwatchPinnedAllocFailing",
        "UfwatchGraphCompileSlow",
        "UfwatchEngineStalled",
        "UfwatchPrefillDecodeImbalance",
        "UfwatchSloBurnFast",
        "UfwatchSloBurnSlow",
        "UfwatchTelemetryStale",
        "UfwatchMemoryBreakerOpen",
        "UfwatchGpuHardwareAgeing",
    ]


def test_every_alert_says_what_to_do() -> None:
    for rule in _rules("alerts.yml"):
        name = rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["labels"]["component"] == "ufwatch"
        assert "for" in rule
        assert rule["keep_firing_for"] != "0s"
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url"}
        assert rule["annotations"]["runbook_url"].endswith(f"/{name}.md")


def test_every_metric_is_a_family_or_recorded_by_these_rules() -> None:
    recorded = [rule["record"] for rule in _rules("recording.yml")]
    assert len(recorded) == len(set(recorded))
    known = {f"{PREFIX}{family}" for family in catalogue.FAMILY} | {"up"} | set(recorded)
    used: set[str] = set()
    for rule in (*_rules("recording.yml"), *_rules("alerts.yml")):
        used |= metrics(parse(rule["expr"]))
    assert used - known == set()
    assert set(recorded) - used == set(), "recorded for nothing"


def test_every_label_of_a_matcher_is_one_the_family_has() -> None:
    for rule in (*_rules("recording.yml"), *_rules("alerts.yml")):
        for name, inside in re.findall(rf"\b{PREFIX}([a-z0-9_]+){{([^}}]*)}}", rule["expr"]):
            family = catalogue.FAMILY[name]
            assert set(re.findall(r"(\w+)=", inside)) <= {"job", *family.labels}, name


@pytest.mark.parametrize("seconds", INTERVALS)
def test_a_gauge_enters_only_over_two_and_a_half_scrapes_and_a_rate_over_four(seconds: float) -> None:
    files = rule_files(replace(OPTIONS, interval_seconds=seconds))
    jitter = duration(max(60, 2.5 * seconds))
    for rule in (*_rules("recording.yml", files), *_rules("alerts.yml", files)):
        for name in re.findall(rf"\b({PREFIX}[a-z0-9_]+|up){{", rule["expr"]):
            family = catalogue.FAMILY.get(name.removeprefix(PREFIX))
            for function, window in re.findall(rf"(\w+)\({name}{{[^}}]*}}\[(\w+)\]", rule["expr"]):
                if family is not None and family.kind is Kind.COUNTER:
                    assert function in ("rate", "increase")
                    assert window == jitter or _seconds(window) >= max(300, 4 * seconds)
                else:
                    assert function in ("min_over_time", "max_over_time", "absent_over_time")
                    assert _seconds(window) >= 2.5 * seconds
            bare = len(re.findall(rf"\b{name}{{", rule["expr"]))
            assert bare == len(re.findall(rf"_over_time\({name}{{|(?:rate|increase)\({name}{{", rule["expr"])), name


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[text[-1]]


@pytest.mark.parametrize(
    ("seconds", "window", "hold"), [(1, "1m", "5m"), (15, "1m", "5m"), (30, "75s", "315s"), (60, "150s", "390s")]
)
def test_jitter_follows_the_scrape_interval(seconds: float, window: str, hold: str) -> None:
    files = rule_files(replace(OPTIONS, interval_seconds=seconds))
    recorded = {rule["record"]: rule["expr"] for rule in _rules("recording.yml", files)}
    expression = recorded["engine:ufwatch_token_jitter_histogram:stddev"]
    assert set(re.findall(r"\[(\w+)\]", expression)) == {window}
    assert _rules("alerts.yml", files)[0]["for"] == hold


def test_our_own_lint_has_nothing_to_say() -> None:
    for name in ("alerts.yml", "prometheusrule.yaml"):
        assert lint_file(ALERTS / name) == ()


def test_every_division_is_by_more_than_nothing() -> None:
    for rule in _rules("recording.yml"):
        assert rule["expr"].count("/") <= rule["expr"].count("> 0") + rule["expr"].count("(1 - slo:"), rule["record"]


def test_promtool_finds_nothing(tmp_path: Path) -> None:
    promtool = require_tool("promtool")
    for seconds in (1.0, 15.0, 60.0):
        files = rule_files(RuleOptions(job='a "b" \\c', interval_seconds=seconds, thresholds=Thresholds(jitter=0.08)))
        for name in ("recording.yml", "alerts.yml"):
            (tmp_path / name).write_text(files[name], encoding="utf-8")
        done = subprocess.run(
            [promtool, "check", "rules", "--lint=all", "--lint-fatal", "recording.yml", "alerts.yml"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_prometheusrule_holds_the_same_groups() -> None:
    document = yaml.safe_load(FILES["prometheusrule.yaml"])
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    both = [yaml.safe_load(FILES[name])["groups"] for name in ("recording.yml", "alerts.yml")]
    assert document["spec"]["groups"] == [*both[0], *both[1]]


def test_the_header_names_what_the_files_were_made_with() -> None:
    options = RuleOptions(
        job="gpu agents",
        interval_seconds=30,
        runbook_url="https://r/x",
        grafana_url="https://g",
        thresholds=Thresholds(jitter=0.08),
    )
    for text in rule_files(options).values():
        head = text.split("groups:")[0].split("route:")[0]
        assert (
            "--job 'gpu agents' --interval 30s --runbook-url https://r/x --grafana-url https://g --set jitter=0.08"
            in head
        )


def test_every_threshold_changes_a_rule() -> None:
    for name in Thresholds.__dataclass_fields__:
        files = rule_files(RuleOptions(thresholds=Thresholds(**{name: getattr(OPTIONS.thresholds, name) * 0.937})))
        assert [rule["expr"] for rule in _rules("alerts.yml", files)] != [r["expr"] for r in _rules("alerts.yml")], name


def test_every_alert_has_a_runbook_with_its_five_sections() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ALERTS / "runbooks").iterdir()}
    assert set(pages) == {alert.name for alert in alerts(OPTIONS)}
    for alert in alerts(OPTIONS):
        page = pages[alert.name]
        assert page.startswith(f"# {alert.name}\n\n{alert.severity} · ")
        assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
        checks = page.split("## First three checks")[1].split("## Causes")[0]
        assert re.findall(r"^(\d)\. ", checks, re.MULTILINE) == ["1", "2", "3"]
        assert checks.count("```sh") == 3
        for section in re.split(r"^## .+$", page, flags=re.MULTILINE)[1:]:
            assert len(section.split()) >= 10, alert.name


def test_metrics_that_runbooks_name_exist() -> None:
    recorded = {rule.name for group in groups(OPTIONS) for rule in group.rules}
    for path in (ALERTS / "runbooks").iterdir():
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"\b(?:target|engine|target_slo):ufwatch_\w+:\w+", text)) <= recorded
        for name in re.findall(r"\bufwatch_([a-z0-9_]+_(?:total|ratio|seconds))\b(?!:)", text):
            assert name in catalogue.FAMILY, (path.name, name)


def test_a_dashboard_opens_on_what_the_alert_is_about() -> None:
    names = {"target": "var-target", "model_name": "var-model", "instance": "var-instance", "gpu": "var-gpu"}
    for alert in alerts(OPTIONS):
        url = dashboard_url(alert, OPTIONS)
        assert urlsplit(url).path.removeprefix("/d/") == alert.board
        assert alert.board in BOARDS
        asked = {key for key in parse_qs(urlsplit(url).query, keep_blank_values=True) if key.startswith("var-")}
        given = {names[label] for label in (*alert.labels, *alert.optional) if label in names}
        assert asked == {key for key in given if f"&{key}=" in url}
        for label in (*alert.labels, *alert.optional):
            assert (f"$labels.{label}" in url) == (label in names), alert.name


@pytest.mark.parametrize(
    "value",
    [
        {
            "a": "plain",
            "b": "yes",
            "c": "1.5",
            "d": "",
            "e": " padded ",
            "f": "a: b",
            "g": "#no",
            "h": 'ü\n"',
            "i": "5m",
        },
        {
            "list": [{"a": 1, "b": True}, "x\ny", "x\n\ny", 'q"', "- dash", "null", "~", "0x1F", "1e3", "12:30"],
            "none": [],
            "empty": {},
        },
    ],
)
def test_block_yaml_is_read_as_it_was_written(value: Any) -> None:
    assert yaml.safe_load(block_yaml(value)) == value
