"""What people read: templates filled in, units humanised, and links that open on what the alert is about."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.alerts.series import AGENT, CARD, HOST, TARGET, Page, series, written
from tests.alerts.stage import Stage
from tests.tools import require_tool
from ufwatch.render.rules import rule_files
from ufwatch.rule_forms import RuleOptions

_OPTIONS = RuleOptions(runbook_url="https://runbooks", grafana_url="https://grafana")


def _told(work: Path, page: Page, name: str, at: str, **expected: Any) -> None:
    """promtool sees exactly this alert of that name at that moment."""
    for file, content in rule_files(_OPTIONS).items():
        (work / file).write_text(content, encoding="utf-8")
    test = {
        "rule_files": ["recording.yml", "alerts.yml"],
        "evaluation_interval": "15s",
        "group_eval_order": ["ufwatch-signals", "ufwatch-slo", "ufwatch-slo-slow", "ufwatch-alerts"],
        "tests": [
            {
                "interval": "15s",
                "input_series": written(page),
                "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": [expected]}],
            }
        ],
    }
    (work / "test.yml").write_text(json.dumps(test), encoding="utf-8")
    done = subprocess.run(
        [require_tool("promtool"), "test", "rules", "test.yml"], cwd=work, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_jitter(tmp_path: Path) -> None:
    stage = Stage(15, 10)
    page = stage.page() | stage.tokens(lambda _: 0.0703)
    odd = {name.replace('"chat"', '"chat a&b"'): values for name, values in page.items()}
    _told(
        tmp_path,
        odd,
        "UfwatchTokenJitterHigh",
        "8m",
        exp_labels={
            "job": "ufwatch",
            "instance": HOST,
            "target": "chat a&b",
            "model_name": "m",
            "severity": "critical",
            "component": "ufwatch",
        },
        exp_annotations={
            "summary": "Tokens of chat a&b (m) arrive unevenly: 70.3ms of jitter.",
            "description": "The standard deviation of the time between tokens has been over 60 ms for five minutes; "
            "it is 70.3ms now, of the worst engine. Readers see text stutter.",
            "runbook_url": "https://runbooks/UfwatchTokenJitterHigh.md",
            "dashboard_url": "https://grafana/d/ufwatch-streaming?from=now-3h"
            "&var-target=chat+a%26b&var-model=m&var-instance=host%3A9817",
        },
    )


def test_an_absent_agent_has_no_labels_to_link_by(tmp_path: Path) -> None:
    _told(
        tmp_path,
        {},
        "UfwatchTelemetryStale",
        "5m",
        exp_labels={"job": "ufwatch", "reason": "agent_absent", "severity": "critical", "component": "ufwatch"},
        exp_annotations={
            "summary": "Prometheus knows no agent of job ufwatch.",
            "description": "What it would report is unknown until it is back; nothing here may be read as healthy.",
            "runbook_url": "https://runbooks/UfwatchTelemetryStale.md",
            "dashboard_url": "https://grafana/d/ufwatch-overview?from=now-3h",
        },
    )


def test_a_target_that_is_down(tmp_path: Path) -> None:
    stage = Stage(15, 10)
    ages: Page = {
        series("source_age_seconds", AGENT, source="vllm", target="chat"): [15.0 * n for n in range(stage.samples)]
    }
    _told(
        tmp_path,
        stage.page() | ages,
        "UfwatchTelemetryStale",
        "8m",
        exp_labels={
            "job": "ufwatch",
            "instance": HOST,
            "target": "chat",
            "source": "vllm",
            "reason": "target_down",
            "severity": "critical",
            "component": "ufwatch",
        },
        exp_annotations={
            "summary": "chat does not answer.",
            "description": "Its last proof of life is 8m 0s old, and it is not starting. What it would report is "
            "unknown until it is back; nothing here may be read as healthy.",
            "runbook_url": "https://runbooks/UfwatchTelemetryStale.md",
            "dashboard_url": "https://grafana/d/ufwatch-overview?from=now-3h&var-target=chat&var-instance=host%3A9817",
        },
    )


def test_a_burning_slo(tmp_path: Path) -> None:
    stage = Stage(15, 10)
    _told(
        tmp_path,
        stage.page() | stage.burning("ttft", 0.95, 0.8),
        "UfwatchSloBurnFast",
        "8m",
        exp_labels={
            "job": "ufwatch",
            "instance": HOST,
            "target": "chat",
            "model_name": "m",
            "slo": "ttft",
            "severity": "critical",
            "component": "ufwatch",
        },
        exp_annotations={
            "summary": "The ttft SLO of chat (m) burns 16.0 times too fast.",
            "description": "Events that miss the objective come 16.0 times as fast as it allows, in the short window "
            "and in the long one: a budget of 30 days would be gone within days.",
            "runbook_url": "https://runbooks/UfwatchSloBurnFast.md",
            "dashboard_url": "https://grafana/d/ufwatch-slo?from=now-3h"
            "&var-target=chat&var-model=m&var-instance=host%3A9817",
        },
    )


def test_a_card_with_memory_errors(tmp_path: Path) -> None:
    stage = Stage(15, 10)
    errors = {
        series("gpu_ecc_errors_total", CARD, type="uncorrected"): stage.count(lambda t: (1 / 15) if t == 240 else 0)
    }
    _told(
        tmp_path,
        stage.page() | errors,
        "UfwatchGpuHardwareAgeing",
        "8m",
        exp_labels={
            "job": "ufwatch",
            "instance": HOST,
            "gpu": "0",
            "uuid": "GPU-1",
            "reason": "ecc",
            "severity": "warning",
            "component": "ufwatch",
        },
        exp_annotations={
            "summary": "GPU 0 of host:9817 had memory errors that ECC could not correct.",
            "description": "1 uncorrected errors within a day; work that touched them was wrong or was killed. "
            "The card is GPU-1.",
            "runbook_url": "https://runbooks/UfwatchGpuHardwareAgeing.md",
            "dashboard_url": "https://grafana/d/ufwatch-gpu?from=now-3h&var-gpu=0&var-instance=host%3A9817",
        },
    )


def test_a_full_cache_and_lost_blocks(tmp_path: Path) -> None:
    """The texts that depend on a label: the other branch of each is what promtool's lint fills in."""
    stage = Stage(15, 12)
    blocks = {
        series("page_table_lookups_total", f'{TARGET},engine="0"', unit="block", source="engine"): stage.count(100),
        series("page_table_misses_total", f'{TARGET},engine="0"', unit="block", source="engine"): stage.count(50),
    }
    _told(
        tmp_path,
        stage.page() | blocks,
        "UfwatchPageTableMissHigh",
        "9m",
        exp_labels={
            "job": "ufwatch",
            "instance": HOST,
            "target": "chat",
            "model_name": "m",
            "unit": "block",
            "severity": "critical",
            "component": "ufwatch",
        },
        exp_annotations={
            "summary": "Running requests of chat (m) lose their KV blocks.",
            "description": "50% of the block look-ups of running requests found no block over 5 minutes, so work is "
            "done twice.",
            "runbook_url": "https://runbooks/UfwatchPageTableMissHigh.md",
            "dashboard_url": "https://grafana/d/ufwatch-memory?from=now-3h"
            "&var-target=chat&var-model=m&var-instance=host%3A9817",
        },
    )
