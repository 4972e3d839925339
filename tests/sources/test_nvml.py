"""The one thread that calls NVML, and that our numbers are NVML's."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from tests.sources.fake_nvml import CODES, FakeDevice, FakeNvml
from tests.sources.nvml_bench import PLAIN
from ufwatch.clock import ManualClock
from ufwatch.decode.gpu import GpuSnapshot
from ufwatch.model import Reason
from ufwatch.sources import nvml as nvml_module
from ufwatch.sources import nvml_fields, nvml_gpm
from ufwatch.sources.nvml import NvmlSource


def with_source(nvml: Any, body: Callable[[NvmlSource, ManualClock], Any]) -> None:
    async def main() -> None:
        clock = ManualClock()
        source = NvmlSource(clock, gpm=True, nvml=nvml)
        await body(source, clock)
        await source.close()

    asyncio.run(main())


def nvml_threads() -> int:
    return sum(thread.name == "ufwatch-nvml" for thread in threading.enumerate())


def test_all_calls_are_made_in_one_thread_and_close_gives_everything_back() -> None:
    nvml = FakeNvml.from_h200("matmul", 6)

    async def body(source: NvmlSource, clock: ManualClock) -> None:
        for _ in range(3):
            snapshot = await source.poll(5.0)
            clock.advance(5.0)
        assert snapshot.cards[0].values["sm_utilization_ratio"] == 0.963724
        await source.close()
        assert (nvml.inits, nvml.events, nvml.leaked()) == (0, 0, 0)
        assert (await source.poll(5.0)).health.up  # and it can be opened again

    with_source(nvml, body)
    assert nvml.threads == {"ufwatch-nvml"}
    assert nvml.inits == 0


def test_a_hung_call_costs_its_deadline_once_and_its_xid_is_not_lost() -> None:
    card = FakeDevice("GPU-a", calls=PLAIN)
    nvml = FakeNvml([card])
    gate = threading.Event()

    async def body(source: NvmlSource, clock: ManualClock) -> None:
        await source.poll(5.0)
        card.xids.append(48)
        nvml.hang["nvmlDeviceGetPowerUsage"] = gate
        first = await source.poll(0.01)
        assert first.health.reason is Reason.TIMEOUT
        assert nvml.hung.wait(5.0)
        asked = nvml.asked.copy()
        for _ in range(5):
            clock.advance(5.0)
            assert await source.poll(60.0) == replace_times(first, clock)
        assert nvml.asked == asked
        assert nvml_threads() == 1
        nvml.hang.clear()
        gate.set()
        snapshot = await source.poll(5.0)
        while not snapshot.health.up:  # until the old job's answer has come in
            await asyncio.sleep(0)
            snapshot = await source.poll(5.0)
        assert [xid.number for xid in snapshot.xids] == [48]

    with_source(nvml, body)


def replace_times(snapshot: GpuSnapshot, clock: ManualClock) -> GpuSnapshot:
    return GpuSnapshot(at_seconds=clock.now, health=snapshot.health)


def test_hung_threads_are_abandoned_rarely_and_at_most_three() -> None:
    nvml = FakeNvml([FakeDevice("GPU-a", calls=PLAIN)])
    gate = threading.Event()
    nvml.hang["nvmlInit"] = gate

    async def body(source: NvmlSource, clock: ManualClock) -> None:
        tried_at = []
        for _ in range(4000):
            before = nvml.asked["nvmlInit"]
            nvml.hung.clear()
            if source._job is None or clock.now - source._since >= source._patience:
                await source.poll(0.001)
                if len(source._abandoned) < nvml_module.MOST_ABANDONED or nvml.asked["nvmlInit"] == 3:
                    nvml.hung.wait(5.0)
            else:
                await source.poll(60.0)
            if nvml.asked["nvmlInit"] > before:
                tried_at.append(clock.now)
            clock.advance(5.0)
        assert [later - earlier for earlier, later in itertools.pairwise(tried_at)] == [60.0, 120.0, 240.0]
        assert nvml_threads() == 1 + nvml_module.MOST_ABANDONED
        gate.set()
        nvml.hang.clear()
        snapshot = await source.poll(5.0)
        while not snapshot.health.up:
            await asyncio.sleep(0)
            snapshot = await source.poll(5.0)
        await source.close()

    with_source(nvml, body)
    for thread in threading.enumerate():
        if thread.name == "ufwatch-nvml":
            thread.join(5.0)
    assert nvml_threads() == 0
    assert nvml.inits == 0


def test_a_cancelled_poll_does_not_lose_the_thread() -> None:
    nvml = FakeNvml([FakeDevice("GPU-a", calls=PLAIN)])
    gate = threading.Event()
    nvml.hang["nvmlInit"] = gate

    async def body(source: NvmlSource, clock: ManualClock) -> None:
        task = asyncio.create_task(source.poll(60.0))
        await asyncio.to_thread(nvml.hung.wait, 5.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        clock.advance(1.0)
        assert (await source.poll(1.0)).health.reason is Reason.TIMEOUT
        gate.set()

    with_source(nvml, body)


EXITS = """
import asyncio, threading
from ufwatch.clock import SystemClock
from ufwatch.sources.nvml import NvmlSource
class Hung:
    NVMLError = ValueError
    nvmlInit = staticmethod(threading.Event().wait)
