"""The README is true: its tables are the catalogue's, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

from ufwatch.cli.main import VERBS
from ufwatch.render.reference import signals_table

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def _generated(name: str) -> str:
    found = re.search(rf"<!-- generated: {name} -->\n(.*?)\n?<!-- end -->", README, re.DOTALL)
    assert found is not None
    return found[1].strip()


def test_the_table_of_signals_is_the_catalogues() -> None:
    assert _generated("signals") == signals_table()


def test_every_verb_it_names_exists() -> None:
    named = set(
        re.findall(r"\bufwatch (run|once|top|doctor|demo|signals|slo|alerts|trace|gateway|engine|bench)\b", README)
    )
    assert named == set(VERBS)


def test_every_module_it_names_exists() -> None:
    package = Path(__file__).parents[1] / "ufwatch"
    table = README.split("## Map of the code")[1].split("**To add")[0]
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]*)?)`", table):
        where = package / name.rstrip("/")
        assert where.is_dir() or where.with_suffix(".py").is_file() or name.startswith("tests"), name
