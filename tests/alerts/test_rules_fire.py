"""Every alert fires on what it is for, on time, and is silent on what is near to it: promtool on the scenes."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.alerts.scenes import scenes
from tests.alerts.scenes_agent import days
from tests.alerts.scenes_serving import jitter
from tests.alerts.series import UP
from tests.alerts.stage import Scene
from tests.alerts.unit_tests import FILE, committed, text, variants
from tests.tools import require_tool
from ufwatch.alerts_catalogue import alerts
from ufwatch.render.rules import rule_files
from ufwatch.rule_forms import RuleOptions

NAMES = [alert.name for alert in alerts(RuleOptions())]


def _passes(file: Path) -> None:
    promtool = require_tool("promtool")
    done = subprocess.run(
        [promtool, "test", "rules", file.name], cwd=file.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _run(work: Path, options: RuleOptions, chosen: Iterable[Scene], evaluate: float) -> None:
    for name, content in rule_files(options).items():
        (work / name).write_text(content, encoding="utf-8")
    file = work / "alerts_test.yml"
    file.write_text(text(options, chosen, evaluate=evaluate, quiet_too=False), encoding="utf-8")
    _passes(file)


def test_the_committed_unit_tests_are_the_scenes() -> None:
    assert FILE.read_text(encoding="utf-8") == committed()


def test_the_committed_rules_pass_the_committed_unit_tests() -> None:
    _passes(FILE)


@pytest.mark.parametrize("seconds", [30.0, 60.0])
def test_at_longer_scrape_intervals(seconds: float, tmp_path: Path) -> None:
    _run(tmp_path, RuleOptions(interval_seconds=seconds), scenes(seconds), 15)


@pytest.mark.parametrize(("seconds", "evaluate"), [(1.0, 5.0), (30.0, 10.0), (25.0, 60.0)])
def test_jitter_between_scrapes(seconds: float, evaluate: float, tmp_path: Path) -> None:
    """Rules are evaluated at other moments than scrapes are made: a missed scrape must not show at any of them."""
    _run(tmp_path, RuleOptions(interval_seconds=seconds), jitter(seconds), evaluate)


def test_budgets_that_take_days(tmp_path: Path) -> None:
    _run(tmp_path, RuleOptions(), days(), 900)


def test_every_alert_has_scenes_that_fire_and_scenes_that_do_not() -> None:
    fires: dict[str, set[str]] = defaultdict(set)
    quiet: dict[str, set[str]] = defaultdict(set)
    for scene in scenes(15):
        for variant in variants(scene):
            (fires if variant.fires else quiet)[scene.fires].add(variant.name)
    for name in NAMES:
        assert any("one scrape missed" in one for one in fires[name]), name
        for kind in ("idle", "absent", "NaN", "agent restarted"):
            assert any(kind in one for one in quiet[name]), (name, kind)
    assert len(quiet[""]) >= 30


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_that_fires_fails_where_the_alert_is_taken_away(name: str, tmp_path: Path) -> None:
    """The scenes do see what they say: without the alert promtool complains of its firing scenes, and only of them."""
    promtool = require_tool("promtool")
    options = RuleOptions()
    files = rule_files(options)
    begin = files["alerts.yml"].index(f"      - alert: {name}\n")
    end = files["alerts.yml"].find("      - alert: ", begin + 10)
    rest = files["alerts.yml"][end:] if end > 0 else ""
    files["alerts.yml"] = files["alerts.yml"][:begin] + rest
    for file, content in files.items():
        (tmp_path / file).write_text(content, encoding="utf-8")
    firing = min((one for one in scenes(15) if one.fires == name and one.page), key=lambda one: len(one.page[UP]))
    one = text(options, [firing], quiet_too=False)
    (tmp_path / "alerts_test.yml").write_text(one, encoding="utf-8")
    done = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert name in done.stderr
