"""The distribution: nothing but the standard library and vLLM's own modules, and the observers in it."""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.exporters.vllm.fake_vllm import EXPORTER

PACKAGE = EXPORTER / "ufwatch_vllm"
PROJECT = tomllib.loads((EXPORTER / "pyproject.toml").read_text())["project"]


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def test_the_observers_are_those_of_the_torch_exporter() -> None:
    link = PACKAGE / "observers"
    assert link.is_symlink()
    assert link.resolve() == EXPORTER.parent / "torch" / "ufwatch_torch"


def test_standard_library_only() -> None:
    assert PROJECT["dependencies"] == []
    for path in PACKAGE.rglob("*.py"):
        foreign = {name.split(".")[0] for name in _imports(path)} - set(sys.stdlib_module_names)
        assert foreign == set(), path


def test_one_name_in_both_groups() -> None:
    """The allowlist VLLM_PLUGINS works by name: the logger must not load where its guard did not."""
    groups = PROJECT["entry-points"]
    assert {group: set(entries) for group, entries in groups.items()} == {
        "vllm.general_plugins": {"ufwatch"},
        "vllm.stat_logger_plugins": {"ufwatch"},
    }


def test_entry_points_are_there() -> None:
    for entries in PROJECT["entry-points"].values():
        for value in entries.values():
            module, name = value.split(":")
            tree = ast.parse((EXPORTER / f"{module.replace('.', '/')}.py").read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert callable(importlib.import_module("ufwatch_vllm.plugin").register)


def test_no_file_is_long() -> None:
    assert not [path for path in PACKAGE.rglob("*.py") if len(path.read_text().splitlines()) > 300]
