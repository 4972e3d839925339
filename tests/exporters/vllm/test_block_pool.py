"""Evictions and look-ups against what the fake pool did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exporters.vllm.fake_vllm import FakeVllm

START = """
load_general_plugins()
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.scheduler import Scheduler
"""
EVICTED, LOOKED, MISSED = (
    'kv_evictions_total{engine="%s"}',
    'page_table_lookups_total{engine="%s",unit="probe"}',
    'page_table_misses_total{engine="%s",unit="probe"}',
)


def test_counts(fake: FakeVllm) -> None:
    got = fake.run(
        START
        + """
pool = Scheduler(config(2), None).block_pool
pool.cached.update(range(10))
said(evicted=[pool._maybe_evict_cached_block(b) for b in (1, 2, 77)],
     found=[pool.get_cached_block(3, [0]), pool.get_cached_block(1, [0]),
            pool.get_cached_block(block_hash=4, kv_cache_group_ids=[0])],
     names=[BlockPool.get_cached_block.__name__, BlockPool.get_cached_block.__doc__])
"""
    )
    assert got == {
        "evicted": [True, True, False],
        "found": [[3], None, [4]],
        "names": ["get_cached_block", "Its documentation."],
    }
    (series,) = fake.files().values()
    assert series == {EVICTED % 2: 2, LOOKED % 2: 3, MISSED % 2: 1}


def test_zero_from_the_start(fake: FakeVllm) -> None:
    fake.ran(START + "Scheduler(vllm_config=config(), kv_cache_config=None)")
    assert fake.files() == {"engine": {EVICTED % 0: 0, LOOKED % 0: 0, MISSED % 0: 0}}


def test_its_own_exceptions_pass(fake: FakeVllm) -> None:
    fake.ran(
        START
        + """
pool = BlockPool(9, True)
try: pool.get_cached_block(-1, [])
except KeyError as error: assert error.args == (-1,)
else: raise AssertionError
try: BlockPool()
except TypeError: pass
else: raise AssertionError
"""
    )
    assert fake.files()["engine"][LOOKED % 0] == 0
    assert "exporter_hook_errors_total" not in fake.texts()


def test_blocks_in_the_hosts_memory_are_not_evicted_from_the_gpu(fake: FakeVllm) -> None:
    fake.ran(
        START
        + """
for pool in (BlockPool(9, True, medium="CPU"), BlockPool(9, True)):
    pool.cached.add(1); assert pool._maybe_evict_cached_block(1)
"""
    )
    assert fake.files()["engine"][EVICTED % 0] == 1


def test_the_private_hook_is_missing(tmp_path: Path) -> None:
    fake = FakeVllm(tmp_path, evict="_evict_renamed")
    fake.ran(START + "BlockPool(9, True).get_cached_block(1, [0])")
    assert fake.files()["engine"] == {LOOKED % 0: 1, MISSED % 0: 1}
    assert "# absent kv_evictions_total: this vLLM has no BlockPool._maybe_evict_cached_block" in fake.texts()


def test_prefix_caching_is_off(fake: FakeVllm) -> None:
    fake.ran(START + "BlockPool(9, False)")
    assert fake.files()["engine"] == {EVICTED % 0: 0}
    assert "# absent page_table_lookups_total: prefix caching is off" in fake.texts()


@pytest.mark.parametrize(
    ("name", "rank"), [("EngineCore_DP3", "3"), ("EngineCore_1", "1"), ("EngineCore", "0"), ("MainProcess", "0")]
)
def test_rank_by_the_process_name_where_the_scheduler_is_another(fake: FakeVllm, name: str, rank: str) -> None:
    fake.ran(f"import multiprocessing; multiprocessing.current_process().name = {name!r}\n{START}BlockPool(9, True)")
    assert EVICTED % rank in fake.files()["engine"]


def test_rank_before_there_was_an_index(fake: FakeVllm) -> None:
    fake.ran(START + "Scheduler(NS(parallel_config=NS(data_parallel_rank=5)), None)")
    assert EVICTED % 5 in fake.files()["engine"]


@pytest.mark.parametrize("given", ["None", "NS()", "NS(parallel_config=NS(data_parallel_rank='x'))"])
def test_a_config_not_foreseen(fake: FakeVllm, given: str) -> None:
    fake.ran(START + f"Scheduler({given}, None)")
    assert EVICTED % 0 in fake.files()["engine"]


def test_a_fault_in_the_hot_path_stays_inside_and_goes_quiet(fake: FakeVllm) -> None:
    fake.ran(
        """
from ufwatch_vllm import block_pool
class Broken:
    failures = 0
    evictions = lookups = misses = property(lambda self: 1 / 0)
block_pool._counts = Broken()
"""
        + START
        + """
pool = BlockPool(9, True)
for n in range(100):
    pool.cached.add(n); assert pool.get_cached_block(n, []) == [n] and pool._maybe_evict_cached_block(n) is True
"""
    )
    (series,) = fake.files().values()
    broken = [series[f'exporter_hook_errors_total{{hook="{hook}"}}'] for hook in ("evict", "look_up")]
    assert sum(broken) == 20


def test_data_parallel_engines_by_fork(fake: FakeVllm) -> None:
    """One file for each engine core; the launcher, from which they are forked, has none."""
    fake.ran(
        START
        + """
import multiprocessing
def engine(rank):
    pool = Scheduler(config(rank), None).block_pool
    for n in range(rank + 1):
        pool.cached.add(n); pool._maybe_evict_cached_block(n)
fork = multiprocessing.get_context("fork")
children = [fork.Process(target=engine, args=(r,), name=f"EngineCore_DP{r}") for r in (0, 1)]
for child in children: child.start()
for child in children: child.join(); assert child.exitcode == 0
"""
    )
    paths = sorted(fake.export.glob("engine-*.prom"))
    assert len(paths) == len(list(fake.export.iterdir())) == 2
    text = fake.texts()
    assert f"ufwatch_{EVICTED % 0} 1\n" in text
    assert f"ufwatch_{EVICTED % 1} 2\n" in text


def test_an_engine_core_that_forks_does_not_hand_its_counts_down(fake: FakeVllm) -> None:
    fake.ran(
        START
        + """
import multiprocessing
pool = BlockPool(9, True)
pool.cached.update(range(9))
for n in range(9): pool._maybe_evict_cached_block(n)
def child():
    other = BlockPool(9, True)
    other.cached.add(1); other._maybe_evict_cached_block(1)
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join(); assert process.exitcode == 0
"""
    )
    counts = sorted(line for line in fake.texts().splitlines() if "kv_evictions" in line)
    assert [line.split()[-1] for line in counts] == ["1", "9"]
