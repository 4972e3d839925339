"""``ufwatch alerts``: lists, writes, compares and lints, in the verb's own words and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Verb

FILES = ["alertmanager.yml", "alerts.yml", "prometheusrule.yaml", "recording.yml"]
CASE = Path(__file__).parents[1] / "cases" / "e04_rules_with_faults" / "rules.yml"


def test_lists_the_twelve(verb: Verb) -> None:
    code, out, complaints = verb("alerts")
    assert (code, complaints) == (0, "")
    assert len(out.splitlines()) == 12
    assert out.startswith("UfwatchTokenJitterHigh ")
    code, out, _ = verb("alerts", "--json", "--set", "jitter=80ms")
    rows = json.loads(out)["alerts"]
    assert len(rows) == 12
    assert "80 ms" in rows[0]["when"]


def test_writes_and_checks(verb: Verb, tmp_path: Path) -> None:
    where = str(tmp_path / "new" / "rules")
    assert verb("alerts", "--write", where) == (
        0,
        f"{where}: 4 of 4 files written, the others were as they should be\n",
        "",
    )
    assert sorted(path.name for path in Path(where).iterdir()) == FILES
    assert verb("alerts", "--check", where)[0] == 0
    code, out, _ = verb("alerts", "--check", where, "--set", "jitter=80ms")
    assert code == 1
    assert [line.partition(":")[0] for line in out.splitlines()] == [
        f"{where}/{name}" for name in ("recording.yml", "alerts.yml", "prometheusrule.yaml", "alertmanager.yml")
    ]
    (Path(where) / "alerts.yml").unlink()
    assert verb("alerts", "--check", where)[0] == 1


def test_prints_one_file(verb: Verb) -> None:
    code, out, _ = verb("alerts", "--print", "prometheusrule.yaml", "--job", "x/y")
    assert code == 0
    assert yaml.safe_load(out)["kind"] == "PrometheusRule"
    assert 'job="x/y"' in out
    code, out, complaints = verb("alerts", "--print", "nothing.yml")
    assert (code, out) == (2, "")
    assert complaints.startswith("ufwatch alerts: --print: no such file; choose from ")


def test_a_mistake_writes_nothing(verb: Verb, tmp_path: Path) -> None:
    code, out, complaints = verb("alerts", "--write", str(tmp_path / "a"), "--set", "x=1", "--interval", "2m")
    assert (code, out) == (2, "")
    assert len(complaints.splitlines()) == 2
    assert not (tmp_path / "a").exists()


def test_factors_are_checked_against_the_configured_slos(verb: Verb, tmp_path: Path) -> None:
    config = tmp_path / "ufwatch.yaml"
    config.write_text('slos: ["ttft < 800ms, 99%"]')
    assert verb("alerts", "--config", str(config), "--set", "burn_fast=50")[0] == 0
    code, _, complaints = verb("alerts", "--config", str(config), "--set", "burn_fast=100")
    assert code == 2
    assert complaints.startswith("ufwatch alerts: burn_fast: 100 can never be reached (")


def test_the_rules_follow_the_names_and_the_interval_of_the_configuration(verb: Verb, tmp_path: Path) -> None:
    config = tmp_path / "ufwatch.yaml"
    config.write_text(
        'interval: 60s\nslos: ["chat: ttft < 500ms, 95%", "bot: ttft < 3s, 95%", "up: availability, 99.9%"]'
    )
    code, rules, _ = verb("alerts", "--config", str(config), "--print", "alerts.yml")
    assert code == 0
    assert "--interval 60s" in rules
    assert "for the SLOs chat, bot, up." in rules
    assert rules.count('ufwatch_slo_burning:rate1h{slo=~"chat|bot"}') == 2
    _, routes, _ = verb("alerts", "--config", str(config), "--print", "alertmanager.yml")
    inhibitions = yaml.safe_load(routes)["inhibit_rules"]
    assert inhibitions[0]["target_matchers"][-1] == 'slo != "up"'
    assert inhibitions[1]["source_matchers"][-1] == 'slo = "up"'
    _, faster, _ = verb("alerts", "--interval", "15s", "--print", "alerts.yml")
    assert "--interval 15s" in faster


def test_all_files_or_none(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").mkdir()
    code, out, complaints = verb("alerts", "--write", str(tmp_path))
    assert (code, out) == (2, "")
    assert complaints == f"--write: {tmp_path}/alerts.yml: cannot be written (Is a directory); give another folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["alerts.yml"]


def test_a_folder_that_cannot_be_written(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, out, complaints = verb("alerts", "--write", str(tmp_path / "file" / "a"))
    assert (code, out) == (2, "")
    assert len(complaints.splitlines()) == 1


def test_lint(verb: Verb, tmp_path: Path) -> None:
    code, out, complaints = verb("alerts", "--lint", str(CASE))
    assert (code, complaints) == (1, "")
    assert [line.split(": ")[1] for line in out.splitlines()] == [
        "NoComparison",
        "ValueInLabel",
        "UnguardedRatio",
        "NoFor",
    ]
    assert out.startswith(f"{CASE}:4: NoComparison: expression without comparison; ")
    sound = tmp_path / "sound.yml"
    sound.write_text("groups: [{name: a, rules: [{alert: A, expr: 'up == 0', for: 5m}]}]")
    assert verb("alerts", "--lint", str(sound)) == (0, "no findings\n", "")
    code, out, complaints = verb("alerts", "--lint", str(sound), str(tmp_path / "none.yml"), str(CASE))
    assert code == 2
    assert len(out.splitlines()) == 4
    assert (
        complaints
        == f"{tmp_path}/none.yml: cannot be read (No such file or directory); check the path and its permissions\n"
    )
    code, out, _ = verb("alerts", "--lint", str(CASE), "--json")
    assert code == 1
    assert {row["rule"] for row in json.loads(out)["findings"]} >= {"NoFor"}


@pytest.mark.parametrize("words", [("--write", "a", "--check"), ("--lint",), ("--sets", "a=b")])
def test_flags_that_do_not_go(verb: Verb, words: tuple[str, ...]) -> None:
    code, out, complaints = verb("alerts", *words)
    assert (code, out) == (2, "")
    assert len(complaints.splitlines()) == 1


def test_alerts_that_wait_for_an_slo_which_nobody_has_are_named(verb: Verb, tmp_path: Path) -> None:
    config = tmp_path / "ufwatch.yaml"
    config.write_text('slos: ["e2e < 30s, 95%", "availability, 99.9%"]\n', encoding="utf-8")
    code, _, complaints = verb("alerts", "--config", str(config), "--print", "alerts.yml")
    assert code == 0
    assert complaints.startswith("ufwatch alerts: no SLO judges ttft, so UfwatchPageTableMissHigh by tokens")
    assert complaints.count("\n") == 1
