"""Which NVML call yields which field, what a call costs, and what NVML's return codes mean.

The module ``pynvml`` (or a stand-in) is an argument everywhere; it has no types, hence ``Any``. Codes and field ids are
written out as numbers: they are NVML's ABI, while the names come and go with the version of the Python binding.
Costs were measured on an H200, driver 580.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ufwatch.gpu_metrics import is_sentinel
from ufwatch.model import Reason

Nvml = Any
Handle = Any

UNINITIALIZED = 1
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
UNKNOWN = 999

SESSION_LOST = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""The driver went away under us, or was replaced: nothing works until NVML is initialised again."""

CARD_LOST = frozenset({GPU_IS_LOST, RESET_REQUIRED})

_REASONS = {
    2: Reason.NOT_SUPPORTED,  # InvalidArgument: how a card, or an older driver, says that it has no such thing
    3: Reason.NOT_SUPPORTED,
    FUNCTION_NOT_FOUND: Reason.NOT_SUPPORTED,
    25: Reason.NOT_SUPPORTED,  # ArgumentVersionMismatch: a struct newer than the driver
    26: Reason.NOT_SUPPORTED,  # Deprecated
    NO_PERMISSION: Reason.PERMISSION,
    TIMEOUT: Reason.TIMEOUT,
    LIBRARY_NOT_FOUND: Reason.NO_SOURCE,
    GPU_IS_LOST: Reason.LOST,
    RESET_REQUIRED: Reason.LOST,
}


def reason_of(code: int) -> Reason:
    """The closed reason for an NVML return code; Unknown (999) and the rest are the driver's fault."""
    return _REASONS.get(code, Reason.DRIVER)


class Failed(NamedTuple):
    """One member of an answer that carries its own return code."""

    code: int


class Yield(NamedTuple):
    """A field, and how its raw number becomes base units: ``raw * times / per``."""

    field: str
    times: float = 1.0
    per: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Getter:
    """One NVML call (or a few that stand or fall together) and the fields it yields, in the order of its answer.

    ``slow`` ones cost over 0.1 ms and are read about every 30 s. ``instead`` is asked where this one is not supported.
    ``source`` marks the fields of a call whose numbers mean something slightly different.
    """

    name: str
    yields: tuple[Yield, ...]
    read: Callable[[Nvml, Handle], Sequence[float | Failed]]
    slow: bool = False
    instead: Getter | None = None
    source: str | None = None

    def all_fields(self) -> tuple[str, ...]:
        """The fields of this getter and of those asked in its place."""
        later = self.instead.all_fields() if self.instead is not None else ()
        return tuple(dict.fromkeys((*(y.field for y in self.yields), *later)))


_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_GPU_SENSOR = 0
_CORRECTED, _UNCORRECTED = 0, 1
_VOLATILE, _AGGREGATE = 0, 1
_SW_POWER_CAP_BIT = 0x4
_ROW_PENDING = 2

_POLICY_POWER, _POLICY_THERMAL, _POLICY_SYNC_BOOST = 0, 1, 2
_FI_POWER, _FI_THERMAL, _FI_SYNC_BOOST = 74, 75, 76
_FI_SW_THERMAL, _FI_HW_THERMAL, _FI_HW_POWER_BRAKE = 269, 270, 271
_NANO = 1e9

_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _field_values(nvml: Nvml, handle: Handle, ids: Sequence[int]) -> list[float | Failed]:
    answers = nvml.nvmlDeviceGetFieldValues(handle, list(ids))
    return [
        Failed(answer.nvmlReturn)
        if answer.nvmlReturn or not 0 <= answer.valueType < len(_VALUE_MEMBERS)
        else getattr(answer.value, _VALUE_MEMBERS[answer.valueType])
        for answer in answers
    ]


def _memory_v2(nvml: Nvml, handle: Handle) -> Sequence[float | Failed]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    return memory.total, memory.used, memory.reserved


def _memory_v1(nvml: Nvml, handle: Handle) -> Sequence[float | Failed]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.total, memory.used


def _power_capped(mask: int) -> Sequence[float | Failed]:
    # A sentinel has that bit set too; it is passed on to be refused.
    return (mask if is_sentinel(mask) else float(bool(mask & _SW_POWER_CAP_BIT)),)


def _throttle(nvml: Nvml, handle: Handle) -> Sequence[float | Failed]:
    power, boost, software, hardware, brake, thermal = _field_values(
        nvml,
        handle,
        (_FI_POWER, _FI_SYNC_BOOST, _FI_SW_THERMAL, _FI_HW_THERMAL, _FI_HW_POWER_BRAKE, _FI_THERMAL),
    )
    if not (isinstance(software, Failed) and isinstance(hardware, Failed)):
        # The plain thermal counter is those two together: shown beside them, it would be counted twice.
        thermal = Failed(3)
    return power, boost, software, hardware, brake, thermal


def _violations(nvml: Nvml, handle: Handle) -> Sequence[float | Failed]:
    return [
        nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime
        for policy in (_POLICY_POWER, _POLICY_THERMAL, _POLICY_SYNC_BOOST)
    ]


