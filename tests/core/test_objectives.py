"""The one-line form, and files of objectives: what is read, and what is said of mistakes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ufwatch import objectivefile
from ufwatch.config import DEFAULT_OBJECTIVES, Objective
from ufwatch.core import objectives, openslo
from ufwatch.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ttft < 800ms, 95%", Objective(id="ttft", metric="ttft", threshold_seconds=0.8, ratio=0.95)),
        ("ttft <= 0.8, 95 %", Objective(id="ttft", metric="ttft", threshold_seconds=0.8, ratio=0.95)),
        (
            "patience: ttft<2.3s,99%,28d",
            Objective(id="patience", metric="ttft", threshold_seconds=2.3, ratio=0.99, window_days=28),
        ),
        ("availability, 99.95%", Objective(id="availability", metric="availability", ratio=0.9995)),
        (
            "smoothness: jitter ≤ 80ms, 99%, 1w",
            Objective(id="smoothness", metric="jitter", threshold_seconds=0.08, ratio=0.99, window_days=7),
        ),
    ],
)
def test_a_line_is_an_objective(line: str, found: Objective) -> None:
    assert objectives.native(line) == found
    assert objectives.native(objectives.native_line(found)) == found


@given(st.text(alphabet="atf :<≤=,.%0159msd-_", max_size=40))
def test_no_line_raises_anything_but_a_value_error(line: str) -> None:
    found = None
    with contextlib.suppress(ValueError):
        found = objectives.native(line)
    assert found is None or 0 < found.ratio < 1


def test_the_defaults_survive_their_own_files() -> None:
    text = yaml.safe_dump_all([openslo.document(each) for each in DEFAULT_OBJECTIVES])
    assert objectivefile.parse(text, "slos.yaml") == DEFAULT_OBJECTIVES
    lines = "slos:\n" + "".join(f'  - "{objectives.native_line(each)}"\n' for each in DEFAULT_OBJECTIVES)
    assert objectivefile.parse(lines, "slos.yaml") == DEFAULT_OBJECTIVES


SLO = """\
apiVersion: openslo/v1
kind: SLO
metadata:
  name: ttft
  displayName: first character
spec:
  description: people wait
  service: chat
  indicatorRef: first-token
  timeWindow:
    - duration: 28d
      isRolling: true
  budgetingMethod: Occurrences
  objectives:
    - displayName: fast
      target: 0.95
"""
SLI = """\
---
# the indicator is a document of its own
apiVersion: openslo/v1
kind: SLI
metadata:
  name: first-token
spec:
  ratioMetric:
    counter: true
    good:
      metricSource:
        type: Prometheus
        spec:
          query: sum(rate(vllm:time_to_first_token_seconds_bucket{le="1.0"}[{{.window}}]))
    total:
      metricSource:
        type: Prometheus
        spec:
          query: sum(rate(vllm:time_to_first_token_seconds_count[{{.window}}]))
