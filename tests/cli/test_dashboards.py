"""``ufwatch dashboards``: the list, the files, the check, the ConfigMaps, and one line for every mistake."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Verb
from tests.processes import one_line
from ufwatch.render.board import BoardSettings
from ufwatch.render.boards import BOARDS, configmaps, files
from ufwatch.thresholds import Thresholds


def test_without_an_action_the_boards_are_listed(verb: Verb) -> None:
    code, out, complaints = verb("dashboards")
    assert (code, complaints) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[::2]] == [f"{name}.json" for name in BOARDS]
    code, out, _ = verb("dashboards", "--json")
    rows = json.loads(out)["dashboards"]
    assert [row["uid"] for row in rows] == [f"ufwatch-{name}" for name in BOARDS]
    assert all(row["panels"] > 10 and row["queries"] > row["panels"] for row in rows)


def test_written_files_pass_the_check_and_are_not_written_again(verb: Verb, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "boards"
    assert verb("dashboards", "--write", str(folder))[:2] == (
        0,
        f"{folder}: 5 of 5 files written, the others were as they should be\n",
    )
    assert {path.name: path.read_text() for path in folder.iterdir()} == files(BoardSettings())
    before = {path: path.stat().st_ino for path in folder.iterdir()}
    assert verb("dashboards", "--write", str(folder))[1].startswith(f"{folder}: 0 of 5")
    assert {path: path.stat().st_ino for path in folder.iterdir()} == before
    assert verb("dashboards", "--check", str(folder))[0] == 0


def test_written_files_are_for_whoever_could_read_a_file_made_here(verb: Verb, tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        verb("dashboards", "--write", str(tmp_path))
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}


def test_the_check_names_what_differs_or_is_missing(verb: Verb, tmp_path: Path) -> None:
    verb("dashboards", "--write", str(tmp_path))
    (tmp_path / "slo.json").write_text("{}\n")
    (tmp_path / "gpu.json").unlink()
    code, out, complaints = verb("dashboards", "--check", str(tmp_path))
    assert (code, complaints) == (1, "")
    named = [line.partition(":")[0] for line in out.splitlines()]
    assert named == [str(tmp_path / "slo.json"), str(tmp_path / "gpu.json")]


def test_the_check_looks_at_the_folder_dashboards_by_itself(
    verb: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert verb("dashboards", "--write", "dashboards")[0] == 0
    assert verb("dashboards", "--check")[0] == 0
    assert verb("dashboards", "--check", "--interval", "30s")[0] == 1


def test_configmaps_are_printed_or_written(verb: Verb, tmp_path: Path) -> None:
    code, out, _ = verb("dashboards", "--configmaps", "--job", "ufwatch")
    documents = list(yaml.safe_load_all(out))
    assert code == 0
    assert [one["kind"] for one in documents] == ["ConfigMap"] * 5
    assert "--job ufwatch" in out
    assert verb("dashboards", "--configmaps", "--write", str(tmp_path))[0] == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == configmaps(BoardSettings())
    assert verb("dashboards", "--configmaps", "--check", str(tmp_path))[0] == 0


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("--interval", "61s"), "--interval"),
        (("--interval", "soon"), "--interval"),
        (("--job", ""), "--job"),
        (("--job", "a\nb"), "--job"),
        (("--grafana-url", "grafana"), "--grafana-url"),
        (("--grafana-url", "http://u:secret@h"), "--grafana-url"),
        (("--runbook-url", "ftp://wiki"), "--runbook-url"),
        (("--set", "colour=3"), "--set colour"),
        (("--set", "jitter=fast"), "--set jitter"),
        (("--check", "/nowhere/at/all"), "--check"),
        (("--write", "/proc/nothing"), "--write"),
        (("--write", "a", "--check"), "--check"),
    ],
)
def test_a_mistake_is_one_line_and_two(verb: Verb, words: tuple[str, ...], about: str) -> None:
    code, out, complaints = verb("dashboards", *words)
    assert (code, out) == (2, "")
    assert about in one_line(complaints)
    assert "secret" not in complaints


def test_thresholds_are_set_as_for_the_alerts(verb: Verb, tmp_path: Path) -> None:
    assert verb("dashboards", "--write", str(tmp_path), "--set", "jitter=80ms", "--set", "kv_usage=95%")[0] == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files(
        BoardSettings(thresholds=Thresholds(jitter=0.08, kv_usage=0.95))
    )


def test_mistakes_are_told_at_once(verb: Verb) -> None:
    _, _, complaints = verb("dashboards", "--interval", "0", "--job", "http://a", "--grafana-url", "b")
    assert [line.split()[2] for line in complaints.splitlines()] == ["--interval:", "--job:", "--grafana-url:"]


def test_a_folder_that_is_a_file_cannot_be_written(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, complaints = verb("dashboards", "--write", str(tmp_path / "file"))
    assert code == 2
    assert str(tmp_path / "file") in one_line(complaints)
