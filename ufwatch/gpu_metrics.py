"""What a GPU poll may contain: field names, their base units and believable ranges, and the families they become.

Floor 1: pure. The key of ``CardSnapshot.values`` is a field's name; a family with an extra label (``kind``, ``reason``,
``type``) is fed by several fields, one per label value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ufwatch.model import Labels
from ufwatch.spec import Kind, MetricSpec

CARD_LABELS = ("gpu", "uuid", "mig")


def _gauge(name: str, text: str, *extra: str) -> MetricSpec:
    return MetricSpec(name=name, kind=Kind.GAUGE, labels=(*CARD_LABELS, *extra), help=text)


def _counter(name: str, text: str, *extra: str) -> MetricSpec:
    return MetricSpec(name=name, kind=Kind.COUNTER, labels=(*CARD_LABELS, *extra), help=text)


UP = _gauge("gpu_up", "1 while the card answers; 0 once it is lost or the driver does not answer.")
SM_UTILIZATION = _gauge(
    "sm_utilization_ratio",
    "Share of the cycles of all streaming multiprocessors with at least one warp resident, averaged over the poll.",
    "source",
)
BUSY = _gauge(
    "gpu_busy_ratio",
    "Share of time in which any kernel ran, however small; not SM utilization.",
)
MEMORY = _gauge(
    "gpu_memory_bytes", "Memory of the card; reserved is kept by the driver and is not part of used.", "kind"
)
TEMPERATURE = _gauge("gpu_temperature_celsius", "Temperature of the GPU.")
POWER = _gauge("gpu_power_watts", "Power drawn by the card.")
POWER_LIMIT = _gauge("gpu_power_limit_watts", "Power limit in force.")
CLOCK = _gauge("gpu_clock_hertz", "Clock of the streaming multiprocessors or of the memory.", "kind")
CLOCK_MAX = _gauge("gpu_clock_max_hertz", "Highest clock of the streaming multiprocessors or of the memory.", "kind")
PCIE_RATE = _gauge(
    "gpu_pcie_bytes_per_second", "PCIe traffic to (rx) and from (tx) the card, averaged over the poll.", "kind"
)
ROW_REMAP_PENDING = _gauge(
    "gpu_row_remap_pending", "1 while the remapping of a faulty memory row waits for a reset of the card."
)
AGEING_DRIFT = _gauge(
    "gpu_ageing_drift_ratio",
    "How much longer the card's engine steps of the last hour took than in the first week under the same load, clocks, "
    "temperature and engine; absent until a week and 3 such conditions are known. Cards of one engine share it.",
)
ENERGY = _counter("gpu_energy_joules_total", "Energy used by the card since the agent started.")
THROTTLE = _counter(
    "gpu_throttle_seconds_total",
    "Time the clocks were held down since the agent started, by reason; reasons overlap and are never added.",
    "reason",
)
PCIE_REPLAYS = _counter("gpu_pcie_replays_total", "PCIe packets sent again since the agent started.")
ECC_ERRORS = _counter("gpu_ecc_errors_total", "Memory errors seen by ECC since the agent started.", "type")
XID_ERRORS = _counter(
    "gpu_xid_errors_total", "XID errors of the driver since the agent started, by class; the number is logged.", "class"
)
REJECTED = _counter(
    "gpu_rejected_values_total", "Values of the driver refused as sentinels or impossible since the agent started."
)
TARGET_INFO = MetricSpec(
    name="target_gpu_info",
    kind=Kind.GAUGE,
    labels=("target", *CARD_LABELS),
    help="1 for each card a target is configured to use; joins GPU series to targets.",
)

GPU_FAMILIES: tuple[MetricSpec, ...] = (
    SM_UTILIZATION,
    BUSY,
    MEMORY,
    UP,
    TEMPERATURE,
    POWER,
    POWER_LIMIT,
    CLOCK,
    CLOCK_MAX,
    PCIE_RATE,
    ROW_REMAP_PENDING,
    AGEING_DRIFT,
    ENERGY,
    THROTTLE,
    PCIE_REPLAYS,
    ECC_ERRORS,
    XID_ERRORS,
    REJECTED,
    TARGET_INFO,
)
"""Every family of the cards, in page order."""


class XidClass(StrEnum):
    """What kind of trouble an XID speaks of (NVIDIA's XID catalogue, condensed to what an operator would do)."""

    HARDWARE_MEMORY = "hardware_memory"
    NVLINK_BUS = "nvlink_bus"
    PAGE_FAULT = "page_fault"
    APPLICATION = "application"
    DRIVER_FIRMWARE = "driver_firmware"
    OTHER = "other"


_XIDS = {
    # 48 double-bit ECC; 63/64 row remapping done/failed; 92 high rate of corrected errors; 94/95 contained and
    # uncontained ECC; 140 unrecovered ECC; 156/157 and 160/161 memory resources and channels retired; 171/172
    # uncorrectable DRAM and SRAM errors.
    XidClass.HARDWARE_MEMORY: (48, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 171, 172),
    # 74 NVLink; 79 fallen off the bus; 121 C2C link; 137 and 144-150, 155 NVLink units of newer chips.
    XidClass.NVLINK_BUS: (74, 79, 121, 137, *range(144, 151), 155),
    XidClass.PAGE_FAULT: (31,),
    # 8 channel idle for too long; 13 graphics engine exception; 32 corrupted push buffer; 43 reset channel of one
    # application; 45 its clean-up; 69 graphics class error.
    XidClass.APPLICATION: (8, 13, 32, 43, 45, 69),
    # 38 firmware error; 46 GPU stopped processing (needs a reset); 56/57 display and frame-buffer programming; 61/62
    # PMU; 109 context switch timeout; 119/120 GSP; 122-126 SPI, inforom and PMU calls; 143 start-up; 154 recovery
    # action changed; 158 fatal timeout.
    XidClass.DRIVER_FIRMWARE: (38, 46, 56, 57, 61, 62, 109, 119, 120, 122, 123, 124, 125, 126, 143, 154, 158),
}
_XID_CLASS = {number: xid_class for xid_class, numbers in _XIDS.items() for number in numbers}


def xid_class(number: int) -> XidClass:
    """The closed label for an XID number; the number itself belongs in the log."""
    return _XID_CLASS.get(number, XidClass.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuField:
    """One value of a card: what range is believable (in base units) and which family shows it.

    ``metric`` is None for what is known but not exported. ``slack`` is how far over ``high`` a value is still taken as
    ``high``: GPM divides two counters that are not read in the same cycle.
    """

    name: str
    high: float
    low: float = 0.0
    slack: float = 0.0
    metric: MetricSpec | None
    labels: Labels = ()


_TEBIBYTES_16 = 16 * 2.0**40
_HERTZ_10G = 1e10
_WATTS_20K = 2e4
_SECONDS_100Y = 3.2e9
_COUNT = 1e15


def _throttled(reason: str) -> GpuField:
    return GpuField(
        name=f"throttle_{reason}_seconds", high=_SECONDS_100Y, metric=THROTTLE, labels=(("reason", reason),)
    )


FIELDS: dict[str, GpuField] = {
    field.name: field
    for field in (
        GpuField(name="sm_utilization_ratio", high=1.0, slack=0.005, metric=SM_UTILIZATION),
        GpuField(name="gpu_busy_ratio", high=1.0, metric=BUSY),
        GpuField(name="memory_used_bytes", high=_TEBIBYTES_16, metric=MEMORY, labels=(("kind", "used"),)),
        GpuField(name="memory_total_bytes", low=1.0, high=_TEBIBYTES_16, metric=MEMORY, labels=(("kind", "total"),)),
        GpuField(name="memory_reserved_bytes", high=_TEBIBYTES_16, metric=MEMORY, labels=(("kind", "reserved"),)),
        GpuField(name="temperature_celsius", high=150.0, metric=TEMPERATURE),
        GpuField(name="power_watts", high=_WATTS_20K, metric=POWER),
        GpuField(name="power_limit_watts", low=1.0, high=_WATTS_20K, metric=POWER_LIMIT),
        GpuField(name="sm_clock_hertz", high=_HERTZ_10G, metric=CLOCK, labels=(("kind", "sm"),)),
        GpuField(name="memory_clock_hertz", high=5 * _HERTZ_10G, metric=CLOCK, labels=(("kind", "memory"),)),
        GpuField(name="sm_clock_max_hertz", low=1.0, high=_HERTZ_10G, metric=CLOCK_MAX, labels=(("kind", "sm"),)),
        GpuField(
            name="memory_clock_max_hertz", low=1.0, high=5 * _HERTZ_10G, metric=CLOCK_MAX, labels=(("kind", "memory"),)
        ),
        GpuField(name="pcie_rx_bytes_per_second", high=1e13, metric=PCIE_RATE, labels=(("kind", "rx"),)),
        GpuField(name="pcie_tx_bytes_per_second", high=1e13, metric=PCIE_RATE, labels=(("kind", "tx"),)),
        GpuField(name="row_remap_pending", high=1.0, metric=ROW_REMAP_PENDING),
        # Not exported (no family of the contract): one of the conditions a step time is compared under.
        GpuField(name="power_capped", high=1.0, metric=None),
        GpuField(name="energy_joules", high=1e13, metric=ENERGY),
        _throttled("sw_power_cap"),
        _throttled("sw_thermal"),
        _throttled("hw_thermal"),
        _throttled("hw_power_brake"),
        _throttled("sync_boost"),
        # Only from drivers that do not tell software from hardware slowdowns; never beside the two above.
        _throttled("thermal"),
        GpuField(name="pcie_replays", high=_COUNT, metric=PCIE_REPLAYS),
        GpuField(name="ecc_corrected", high=_COUNT, metric=ECC_ERRORS, labels=(("type", "corrected"),)),
        GpuField(name="ecc_uncorrected", high=_COUNT, metric=ECC_ERRORS, labels=(("type", "uncorrected"),)),
    )
}

_BLANK_INT64 = float(2**63 - 1024)
_BLANK_FP64 = 2.0**47
_BLANK_INT32 = 0x7FFFFFF0
_ALL_ONES_32 = 0xFFFFFFFF


def is_sentinel(raw: float) -> bool:
    """True for the numbers that drivers send in place of a value.

    −1 and all ones are NVML's VALUE_NOT_AVAILABLE; 0x7ffffff0…, 0x7ffffffffffffff0… and 2^47… are DCGM's blanks, which
    stay after an XID until the watch is resumed (NVIDIA/DCGM#202). Everything from just under 2^63 up is refused.
    """
    return (
        not math.isfinite(raw)
        or raw < 0
        or raw >= _BLANK_INT64
        or _BLANK_FP64 <= raw < _BLANK_FP64 + 16
        or _BLANK_INT32 <= raw < _BLANK_INT32 + 16
        or raw == _ALL_ONES_32
    )


def accept(name: str, raw: float, times: float = 1.0, per: float = 1.0) -> float | None:
    """The raw number of a field in base units, or None where it cannot be true.

    A factor and a divisor, and not one factor, so that 57 % is 0.57 on the page and not 0.5700000000000001.
    """
    if is_sentinel(raw):
        return None
    field = FIELDS[name]
    value = raw * times / per
    if field.low <= value <= field.high:
        return value
    if field.high < value <= field.high + field.slack:
        return field.high
    return None
