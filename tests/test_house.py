"""Imports go down only, third parties stay behind the files that name them, and starting is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ufwatch"

FLOORS = (
    ("model", "errors", "clock", "config", "address", "configschema"),
    (
        *("spec", "formula", "metrics", "families", "gpu_metrics", "catalogue", "thresholds"),
        *("rule_forms", "rule_settings", "recordings", "alert_words", "alerts_serving", "alerts_agent"),
        "alerts_catalogue",
    ),
    ("decode", "core", "render"),
    (
        "document",
        "objectivefile",
        "configpairs",
        "configprobes",
        "configfile",
        "precedence",
        "rules_lint",
        "sources",
        "sinks",
        "sim",
        "statefile",
        "trace",
    ),
    ("cardwatch", "keeper", "slo", "history", "pipeline", "probes", "receiving", "agent", "assemble", "web"),
    ("cli", "__main__"),
)
PURE = {name for floor in FLOORS[:3] for name in floor}
PINNED = {
    "pynvml": {"sources/nvml.py"},
    "aiohttp": {"sources", "web", "sim", "trace"},
    "yaml": {"cli/slo.py", "document.py", "configfile.py", "decode/file_sd.py", "web/toolkit.py"},
    "zmq": {"sources", "sim"},
    "msgspec": {"decode/kv_events.py", "sources/kv_events.py", "sim"},
    "uvloop": {"cli/run.py"},
    "bcrypt": {"web"},
    "prometheus_client": set(),
    "grafanalib": {"render/grafana.py"},
    "opentelemetry": {"trace"},
    "grpc": {"trace"},
    "numpy": set(),
    "torch": set(),
}
FORBIDDEN_AT_START = ("grpc", "opentelemetry", "grafanalib", "numpy", "torch", "prometheus_client")


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            if node.module == "ufwatch":
                yield from (f"ufwatch.{alias.name}" for alias in node.names)


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_imports_go_down_only() -> None:
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    wrong = []
    for path in _files():
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        assert here in floor_of, f"{here} stands on no floor"
        for module in _imports(path):
            there = _part(module) if module.startswith("ufwatch.") else ""
            if there and there in floor_of and floor_of[there] > floor_of[here]:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_the_lower_floors_are_pure() -> None:
    impure = ("asyncio", "socket", "time", "logging", "aiohttp", "threading", "random", "os", "subprocess")
    wrong = []
    for path in _files():
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if here not in PURE or path.name == "clock.py":
            continue
        wrong += [f"{path.relative_to(ROOT)} imports {m}" for m in _imports(path) if m.split(".")[0] in impure]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree)):
            wrong.append(f"{path.relative_to(ROOT)} awaits")
    assert wrong == []


def test_third_parties_stay_where_they_are_named() -> None:
    wrong = []
    for path in _files():
        where = path.relative_to(PACKAGE).as_posix()
        for module in _imports(path):
            allowed = PINNED.get(module.split(".")[0])
            if allowed is not None and where not in allowed and where.split("/")[0] not in allowed:
                wrong.append(f"{where} imports {module}")
    assert wrong == []


def test_no_file_is_named_for_nothing() -> None:
    assert not [p for p in _files() if p.stem in ("utils", "helpers", "manager", "common", "util", "misc")]


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, ufwatch; print(*[m for m in sys.modules if m.startswith('ufwatch')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["ufwatch"]


def test_the_agent_imports_nothing_it_does_not_need() -> None:
    code = f"import sys, ufwatch.cli.run; print(*[m for m in {FORBIDDEN_AT_START!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


def test_exporters_need_nothing_but_the_standard_library() -> None:
    """They run inside somebody's server: what it has is looked up there, and nothing of ours is."""
    for path in sorted((ROOT / "exporters").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names.append(node.module or "")
            strange = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
            assert not strange, f"{path}: {strange}"
