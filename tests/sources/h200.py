"""What was recorded on an H200 (driver 580.159, nvidia-ml-py 13.610), as a call table of the fake NVML."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
Calls = dict[str, list[Any]]


def h200_calls(phase: str, load: int) -> Calls:
    """The recorded H200 as a call table.

    ``phase`` is one of ``nvml_h200_more.json`` (idle, matmul: two-argument getters), ``load`` a position in the loads
    of ``nvml_h200.json`` (GPM against known loads); what was recorded once only is the same in all of them.
    """
    dump = json.loads((TESTS / "captures" / "gpu" / "nvml_h200.json").read_text())
    more = json.loads((TESTS / "captures" / "gpu" / "nvml_h200_more.json").read_text())[phase]
    gpm = {name.removeprefix("NVML_GPM_METRIC_"): value for name, value in dump["loads"][load]["gpm"].items()}
    memory = {k: int(v) for k, v in re.findall(r"(\w+): (\d+) B", more["MemoryInfo_v2"]["value"])}
    busy = re.search(r"gpu: (\d+) %", more["UtilizationRates"]["value"])
    assert busy is not None

    def once(name: str) -> Any:
        return dump["calls"][f"nvmlDeviceGet{name}"]["value"]

    table: dict[str, Any] = {
        "utilization_gpu": int(busy[1]),
        "memory_total": memory["total"],
        "memory_used": memory["used"],
        "memory_reserved": memory["reserved"],
        "power_mw": more["PowerUsage"]["value"],
        "power_limit_mw": once("EnforcedPowerLimit"),
        "temperature_c": more["Temperature(GPU)"]["value"],
        "clock_mhz:1": more["ClockInfo(sm)"]["value"],
        "clock_mhz:2": more["ClockInfo(mem)"]["value"],
        "clock_max_mhz:1": more["MaxClockInfo(sm)"]["value"],
        "clock_max_mhz:2": more["MaxClockInfo(mem)"]["value"],
        "clock_reasons": more["ClocksEventReasons"]["value"],
        "remapped_rows": once("RemappedRows"),
        "pcie_replays": once("PcieReplayCounter"),
        "energy_mj": once("TotalEnergyConsumption"),
        "mig_mode": once("MigMode"),
        "gpm:2": gpm["SM_UTIL"][0],
        "gpm:20": gpm["PCIE_TX_PER_SEC"][0],
        "gpm:21": gpm["PCIE_RX_PER_SEC"][0],
    }
    for kind in (0, 1):
        for counter in (0, 1):
            table[f"ecc:{kind}:{counter}"] = more[f"TotalEccErrors(type={kind},counter={counter})"]["value"]
    for number, name in (
        (74, "CLOCKS_EVENT_REASON_SW_POWER_CAP"),
        (75, "PERF_POLICY_THERMAL"),
        (76, "CLOCKS_EVENT_REASON_SYNC_BOOST"),
        (269, "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN"),
        (270, "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN"),
        (271, "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN"),
    ):
        table[f"field:{number}"] = dump["fields"][f"NVML_FI_DEV_{name}"]
    for policy in (0, 1, 2):
        table[f"violation_ns:{policy}"] = more[f"ViolationStatus({policy})"]["value"]["violationTime"]
    return {key: [value] for key, value in table.items()}
