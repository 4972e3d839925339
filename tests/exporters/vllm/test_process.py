"""Which process it is, and which have a file."""

from __future__ import annotations

import pytest
from ufwatch_vllm import process

from tests.exporters.vllm.fake_vllm import FakeVllm

POOL = "load_general_plugins()\nfrom vllm.v1.core.block_pool import BlockPool"


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("MainProcess", "hook"),
        ("ApiServer_0", "api"),
        ("APIServer_1", "api"),
        ("EngineCore_0", "engine"),
        ("EngineCore_DP1", "engine"),
        ("EngineCore", "engine"),
        ("DPEngineCoreActor_DP1", "engine"),
        ("VllmWorker-0", "worker"),
        ("DPCoordinator", "hook"),
    ],
)
def test_role_by_vllms_own_name(name: str, role: str) -> None:
    assert process.role_of(name, "hook") == role


def test_a_process_with_nothing_to_say_has_no_file(fake: FakeVllm) -> None:
    """The launcher, the model registry: the plugin runs there too, and modules are imported."""
    fake.ran(
        "load_general_plugins()\nimport vllm.v1.core.block_pool, vllm.v1.engine.async_llm, vllm.v1.worker.gpu_worker"
    )
    assert fake.files() == {}


def test_registered_twice(fake: FakeVllm) -> None:
    fake.ran(
        "from ufwatch_vllm.plugin import register\nregister(); register()\n"
        "from vllm.v1.core.block_pool import BlockPool\npool = BlockPool(9, True); register()\n"
        "pool.cached.add(1); pool._maybe_evict_cached_block(1)"
    )
    assert fake.files()["engine"]['kv_evictions_total{engine="0"}'] == 1


def test_nothing_is_imported_that_the_engine_does_not_import(fake: FakeVllm) -> None:
    got = fake.run(
        "before = set(sys.modules); load_general_plugins()\n"
        "said(new=[m for m in set(sys.modules) - before if m.split('.')[0] in ('vllm', 'torch', 'ufwatch')])"
    )
    assert got == {"new": []}


def test_lines_go_where_vllms_go(fake: FakeVllm) -> None:
    done = fake.ran(
        "log = logging.getLogger('vllm'); log.setLevel('INFO'); log.propagate = False\n"
        "handler = logging.StreamHandler(); handler.setFormatter(logging.Formatter('AS VLLM %(message)s'))\n"
        "log.addHandler(handler)\n"
        f"{POOL}\nBlockPool(9, False); BlockPool(9, False)"
    )
    assert done.stderr.count("AS VLLM ufwatch: process ") == 1
    assert done.stderr.count("prefix caching is off") == 2, "once for each of its two metrics"


@pytest.mark.parametrize("directory", ["/proc/nowhere", "/dev/null/x", "\0"])
def test_a_directory_that_cannot_be(fake: FakeVllm, directory: str) -> None:
    code = f"{POOL}\nsaid(ok=BlockPool(9, True).enable_caching)"
    if "\0" in directory:
        code, directory = f"os.environ['UFWATCH_EXPORT_DIR'] = 'a' * 5000\n{code}", "x"
    assert fake.run(code, UFWATCH_EXPORT_DIR=directory) == {"ok": True}


def test_even_what_says_so_may_fail(fake: FakeVllm) -> None:
    """As in the harm test: nothing works any more in here, and the engine goes on as without it."""
    got = fake.run(
        "from ufwatch_vllm import process\nfrom ufwatch_vllm.observers import textfile\n"
        "def broken(*_, **__): raise RuntimeError('broken')\n"
        "process.begin = process.directory = process.absent = broken\n"
        "for name in ('add', 'total', 'set', 'absent', 'collect', 'start', 'failed'):\n"
        "    setattr(textfile.Exporter, name, broken)\n"
        f"{POOL}\nfrom vllm.v1.engine.async_llm import AsyncLLM\nfrom vllm.v1.worker.gpu_worker import Worker\n"
        "w = Worker(config()); w.init_device(); pool = BlockPool(9, True); pool.cached.add(1)\n"
        "said(stats=AsyncLLM(config(), None, False).log_stats, warm=w.compile_or_warm_up_model(),\n"
        "     found=pool.get_cached_block(1, []), evicted=pool._maybe_evict_cached_block(1))"
    )
    assert got == {"stats": False, "warm": 7, "found": [1], "evicted": True}
    assert fake.files() == {}
