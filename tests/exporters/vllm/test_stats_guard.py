"""Statistics stay off where the user turned them off: the fake's engine client decides as the real ones do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exporters.vllm.fake_vllm import FakeVllm

RUN = """
load_general_plugins()
from vllm.v1.engine.async_llm import AsyncLLM
llm = AsyncLLM(config(), None, %s)
said(stats=llm.log_stats, loggers=[type(log).__name__ for log in llm.stat_loggers])
"""
OURS = {"stats": True, "loggers": ["ExactLogger"]}
OFF = {"stats": False, "loggers": []}


def test_statistics_on(fake: FakeVllm) -> None:
    assert fake.run(RUN % "True") == OURS
    assert fake.run(RUN % "log_stats=True") == OURS


def test_statistics_off(fake: FakeVllm) -> None:
    done = fake.ran("logging.basicConfig(level='INFO')\n" + RUN % "False")
    assert '"stats": false' in done.stdout
    assert done.stderr.count("no exact jitter: statistics are off (--disable-log-stats)") == 1
    assert fake.files() == {}


def test_statistics_asked_for(fake: FakeVllm) -> None:
    assert fake.run(RUN % "False", UFWATCH_WITH_STATS="1") == OURS
    assert fake.run(RUN % "False", UFWATCH_WITH_STATS="0") == OFF


def test_someone_else_turned_them_on(fake: FakeVllm) -> None:
    code = """
from vllm.v1.metrics.loggers import StatLoggerBase
class Other(StatLoggerBase):
    def __init__(self, *_): ...
    def record(self): ...
    def log_engine_initialized(self): ...
"""
    assert fake.run(code + RUN % "False, stat_loggers=[Other]") == {"stats": True, "loggers": ["Other", "ExactLogger"]}


@pytest.mark.parametrize("log_stats", [True, False])
def test_without_a_directory_it_is_as_if_not_installed(fake: FakeVllm, log_stats: bool) -> None:
    got = fake.run(RUN % log_stats, UFWATCH_EXPORT_DIR="", UFWATCH_WITH_STATS="1")
    assert got == {"stats": log_stats, "loggers": []}
    assert not fake.export.exists()


def test_no_other_hook_without_a_directory(fake: FakeVllm) -> None:
    code = """
load_general_plugins()
import vllm.v1.core.block_pool as b, vllm.v1.worker.worker_base as w
said(hooked=[hasattr(f, "__ufwatch__") for f in (b.BlockPool.get_cached_block, w.WorkerBase.__init__)])
"""
    assert fake.run(code, UFWATCH_EXPORT_DIR=" ") == {"hooked": [False, False]}
    assert fake.run(code) == {"hooked": [True, True]}


@pytest.mark.parametrize(("allowed", "expected"), [("ufwatch", OURS), ("", None), ("other", None)])
def test_the_list_of_allowed_plugins_holds_for_both(fake: FakeVllm, allowed: str, expected: object) -> None:
    got = fake.run(RUN % "True", VLLM_PLUGINS=allowed)
    assert got == (expected or {"stats": True, "loggers": []})


def test_the_logger_refuses_to_load_without_its_guard(fake: FakeVllm) -> None:
    done = fake.ran("from vllm.v1.engine.async_llm import AsyncLLM\nsaid(s=AsyncLLM(config(), None, False).log_stats)")
    assert '{"s": false}' in done.stdout
    assert "Failed to load plugin ufwatch" in done.stderr


def test_engine_client_imported_first(fake: FakeVllm) -> None:
    assert fake.run("import vllm.v1.engine.async_llm\n" + RUN % "False") == OFF


def test_another_plugin_wraps_the_loader_too(fake: FakeVllm) -> None:
    wrap = """
load_general_plugins()
import vllm.v1.engine.async_llm as m
inner = m.load_stat_logger_plugin_factories
m.load_stat_logger_plugin_factories = lambda: inner()
"""
    assert fake.run(wrap + RUN % "True") == OURS
    assert fake.run(wrap + RUN % "False") == OFF


@pytest.mark.parametrize("given", ["None", "{1: 2}", "iter([3])"])
def test_a_loader_that_gives_no_list(fake: FakeVllm, given: str) -> None:
    """Of a vLLM that we do not know: what it gives is handed on, untouched."""
    answer = fake.run(
        f"""
import vllm.v1.engine.async_llm as async_llm
made = {given}
async_llm.load_stat_logger_plugin_factories = lambda: made
load_general_plugins()
said(same=async_llm.load_stat_logger_plugin_factories() is made, left=made and len(list(made)))
"""
    )
    assert answer == {"same": True, "left": None if given == "None" else 1}


def test_called_by_something_unknown(fake: FakeVllm) -> None:
    code = """
load_general_plugins()
import vllm.v1.engine.async_llm as m
said(found=len(m.load_stat_logger_plugin_factories()))
"""
    assert fake.run(code) == {"found": 0}


def test_a_guard_that_fails_still_keeps_the_logger_out(fake: FakeVllm) -> None:
    broken = """
from ufwatch_vllm import stats_guard
def broken(*_): raise RuntimeError("broken")
stats_guard._stats_are_on = broken
"""
    assert fake.run(broken + RUN % "False") == OFF


def test_a_vllm_without_stat_logger_plugins(tmp_path: Path) -> None:
    fake = FakeVllm(tmp_path, plugins=False)
    code = RUN % "True" + "from vllm.v1.core.block_pool import BlockPool; BlockPool(3, True)"
    assert '"loggers": []' in fake.ran(code).stdout
    assert "# absent token_intervals_total: this vLLM loads no stat-logger plugins (0.11 and newer do)" in fake.texts()
