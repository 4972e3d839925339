"""The lint of people's own rule files: every planted fault is named, and sound rules pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ufwatch.errors import ConfigError
from ufwatch.rules_lint import lint_file

CASE = Path(__file__).parent / "cases" / "e04_rules_with_faults"


def test_the_case() -> None:
    expected = json.loads((CASE / "expected.json").read_text(encoding="utf-8"))["lint"]
    found = lint_file(CASE / "rules.yml")
    assert {one.rule: one.fault.rstrip(":") for one in found} == {
        name: fault.rstrip(":") for name, fault in expected.items() if fault != "no finding"
    }
    assert len(found) == 4
    assert [one.line for one in found] == [4, 9, 14, 19]


def _lint(tmp_path: Path, expression: str, **rule: object) -> list[str]:
    file = tmp_path / "rules.json"
    document = {"alert": "A", "expr": expression, "for": "5m", **rule}
    file.write_text(json.dumps({"groups": [{"name": "g", "rules": [document]}]}), encoding="utf-8")
    return [one.fault for one in lint_file(file)]


@pytest.mark.parametrize(
    "expression",
    [
        "up == 0",
        'absent(up{job="a"})',
        "a > 1 and on (x) b",
        "(a > 5) * on (x) group_left (y) info",
        "a unless b",
        "count(up == 0)",
        "rate(a[5m]) / (rate(b[5m]) > 0) > 0.5",
        "rate(a[5m]) / rate(b[5m]) > 0.5 and rate(b[5m]) > 10",
        "used / total > 0.9",
        "rate(a[5m]) / 60 > 1",
        "histogram_quantile(0.99, sum by (le) (rate(x_bucket[5m]))) > 1",
        "ufwatch_token_jitter_seconds > 0.06",
        "ufwatch_mine:rate5m > 1",
        "vector(1)",
        "rate(a[5m]) / clamp_min(rate(b[5m]), 1) > 0.5",
        "rate(a[5m]) / (rate(b[5m]) + 1) > 0.5",
        "sum_over_time(a[5m]) / count_over_time(a[5m]) > 0.5",
        "rate(a[5m]) / rate(b[5m]) > 0.5 and 0 < rate(b[5m])",
        "rate(a[5m]) / rate(b[5m]) > 0.5 and rate(b[5m]) > (1 / 300)",
        "(rate(a[5m]) / rate(b[5m]) > 0.5) unless rate(b[5m]) == 0",
    ],
)
def test_sound_expressions(expression: str, tmp_path: Path) -> None:
    assert _lint(tmp_path, expression) == []


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("rate(a[5m])", "expression without comparison"),
        ("a > bool 1", "expression without comparison"),
        ("a / (b > 0)", "expression without comparison"),
        ("a > 1 or b", "expression without comparison"),
        ("1 - rate(a[5m]) / sum(increase(b[5m])) < 0.9", "ratio without a guard for an idle denominator"),
        ("ufwatch_token_jitter > 1", 'unknown metric "ufwatch_token_jitter"'),
        *(
            (f"rate(a[5m]) / rate(b[5m]) > 0.5 and rate(b[5m]) {idle}", "ratio without a guard for an idle denominator")
            for idle in (">= 0", "> -1", "!= 5", "> bool 0")
        ),
        (" + ".join(["a"] * 1500) + " > 1", "expression that cannot be read: has too many terms"),
        ("a >", "expression that cannot be read: unexpected 'end of expression'"),
    ],
)
def test_faulty_expressions(expression: str, fault: str, tmp_path: Path) -> None:
    assert _lint(tmp_path, expression) == [fault]


def test_a_rule_may_say_that_it_does_not_wait(tmp_path: Path) -> None:
    assert _lint(tmp_path, "a > 1", **{"for": "0s", "keep_firing_for": "5m"}) == []
    for zero in ("0s", "0", "0ms", "0h", "0d", "0h0m", 0):
        assert _lint(tmp_path, "a > 1", **{"for": zero}) == ["no for:"]


def test_values_in_labels_of_any_spelling(tmp_path: Path) -> None:
    assert _lint(tmp_path, "a > 1", labels={"x": "{{ .Value }}"}) == ["measured value in a label"]
    assert _lint(tmp_path, "a > 1", labels={"x": "{{ $labels.a }}"}) == []


def test_a_name_that_the_file_records_is_known(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    rules = "{record: ufwatch_mine, expr: 'sum(x)'}, {alert: A, expr: ufwatch_mine > 1, for: 1m}"
    file.write_text(f"groups: [{{name: g, rules: [{rules}]}}]", encoding="utf-8")
    assert lint_file(file) == ()


def test_recording_rules_need_no_comparison(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text("groups: [{name: g, rules: [{record: 'a:b:c', expr: 'sum(x)'}]}]", encoding="utf-8")
    assert lint_file(file) == ()


def test_a_prometheusrule_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "rule.yaml"
    file.write_text("kind: PrometheusRule\nspec: {groups: [{name: g, rules: [{alert: A, expr: x, for: 1m}]}]}\n")
    assert [one.fault for one in lint_file(file)] == ["expression without comparison"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1", "is no rule file"),
        ("[]", "is no rule file"),
        ("groups: [{name: a}]", r"groups\[0\]: has no list of rules"),
        ("groups: [1]", r"groups\[0\]: has no list of rules"),
        ("groups: [{rules: [1]}]", r"groups\[0\].rules\[0\]: is no rule"),
        ("groups: [", "line"),
        ("groups: []\ngroups: []", "groups"),
    ],
)
def test_what_is_no_rule_file(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=says) as raised:
        lint_file(file)
    assert "\n" not in str(raised.value)


def test_a_rule_without_an_expression(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text("groups: [{rules: [{alert: A}, {record: b}, {}]}]", encoding="utf-8")
    assert [(one.rule, one.fault) for one in lint_file(file)] == [
        ("A", "no expression"),
        ("b", "no expression"),
        ("groups[0].rules[2]", "no expression"),
    ]


def test_the_parts_of_a_histogram_are_known_and_its_bare_name_is_not(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    rule = "{{record: a, expr: 'histogram_quantile(0.9, rate(ufwatch_probe_ttft_seconds{0}[5m]))'}}"
    file.write_text(f"groups: [{{rules: [{rule.format('_bucket')}, {rule.format('')}]}}]", encoding="utf-8")
    assert [one.fault for one in lint_file(file)] == ['unknown metric "ufwatch_probe_ttft_seconds"']
