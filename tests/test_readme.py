"""The README is true: its commands exist, its tables are the catalogue's.

``python -m tests.test_readme`` writes the tables anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.performance import report
from ufwatch.cli.main import VERBS
from ufwatch.render.reference import reasons_table, signals_table

FILE = Path(__file__).parents[1] / "README.md"
README = FILE.read_text(encoding="utf-8")
TABLES = {"signals": signals_table, "reasons": reasons_table, "budgets": lambda: report.table(report.load())}


def _generated(text: str) -> str:
    """The README with every generated table made anew."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
        text, found = re.subn(pattern, lambda m, t=table: f"{m[1]}{t()}\n{m[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
        assert found == 1, name
    return text


def test_the_generated_tables_are_the_catalogues() -> None:
    assert _generated(README) == README


def test_every_verb_it_names_exists() -> None:
    named = set(
        re.findall(
            r"\bufwatch (run|once|top|doctor|demo|signals|slo|alerts|dashboards|trace|gateway|engine|bench)\b", README
        )
    )
    assert named == set(VERBS)


def test_every_module_it_names_exists() -> None:
    package = Path(__file__).parents[1] / "ufwatch"
    table = README.split("## Map of the code")[1].split("**To add")[0]
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]*)?)`", table):
        where = package / name.rstrip("/")
        assert where.is_dir() or where.with_suffix(".py").is_file() or name.startswith("tests"), name


if __name__ == "__main__":
    FILE.write_text(_generated(README), encoding="utf-8")