"""


def test_an_indicator_may_be_a_document_of_its_own() -> None:
    found = Objective(id="ttft", metric="ttft", threshold_seconds=1.0, ratio=0.95, window_days=28)
    assert objectivefile.parse(SLO + SLI, "a.yaml") == (found,)
    assert objectivefile.parse(SLI.removeprefix("---\n") + "---\n" + SLO, "a.yaml") == (found,)


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        (
            "openslo/v1\nkind: SLO",
            "openslo/v1alpha\nkind: SLO",
            'apiVersion: "openslo/v1alpha" is not supported; known',
        ),
        ("kind: SLO", "kind: Service", 'kind: "Service" is not supported; known are SLO, SLI (line 2)'),
        ("target: 0.95", "target: 1", "spec.objectives[0].target: an objective of 100% leaves no error budget"),
        ("target: 0.95", "target: 0.0", "spec.objectives[0].target: an objective of 0% asks for nothing"),
        ("target: 0.95", "target: 0.9", "spec.objectives[0].target: an objective of 90% can burn 10 times"),
        ("target: 0.95", "target: 0.95\n      compositeWeight: 2", "spec.objectives[0].compositeWeight: unknown key"),
        ("28d", "90d", 'spec.timeWindow[0].duration: a window of "90d" is not supported; use 7d, 28d or 30d (line 11)'),
        ("isRolling: true", "isRolling: false", "spec.timeWindow[0].isRolling: calendar windows are not supported"),
        ("Occurrences", "RatioTimeslices", 'spec.budgetingMethod: "RatioTimeslices" is not supported'),
        ("first-token\n  time", "second-token\n  time", 'spec.indicatorRef: no SLI named "second-token" in this file'),
        ("counter: true", "counter: false", "spec.ratioMetric.counter: only counters are supported"),
        ("time_to_first_token_seconds_count", "requests_total_count", 'unknown metric "vllm:requests_total"'),
        ('{le="1.0"}', '{job="a",le="1.0"}', 'the matcher {job="a",le="1.0"} is not supported'),
        ("type: Prometheus", "type: Datadog", 'metricSource.type: "Datadog" is not known; choose from'),
        ("  service: chat\n", "  service: chat\n  alertPolicies: [{}]\n", "spec.alertPolicies: unknown key"),
        ("name: ttft", "name: Time to first token", 'metadata.name: "Time to first token" is no name'),
    ],
)
def test_what_is_not_supported_names_its_field(old: str, new: str, mistake: str) -> None:
    text = (SLO + SLI).replace(old, new, 1)
    assert text != SLO + SLI
    with pytest.raises(ConfigError) as caught:
        objectivefile.parse(text, "a.yaml")
    assert [line for line in caught.value.mistakes if mistake in line], caught.value.mistakes
    assert all("\n" not in line for line in caught.value.mistakes)


def test_clashing_names_in_a_file_are_told() -> None:
    with pytest.raises(ConfigError, match=r'the same name "ttft" as'):
        objectivefile.parse(SLO + SLI + "---\n" + SLO, "a.yaml")


SLOTH = """\
version: prometheus/v1
service: chat
labels: {owner: team}
slos:
  - name: ttft
    objective: 99.5
    description: people wait
    sli:
      events:
        error_query: |
          sum(rate(vllm:time_to_first_token_seconds_count[{{.window}}]))
          - sum(rate(vllm:time_to_first_token_seconds_bucket{le="2.5"}[{{.window}}]))
        total_query: sum(rate(vllm:time_to_first_token_seconds_count[{{.window}}]))
    alerting:
      name: Slow
      page_alert: {labels: {severity: critical}}
"""


def test_a_file_of_sloth_is_read() -> None:
    found = Objective(id="ttft", metric="ttft", threshold_seconds=2.5, ratio=0.995)
    assert objectivefile.parse(SLOTH, "sloth.yml") == (found,)


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("99.5", "100", "slos[0].objective: an objective of 100% leaves no error budget"),
        ('le="2.5"', 'code="5.."', "is not supported"),
        ("total_query: sum(rate(vllm:time_to_first", "total_query: sum(rate(vllm:inter", "unknown metric"),
        ("      events:", "      raw:", "slos[0].sli: events is missing"),
        ("labels: {owner: team}", "slo_plugins: {}", "slo_plugins: unknown key"),
    ],
)
def test_what_sloth_has_and_we_have_not_is_told(old: str, new: str, mistake: str) -> None:
    with pytest.raises(ConfigError) as caught:
        objectivefile.parse(SLOTH.replace(old, new, 1), "sloth.yml")
    assert any(mistake in line for line in caught.value.mistakes), caught.value.mistakes


@pytest.mark.parametrize(
    "text", ["a", "[]", "slos: 1", "kind: SLO", "apiVersion: openslo/v1", "version: prometheus/v2", "{}"]
)
def test_other_files_are_one_line_each(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        objectivefile.load(path)
    assert caught.value.mistakes
    assert all("\n" not in line for line in caught.value.mistakes)
