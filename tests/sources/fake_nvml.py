"""A stand-in for the module pynvml, driven by call tables: those of ``tests/cases`` or what was recorded on an H200.

A table maps a short name of a call to its results by poll, the last one repeating; ``{"raise": NAME}`` raises
``NVMLError_NAME``, and a name that is not in the table is not supported. ``poll`` is moved on by the test.
"""

# ruff: noqa: N802 - the functions are named as pynvml's

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.sources.h200 import TESTS, Calls, h200_calls

CODES = {
    "Uninitialized": 1,
    "InvalidArgument": 2,
    "NotSupported": 3,
    "NoPermission": 4,
    "NotFound": 6,
    "DriverNotLoaded": 9,
    "Timeout": 10,
    "LibraryNotFound": 12,
    "FunctionNotFound": 13,
    "GpuIsLost": 15,
    "ResetRequired": 16,
    "LibRmVersionMismatch": 18,
    "Unknown": 999,
}


class FakeNvmlError(Exception):
    """As pynvml's: the code is in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"NVML error {self.value}"


@dataclass(eq=False)
class FakeDevice:
    """A card, or a MIG instance; also its own handle."""

    uuid: str
    name: str = "Fake"
    calls: Calls = field(default_factory=dict)
    handle: Sequence[Any] = ()
    instances: list[FakeDevice] = field(default_factory=list)
    gpu_instance: int = 0
    xids: list[int] = field(default_factory=list)


@dataclass(eq=False)
class FakeBuffer:
    freed: bool = False
    device: FakeDevice | None = None


class FakeNvml:
    NVMLError = FakeNvmlError
    nvmlMemory_v2 = 0x02000028  # noqa: N815 - pynvml's name
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self, devices: Sequence[FakeDevice]) -> None:
        self.devices = list(devices)
        self.poll = 0
        self.asked: Counter[str] = Counter()
        self.broken: dict[str, str] = {}
        """Call name, or ``*`` for all but those that give something back, to the name of the error it raises."""
        self.hang: dict[str, threading.Event] = {}
        self.hung = threading.Event()
        self.inits = 0
        self.buffers: list[FakeBuffer] = []
        self.events = 0
        self.threads: set[str] = set()

    @classmethod
    def from_case(cls, name: str) -> tuple[FakeNvml, dict[str, Any]]:
        case = json.loads((TESTS / "cases" / name).read_text())
        devices = [
            FakeDevice(uuid=d["uuid"], name=d["name"], calls=d["calls"], handle=d.get("handle", ()))
            for d in case["devices"]
        ]
        return cls(devices), case

    @classmethod
    def from_h200(cls, phase: str, load: int) -> FakeNvml:
        return cls([FakeDevice("GPU-00000000-0000-0000-0000-000000000000", "NVIDIA H200", h200_calls(phase, load))])

    def leaked(self) -> int:
        return sum(not buffer.freed for buffer in self.buffers)

    # What every call goes through.

    def _enter(self, call: str) -> None:
        self.asked[call] += 1
        self.threads.add(threading.current_thread().name)
        gate = self.hang.get(call)
        if gate is not None:
            self.hung.set()
            gate.wait()
        gives_back = call in ("nvmlShutdown", "nvmlEventSetFree")
        name = self.broken.get(call, None if gives_back else self.broken.get("*"))
        if name is not None:
            raise FakeNvmlError(CODES[name])

    def _result(self, results: Sequence[Any]) -> Any:
        result = results[min(self.poll, len(results) - 1)]
        if isinstance(result, Mapping) and "raise" in result:
            raise FakeNvmlError(CODES[result["raise"]])
        return result

    def _answer(self, call: str, device: FakeDevice, *keys: str) -> list[Any]:
        self._enter(call)
        if any(key not in device.calls for key in keys):
            raise FakeNvmlError(CODES["NotSupported"])
        return [self._result(device.calls[key]) for key in keys]

    # The module's functions.

    def nvmlInit(self) -> None:
        self._enter("nvmlInit")
        self.inits += 1

    def nvmlShutdown(self) -> None:
        self._enter("nvmlShutdown")
        self.inits -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._enter("nvmlSystemGetDriverVersion")
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        self._enter("nvmlDeviceGetCount")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        self._enter("nvmlDeviceGetHandleByIndex")
        device = self.devices[index]
        if device.handle:
            self._result(device.handle)
        return device

    def nvmlDeviceGetUUID(self, device: FakeDevice) -> str:
        self._enter("nvmlDeviceGetUUID")
        return device.uuid

    def nvmlDeviceGetName(self, device: FakeDevice) -> str:
        self._enter("nvmlDeviceGetName")
        return device.name

    def nvmlDeviceGetUtilizationRates(self, device: FakeDevice) -> Any:
        (gpu,) = self._answer("nvmlDeviceGetUtilizationRates", device, "utilization_gpu")
        return SimpleNamespace(gpu=gpu)

    def nvmlDeviceGetMemoryInfo(self, device: FakeDevice, version: int | None = None) -> Any:
        if version is None:
            total, used = self._answer("nvmlDeviceGetMemoryInfo", device, "memory_total", "memory_used")
            return SimpleNamespace(total=total, used=used)
        self._enter("nvmlDeviceGetMemoryInfo_v2")
        if "memory_total" in device.calls and "memory_reserved" not in device.calls:
            raise FakeNvmlError(CODES["FunctionNotFound"])  # a driver from before the second version
        total, used, reserved = self._answer(
            "nvmlDeviceGetMemoryInfo", device, "memory_total", "memory_used", "memory_reserved"
        )
        return SimpleNamespace(total=total, used=used, reserved=reserved)

    def nvmlDeviceGetPowerUsage(self, device: FakeDevice) -> Any:
        return self._answer("nvmlDeviceGetPowerUsage", device, "power_mw")[0]

    def nvmlDeviceGetEnforcedPowerLimit(self, device: FakeDevice) -> Any:
        return self._answer("nvmlDeviceGetEnforcedPowerLimit", device, "power_limit_mw")[0]

    def nvmlDeviceGetTemperature(self, device: FakeDevice, sensor: int) -> Any:
        assert sensor == 0
        return self._answer("nvmlDeviceGetTemperature", device, "temperature_c")[0]

    def nvmlDeviceGetClockInfo(self, device: FakeDevice, clock: int) -> Any:
        return self._answer("nvmlDeviceGetClockInfo", device, f"clock_mhz:{clock}")[0]

    def nvmlDeviceGetMaxClockInfo(self, device: FakeDevice, clock: int) -> Any:
        return self._answer("nvmlDeviceGetMaxClockInfo", device, f"clock_max_mhz:{clock}")[0]

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: FakeDevice) -> Any:
        return self._answer("nvmlDeviceGetCurrentClocksEventReasons", device, "clock_reasons")[0]

    def nvmlDeviceGetTotalEccErrors(self, device: FakeDevice, kind: int, counter: int) -> Any:
        return self._answer("nvmlDeviceGetTotalEccErrors", device, f"ecc:{kind}:{counter}")[0]

    def nvmlDeviceGetRemappedRows(self, device: FakeDevice) -> Any:
        return self._answer("nvmlDeviceGetRemappedRows", device, "remapped_rows")[0]

    def nvmlDeviceGetPcieReplayCounter(self, device: FakeDevice) -> Any:
        return self._answer("nvmlDeviceGetPcieReplayCounter", device, "pcie_replays")[0]

    def nvmlDeviceGetTotalEnergyConsumption(self, device: FakeDevice) -> Any:
        return self._answer("nvmlDeviceGetTotalEnergyConsumption", device, "energy_mj")[0]

    def nvmlDeviceGetViolationStatus(self, device: FakeDevice, policy: int) -> Any:
        (time,) = self._answer("nvmlDeviceGetViolationStatus", device, f"violation_ns:{policy}")
        return SimpleNamespace(violationTime=time)

    def nvmlDeviceGetFieldValues(self, device: FakeDevice, ids: Sequence[int]) -> list[Any]:
        self._enter("nvmlDeviceGetFieldValues")
        answers = []
        for number in ids:
            results = device.calls.get(f"field:{number}")
            value = SimpleNamespace(ullVal=0 if results is None else self._result(results))
            code = CODES["NotSupported"] if results is None else 0
            answers.append(SimpleNamespace(fieldId=number, nvmlReturn=code, valueType=3, value=value))
        return answers

    def nvmlDeviceGetMigMode(self, device: FakeDevice) -> Any:
        return self._answer("nvmlDeviceGetMigMode", device, "mig_mode")[0]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeDevice, index: int) -> FakeDevice:
        self._enter("nvmlDeviceGetMigDeviceHandleByIndex")
        if index >= len(device.instances):
            raise FakeNvmlError(CODES["NotFound"])
        return device.instances[index]

    def nvmlDeviceGetGpuInstanceId(self, device: FakeDevice) -> int:
        self._enter("nvmlDeviceGetGpuInstanceId")
        return device.gpu_instance

    # GPM.

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(8)])

    def nvmlGpmQueryDeviceSupport(self, device: FakeDevice) -> Any:
        self._enter("nvmlGpmQueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=int(any(key.startswith("gpm:") for key in device.calls)))

    def nvmlGpmSampleAlloc(self) -> FakeBuffer:
        self._enter("nvmlGpmSampleAlloc")
        self.buffers.append(FakeBuffer())
        return self.buffers[-1]

    def nvmlGpmSampleFree(self, buffer: FakeBuffer) -> None:
        assert not buffer.freed
        buffer.freed = True

    def nvmlGpmSampleGet(self, device: FakeDevice, buffer: FakeBuffer) -> None:
        self._enter("nvmlGpmSampleGet")
        assert not buffer.freed
        buffer.device = device

    def nvmlGpmMigSampleGet(self, device: FakeDevice, gpu_instance: int, buffer: FakeBuffer) -> None:
        self._enter("nvmlGpmMigSampleGet")
        buffer.device = next(part for part in device.instances if part.gpu_instance == gpu_instance)

    def nvmlGpmMetricsGet(self, query: Any) -> None:
        self._enter("nvmlGpmMetricsGet")
        assert query.version == self.NVML_GPM_METRICS_GET_VERSION
        assert query.sample1.device is query.sample2.device is not None
        assert query.sample1 is not query.sample2
        for metric in query.metrics[: query.numMetrics]:
            results = query.sample2.device.calls.get(f"gpm:{metric.metricId}")
            metric.nvmlReturn = CODES["NotSupported"] if results is None else 0
            metric.value = 0.0 if results is None else self._result(results)

    # Events.

    def nvmlEventSetCreate(self) -> FakeDevice:
        self._enter("nvmlEventSetCreate")
        self.events += 1
        return FakeDevice("")

    def nvmlDeviceRegisterEvents(self, device: FakeDevice, types: int, events: FakeDevice) -> None:
        self._enter("nvmlDeviceRegisterEvents")
        assert types == 0x8
        events.xids = device.xids  # the set and the device share their queue

    def nvmlEventSetWait_v2(self, events: FakeDevice, timeout_ms: int) -> Any:
        self._enter("nvmlEventSetWait_v2")
        assert timeout_ms <= 1
        if not events.xids:
            raise FakeNvmlError(CODES["Timeout"])
        return SimpleNamespace(eventType=0x8, eventData=events.xids.pop(0))

    def nvmlEventSetFree(self, events: FakeDevice) -> None:
        self._enter("nvmlEventSetFree")
        assert not events.uuid
        self.events -= 1
