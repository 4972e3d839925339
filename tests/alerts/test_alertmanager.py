"""Who is woken and by what: amtool on the committed configuration, and a live Alertmanager for what inhibits what."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.alertmanager_server import Alertmanager
from tests.processes import until
from tests.tools import require_tool
from ufwatch.alerts_catalogue import alerts
from ufwatch.render.rules import rule_files
from ufwatch.rule_forms import Alert, RuleOptions

FILE = Path(__file__).parents[2] / "alerts" / "alertmanager.yml"
HERE = {"instance": "i:1", "target": "a", "model_name": "m", "component": "ufwatch"}


def _amtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([require_tool("amtool"), *words], capture_output=True, text=True, check=False)


def test_amtool_accepts_it() -> None:
    done = _amtool("check-config", str(FILE))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", alerts(RuleOptions()), ids=lambda alert: alert.name)
def test_critical_pages_and_warning_is_a_ticket(alert: Alert) -> None:
    receiver = "pager" if alert.severity == "critical" else "ticket"
    labels = [f"alertname={alert.name}", f"severity={alert.severity}", "component=ufwatch"]
    done = _amtool("config", "routes", "test", f"--config.file={FILE}", f"--verify.receivers={receiver}", *labels)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_ours_is_a_ticket() -> None:
    done = _amtool(
        "config", "routes", "test", f"--config.file={FILE}", "--verify.receivers=ticket", "severity=critical"
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alertmanager]:
    with Alertmanager(
        tmp_path_factory.mktemp("alertmanager"), rule_files(RuleOptions())["alertmanager.yml"]
    ) as running:
        yield running


def _alert(name: str, target: str, **labels: str) -> dict[str, str]:
    return {**HERE, "alertname": f"Ufwatch{name}", "target": target, **labels}


CASES = {
    "a target that is down silences the rest of it": (
        [_alert("TelemetryStale", "t1", reason="target_down"), _alert("TelemetryStale", "t0", reason="source_stale")],
        [
            _alert("TokenJitterHigh", "t1"),
            _alert("TelemetryStale", "t1", reason="source_stale", source="textfile"),
            _alert("SloBurnFast", "t1", slo="ttft"),
        ],
    ),
    "a silent source silences nothing": (
        [_alert("TelemetryStale", "t2", reason="source_stale"), _alert("TokenJitterHigh", "t2")],
        [],
    ),
    "an outage pages once, by its availability": (
        [_alert("SloBurnFast", "t3", slo="availability")],
        [_alert("TelemetryStale", "t3", reason="target_down"), _alert("EngineStalled", "t3")],
    ),
    "a fast burn silences the slow one of the same SLO": (
        [_alert("SloBurnFast", "t4", slo="ttft"), _alert("SloBurnSlow", "t4", slo="tpot")],
        [_alert("SloBurnSlow", "t4", slo="ttft")],
    ),
    "a full memory silences what comes of it": (
        [_alert("MemoryBreakerOpen", "t5", kind="kv"), _alert("KvThrashing", "t0"), _alert("TokenJitterHigh", "t5")],
        [_alert("KvThrashing", "t5"), _alert("PinnedAllocFailing", "t5")],
    ),
    "a stalled engine silences its full cache": (
        [_alert("EngineStalled", "t6"), _alert("MemoryBreakerOpen", "t0", kind="kv")],
        [_alert("MemoryBreakerOpen", "t6", kind="kv")],
    ),
    "an agent that is down silences no target": (
        [
            {"alertname": "UfwatchTelemetryStale", "component": "ufwatch", "reason": "agent_down", "instance": "i:1"},
            {"alertname": "UfwatchGpuHardwareAgeing", "component": "ufwatch", "gpu": "0", "instance": "i:1"},
        ],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_inhibition(alertmanager: Alertmanager, case: str) -> None:
    active, suppressed = CASES[case]
    alertmanager.post(*active, *suppressed)

    def settled() -> bool:
        now = {frozenset(labels.items()): state for labels, state in alertmanager.states()}
        found = {frozenset(labels.items()): now.get(frozenset(labels.items())) for labels in (*active, *suppressed)}
        return all(found[frozenset(one.items())] == "active" for one in active) and all(
            found[frozenset(one.items())] == "suppressed" for one in suppressed
        )

    until(settled, 40)
