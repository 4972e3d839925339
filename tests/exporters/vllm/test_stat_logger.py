"""The stat logger in a process of its own, called in the way of each vLLM version."""

from __future__ import annotations

import pytest

from tests.exporters.vllm.fake_vllm import FakeVllm

START = """
load_general_plugins()
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import IterationStats as Stats
"""
N = 'token_intervals_total{engine="%d",unit="token"}'
CALLS = {
    "0.9, positional": "record(None, Stats([0.5, 0.25], [0.9]))",
    "0.9, by name": "record(scheduler_stats=None, iteration_stats=Stats([0.5, 0.25], [0.9]))",
    "0.10, engine index": "record(None, Stats([0.5, 0.25], [0.9]), engine_idx=1)",
    "0.10, all by name": "record(scheduler_stats=None, iteration_stats=Stats([0.5, 0.25], [0.9]), engine_idx=1)",
    "0.11 to 0.32": "record(None, Stats([0.5, 0.25], [0.9]), mm_cache_stats=None, engine_idx=1)",
    "positional throughout": "record(None, Stats([0.5, 0.25], [0.9]), None, 1)",
    "something new": "record(None, Stats([0.5, 0.25], [0.9]), more=3, engine_idx=1)",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_signature(fake: FakeVllm, call: str) -> None:
    fake.ran(f"{START}llm = AsyncLLM(config(), None, True, engines=(0, 1)); llm.stat_loggers[1].{call}")
    (series,) = fake.files().values()
    assert series[N % 1] == 2
    assert series[N % 0] == 0
    assert series['token_interval_seconds_total{engine="1",unit="token"}'] == 0.75
    assert series['token_interval_squared_total{engine="1",unit="token"}'] == 0.3125
    assert series['ttft_requests_total{engine="1"}'] == 1
    assert series['ttft_over_total{engine="1",threshold_seconds="0.8"}'] == 1
    assert series['ttft_over_total{engine="1",threshold_seconds="2.3"}'] == 0
    assert "exporter_hook_errors_total" not in fake.texts()


def test_nothing_to_count(fake: FakeVllm) -> None:
    fake.ran(
        f"{START}log = AsyncLLM(config(), None, True).stat_loggers[0]\n"
        "log.record(None, None); log.record(); log.record(None); log.record(None, Stats())\n"
        "log.log(); log.log_engine_initialized(); log.record_sleep_state(1, 2)\n"
        "log.record_sleep_state(sleep=1, level=2)"
    )
    (series,) = fake.files().values()
    assert series[N % 0] == 0
    assert "exporter_hook_errors_total" not in fake.texts()


@pytest.mark.parametrize(
    "stats",
    ["NS()", "NS(inter_token_latencies_iter=['x'], time_to_first_tokens_iter=[])", "7", "Stats([None])"],
)
def test_a_fault_stays_inside_and_goes_quiet(fake: FakeVllm, stats: str) -> None:
    fake.ran(
        f"{START}log = AsyncLLM(config(), None, True).stat_loggers[0]\n"
        f"for _ in range(100): assert log.record(None, {stats}) is None"
    )
    (series,) = fake.files().values()
    assert series == {'exporter_hook_errors_total{hook="record"}': 20}, "no counter that stands still"
    assert '# absent token_intervals_total{engine="0"}: the hook record failed too often' in fake.texts()


def test_one_fault_does_not_stop_the_rest(fake: FakeVllm) -> None:
    fake.ran(
        f"{START}log = AsyncLLM(config(), None, True).stat_loggers[0]\n"
        "log.record(None, 7); log.record(None, Stats([0.1, 0.2]))"
    )
    (series,) = fake.files().values()
    assert series[N % 0] == 2


def test_an_engine_made_anew_goes_on_counting(fake: FakeVllm) -> None:
    """Two loggers of one engine in one process, one after the other (training loops do that) or beside each other."""
    fake.ran(
        f"{START}first = AsyncLLM(config(), None, True).stat_loggers[0]\n"
        "first.record(None, Stats([0.5, 0.5, 0.5], [0.9]))\n"
        "second = AsyncLLM(config(), None, True).stat_loggers[0]\n"
        "second.record(None, Stats([0.25, 0.25], [3.0]))\n"
        "del first"
    )
    (series,) = fake.files().values()
    assert series[N % 0] == 5
    assert series['token_interval_seconds_total{engine="0",unit="token"}'] == 2.0
    assert series['ttft_requests_total{engine="0"}'] == 2
    assert series['ttft_over_total{engine="0",threshold_seconds="0.8"}'] == 2
    assert series['ttft_over_total{engine="0",threshold_seconds="2.3"}'] == 1


def test_a_base_that_asks_for_more(fake: FakeVllm) -> None:
    """A method that a later vLLM makes abstract: without it the class could not be made, and the server not start."""
    loggers = fake.site / "vllm" / "v1" / "metrics" / "loggers.py"
    loggers.write_text(
        loggers.read_text().replace(
            "    def log(self)", "    @abstractmethod\n    def more(self, x): ...\n    def log(self)"
        )
    )
    fake.ran(
        f"{START}log = AsyncLLM(config(), None, True).stat_loggers[0]\nlog.more(3); log.record(None, Stats([0.1]))"
    )
    (series,) = fake.files().values()
    assert series[N % 0] == 1


@pytest.mark.parametrize("arguments", ["", "None", "None, 'x'", "config(), 0, 1, 2"])
def test_made_in_a_way_not_foreseen(fake: FakeVllm, arguments: str) -> None:
    fake.ran(
        f"{START}Logger = type(AsyncLLM(config(), None, True).stat_loggers[0])\n"
        f"log = Logger({arguments}); log.record(None, Stats([0.1]))"
    )


@pytest.mark.parametrize(
    ("change", "unit"),
    [("", "token"), ("c.speculative_config = NS()", "step"), ("c.model_config.is_diffusion = True", "step")],
)
def test_unit(fake: FakeVllm, change: str, unit: str) -> None:
    fake.ran(
        f"{START}c = config(); {change}\nAsyncLLM(c, None, True).stat_loggers[0].record(None, Stats([0.1]))",
    )
    (series,) = fake.files().values()
    assert series[f'token_intervals_total{{engine="0",unit="{unit}"}}'] == 1


def test_thresholds_from_the_environment(fake: FakeVllm) -> None:
    done = fake.ran(
        f"{START}AsyncLLM(config(), None, True).stat_loggers[0].record(None, Stats([0.1], [0.7, 1.5]))",
        UFWATCH_TTFT_SECONDS="1, 0.5",
        UFWATCH_JITTER_SECONDS="many",
    )
    (series,) = fake.files().values()
    assert series['ttft_over_total{engine="0",threshold_seconds="0.5"}'] == 2
    assert series['ttft_over_total{engine="0",threshold_seconds="1"}'] == 1
    assert series['jitter_slices_over_total{engine="0",threshold_seconds="0.08"}'] == 0
    assert "UFWATCH_JITTER_SECONDS is 'many'" in done.stderr


@pytest.mark.parametrize("thresholds", ["0.1234567", "1e-7", "1000000.5", "1000.001,1000.002"])
def test_a_threshold_that_the_agent_cannot_read_is_refused(fake: FakeVllm, thresholds: str) -> None:
    done = fake.ran(f"{START}AsyncLLM(config(), None, True)", UFWATCH_TTFT_SECONDS=thresholds)
    (series,) = fake.files().values()
    assert 'ttft_over_total{engine="0",threshold_seconds="2.3"}' in series
    assert "UFWATCH_TTFT_SECONDS is" in done.stderr


def test_a_forked_child_does_not_repeat_its_parent(fake: FakeVllm) -> None:
    """An engine core forked later inherits logger and sums: they are the parent's."""
    fake.ran(
        f"""{START}
import multiprocessing
log = AsyncLLM(config(), None, True).stat_loggers[0]
log.record(None, Stats([0.1, 0.2]))
def child():
    from vllm.v1.core.block_pool import BlockPool
    pool = BlockPool(9, True)
    pool.cached.add(4); pool._maybe_evict_cached_block(4)
process = multiprocessing.get_context("fork").Process(target=child, name="EngineCore_DP1")
process.start(); process.join(); assert process.exitcode == 0
"""
    )
    files = fake.files()
    assert set(files) == {"api", "engine"}
    assert files["api"][N % 0] == 2
    assert files["engine"] == {
        'kv_evictions_total{engine="1"}': 1,
        'page_table_lookups_total{engine="1",unit="probe"}': 0,
        'page_table_misses_total{engine="1",unit="probe"}': 0,
    }