def _ecc(kind: int) -> Getter:
    field = "ecc_uncorrected" if kind == _UNCORRECTED else "ecc_corrected"
    return Getter(
        name=field,
        yields=(Yield(field),),
        # Aggregate counts live in the card's inforom: a driver reload or a reset does not take them back to 0, so an
        # error that comes with the reset is still a difference. Volatile ones only where a card keeps no aggregate.
        read=lambda nvml, handle: (nvml.nvmlDeviceGetTotalEccErrors(handle, kind, _AGGREGATE),),
        instead=Getter(
            name=f"{field}_volatile",
            yields=(Yield(field),),
            read=lambda nvml, handle: (nvml.nvmlDeviceGetTotalEccErrors(handle, kind, _VOLATILE),),
            source="nvml_volatile",
        ),
    )


MEMORY = Getter(
    name="memory",
    yields=(Yield("memory_total_bytes"), Yield("memory_used_bytes"), Yield("memory_reserved_bytes")),
    read=_memory_v2,
    # v1 counts the driver's reserve (645 MB on an H200) as used from driver 510 on, and has no member for it. Only
    # drivers older than v2 (before 510) are left with it, and there used is used; it is marked all the same.
    instead=Getter(
        name="memory_v1",
        yields=(Yield("memory_total_bytes"), Yield("memory_used_bytes")),
        read=_memory_v1,
        source="nvml_v1",
    ),
)

UTILIZATION = Getter(
    name="utilization",
    yields=(Yield("gpu_busy_ratio", per=100.0),),
    read=lambda nvml, handle: (nvml.nvmlDeviceGetUtilizationRates(handle).gpu,),
)

GETTERS: tuple[Getter, ...] = (
    UTILIZATION,
    MEMORY,
    Getter(
        name="power",
        yields=(Yield("power_watts", per=1e3),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetPowerUsage(handle),),
    ),
    Getter(
        name="power_limit",
        yields=(Yield("power_limit_watts", per=1e3),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetEnforcedPowerLimit(handle),),
    ),
    Getter(
        name="temperature",
        yields=(Yield("temperature_celsius"),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetTemperature(handle, _GPU_SENSOR),),
    ),
    Getter(
        name="sm_clock",
        yields=(Yield("sm_clock_hertz", times=1e6),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK),),
    ),
    Getter(
        name="memory_clock",
        yields=(Yield("memory_clock_hertz", times=1e6),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetClockInfo(handle, _MEMORY_CLOCK),),
    ),
    Getter(
        name="clock_reasons",
        yields=(Yield("power_capped"),),
        read=lambda nvml, handle: _power_capped(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
        # The same call before driver 535.
        instead=Getter(
            name="throttle_reasons",
            yields=(Yield("power_capped"),),
            read=lambda nvml, handle: _power_capped(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        ),
    ),
    _ecc(_CORRECTED),
    _ecc(_UNCORRECTED),
    Getter(
        name="row_remap",
        yields=(Yield("row_remap_pending"),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetRemappedRows(handle)[_ROW_PENDING],),
    ),
    Getter(  # 0.17 ms
        name="pcie_replays",
        yields=(Yield("pcie_replays"),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetPcieReplayCounter(handle),),
        slow=True,
    ),
    Getter(  # 3.5 ms
        name="energy",
        yields=(Yield("energy_joules", per=1e3),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle),),
        slow=True,
    ),
    Getter(  # 1.6 ms
        name="sm_clock_max",
        yields=(Yield("sm_clock_max_hertz", times=1e6),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK),),
        slow=True,
    ),
    Getter(  # 1.4 ms
        name="memory_clock_max",
        yields=(Yield("memory_clock_max_hertz", times=1e6),),
        read=lambda nvml, handle: (nvml.nvmlDeviceGetMaxClockInfo(handle, _MEMORY_CLOCK),),
        slow=True,
    ),
    Getter(  # 4.5 ms for six
        name="throttle",
        yields=(
            Yield("throttle_sw_power_cap_seconds", per=_NANO),
            Yield("throttle_sync_boost_seconds", per=_NANO),
            Yield("throttle_sw_thermal_seconds", per=_NANO),
            Yield("throttle_hw_thermal_seconds", per=_NANO),
            Yield("throttle_hw_power_brake_seconds", per=_NANO),
            Yield("throttle_thermal_seconds", per=_NANO),
        ),
        read=_throttle,
        slow=True,
        instead=Getter(  # 1.4 ms each; nanoseconds too (referenceTime alone is in microseconds)
            name="violations",
            yields=(
                Yield("throttle_sw_power_cap_seconds", per=_NANO),
                Yield("throttle_thermal_seconds", per=_NANO),
                Yield("throttle_sync_boost_seconds", per=_NANO),
            ),
            read=_violations,
            slow=True,
        ),
    ),
)
"""Everything asked of a card besides GPM and events. Never ``PcieThroughput``: it blocks for 21 ms a direction."""

MIG_GETTERS: tuple[Getter, ...] = (MEMORY,)
"""What a MIG instance answers itself; power, clocks and health are its parent's."""

GPM_YIELDS: dict[int, Yield] = {
    2: Yield("sm_utilization_ratio", per=100.0),
    20: Yield("pcie_tx_bytes_per_second", times=2.0**20),
    21: Yield("pcie_rx_bytes_per_second", times=2.0**20),
}
"""GPM metric ids: SM_UTIL in percent, PCIE_TX_PER_SEC and PCIE_RX_PER_SEC in MiB/s."""