async def main():
    source = NvmlSource(SystemClock(), gpm=True, nvml=Hung)
    print((await source.poll(0.01)).health.reason)
    await source.close()
asyncio.run(main())
"""


def test_a_process_can_exit_while_a_call_hangs() -> None:
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=30.0, check=True)
    assert (done.stdout.strip(), done.stderr) == ("timeout", "")


def test_pynvml_is_imported_only_when_it_is_used() -> None:
    code = "import sys, ufwatch.sources.nvml, ufwatch.core.gpu; assert 'pynvml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], timeout=30.0, check=True)


def test_whatever_a_binding_raises_is_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: FakeNvml) -> int:
        raise OSError("symbol lookup error")

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetCount", broken)

    async def body(source: NvmlSource, _: ManualClock) -> None:
        snapshot = await source.poll(5.0)
        assert snapshot.health.reason is Reason.DRIVER
        assert "symbol lookup error" in snapshot.health.detail

    with_source(FakeNvml([]), body)


def test_the_real_pynvml_without_a_driver_is_no_source() -> None:
    async def body(source: NvmlSource, _: ManualClock) -> None:
        snapshot = await source.poll(10.0)
        if not snapshot.health.up:
            assert snapshot.health.reason in (Reason.NO_SOURCE, Reason.DRIVER)
            assert snapshot.health.detail

    with_source(None, body)


def test_codes_and_ids_agree_with_pynvml() -> None:
    for name, code in CODES.items():
        assert getattr(pynvml, f"NVMLError_{name}")().value == code
    named = {
        "NVML_ERROR_UNINITIALIZED": nvml_fields.UNINITIALIZED,
        "NVML_ERROR_UNKNOWN": nvml_fields.UNKNOWN,
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP": 74,
        "NVML_FI_DEV_PERF_POLICY_THERMAL": 75,
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST": 76,
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": 269,
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": 270,
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": 271,
        "NVML_GPM_METRIC_SM_UTIL": 2,
        "NVML_GPM_METRIC_PCIE_TX_PER_SEC": 20,
        "NVML_GPM_METRIC_PCIE_RX_PER_SEC": 21,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_AGGREGATE_ECC": 1,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "nvmlEventTypeXidCriticalError": 8,
        "nvmlClocksEventReasonSwPowerCap": 4,
        "nvmlMemory_v2": FakeNvml.nvmlMemory_v2,
        "NVML_GPM_METRICS_GET_VERSION": FakeNvml.NVML_GPM_METRICS_GET_VERSION,
    }
    assert {name: getattr(pynvml, name) for name in named} == named


def test_the_fake_has_only_functions_that_pynvml_has() -> None:
    ours = {name for name in vars(FakeNvml) if name.startswith(("nvml", "c_nvml", "NVML"))}
    assert {name for name in ours if not hasattr(pynvml, name)} == set()
    assert nvml_gpm.MIN_WINDOW_SECONDS == 0.1
