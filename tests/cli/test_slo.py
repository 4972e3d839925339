"""``ufwatch slo``: a running agent, what it has saved, and files of objectives."""

from __future__ import annotations

import io
import json
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Verb
from tests.processes import Running, until
from tests.simulators import BUSY, Simulators
from tests.slo.pages import Running as Agent
from ufwatch.cli.slo import exit_code
from ufwatch.clock import ManualClock, SystemClock
from ufwatch.config import DEFAULT_OBJECTIVES
from ufwatch.core import openslo

LABELS = '{target="a",model_name="sim/llama-3-8b",'


def test_an_agent_is_asked_while_it_runs_and_its_store_afterwards(
    simulators: Simulators, verb: Verb, tmp_path: Path
) -> None:
    own = simulators.start(BUSY)
    with Running("--target", f"a={own.url}", "--interval", "1s", "--no-gpu", "--state-dir", str(tmp_path)) as agent:
        until(
            lambda: (
                (agent.value('ufwatch_slo_events_total{target="a",model_name="sim/llama-3-8b",slo="ttft"}') or 0) > 3
            )
        )
        series = 'ufwatch_slo_events_total{target="a",model_name="sim/llama-3-8b",slo="availability"}'
        until(lambda: (agent.value(series) or 0) > 1)
        page = agent.page()
        code, out, complaints = verb("slo", "--url", agent.address, "--json")
        assert (code, complaints) == (0, "")
        document = json.loads(out)
        text = verb("slo", "--url", agent.address)
        bad = f'ufwatch_slo_bad_events_total{LABELS}slo="availability",bound="low"}}'
        assert agent.value(bad) == 0
        simulators.die(own)
        until(lambda: (agent.value(bad) or 0) > 0)
        agent.end()
    (target,) = document["targets"]
    slos = {slo["slo"]: slo for slo in target["slos"]}
    assert target["target"] == "a"
    assert list(slos) == [each.id for each in DEFAULT_OBJECTIVES]
    assert slos["availability"]["remaining_low"] == 1.0
    assert slos["ttft"]["state"] == "within"
    assert document["persisted"]
    for series in (
        'ufwatch_slo_objective_ratio{slo="ttft"} 0.95',
        'ufwatch_source_up{source="slo_store",target=""} 1.0',
    ):
        assert series in page
    assert (
        'ufwatch_slo_error_budget_remaining_ratio{target="a",model_name="sim/llama-3-8b",slo="ttft",bound="low"} 1.0'
        in page
    )
    assert text[0] == 0
    assert text[1].splitlines()[0] == "a"
    assert "ttft <= 0.8s, 95% over 30d" in text[1]
    code, out, complaints = verb("slo", "--state-dir", str(tmp_path), "--json")
    assert (code, complaints) == (1, "")  # availability: seconds ago it died
    (saved,) = json.loads(out)["targets"]
    assert {slo["slo"]: slo["events"] for slo in saved["slos"]}["ttft"] >= slos["ttft"]["events"]


def test_a_spent_budget_is_1_and_no_data_is_2(verb: Verb, tmp_path: Path) -> None:
    clock = ManualClock()
    clock.wall_offset = SystemClock().wall() - clock.now
    agent = Agent(tmp_path, clock)
    agent.look([])
    agent.save()
    code, out, _ = verb("slo", "--state-dir", str(tmp_path))
    assert code == 2
    assert "no data" in out
    assert "within" not in out
    agent.look([5.0] * 9)
    agent.end()
    code, out, _ = verb("slo", "--state-dir", str(tmp_path))
    assert code == 1
    assert "spent" in out


@pytest.mark.parametrize(
    ("states", "code"),
    [([], 2), (["no_data"], 2), (["within", "no_data"], 0), (["uncertain"], 0), (["within", "spent"], 1)],
)
def test_the_exit_code_is_the_worst_budgets(states: list[str], code: int) -> None:
    assert exit_code({"targets": [{"slos": [{"state": state} for state in states]}]}) == code


@pytest.mark.parametrize(
    "page",
    [
        b'{"targets": []}',
        b'{"targets": [1]}',
        b'{"targets": [{}]}',
        b'{"targets": [{"target": "a", "slos": [{"state": "within"}]}], "persisted": true}',
        b'{"targets": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_agent_is_never_a_spent_budget(verb: Verb, monkeypatch: pytest.MonkeyPatch, page: bytes) -> None:
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", lambda *_, **__: io.BytesIO(page))
    for words in ((), ("--json",)):
        code, out, complaints = verb("slo", *words)
        assert (code, out) == (2, "")
        assert "the answer is not an agent's; check the address" in complaints
        assert complaints.count("\n") == 1


def test_show_is_openslo_and_reads_back(verb: Verb, tmp_path: Path) -> None:
    path = tmp_path / "slos.yaml"
    path.write_text(
        'slos:\n  - ttft < 800ms, 95%\n  - "patience: ttft < 2.3s, 99%, 28d"\n  - patient2: ttft < 3s, 99%\n'
    )
    code, out, _ = verb("slo", "show", str(path))
    assert code == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(out)
    lines = "ttft: ttft < 0.8s, 95%, 30d\npatience: ttft < 2.3s, 99%, 28d\npatient2: ttft < 3s, 99%, 30d\n"
    assert verb("slo", "--check", str(shown)) == (0, lines, "")
    code, out, _ = verb("slo", "show", "--json")
    assert json.loads(out) == [openslo.document(each) for each in DEFAULT_OBJECTIVES]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--url", "http://127.0.0.1:1"], "ufwatch: http://127.0.0.1:1/api/v1/slo: "),
        (["--url", "ftp://a"], 'ufwatch: --url: scheme "ftp" is not http or https'),
        (["--state-dir", "/nowhere"], "ufwatch: /nowhere/slo.sqlite: no such file"),
        (["--state-dir", "/nowhere", "--url", "http://a"], "ufwatch: --state-dir: --url is given too"),
        (["--check", "/nowhere.yaml"], "/nowhere.yaml: cannot be read"),
        (["list"], "ufwatch: slo: 'list' is not known; write show, or show FILE"),
        (["show", "a", "--check", "b"], "ufwatch: --check: show is given too; drop one of them"),
        (["--basic-auth-file", "/nowhere"], "ufwatch: http://127.0.0.1:9817/api/v1/slo: "),
    ],
)
def test_mistakes_are_one_line_and_2(verb: Verb, words: list[str], line: str) -> None:
    code, out, complaints = verb("slo", *words)
    assert (code, out) == (2, "")
    assert complaints.startswith(line)
    assert complaints.count("\n") == 1


def test_each_mistake_of_a_file_has_its_line(verb: Verb, tmp_path: Path) -> None:
    path = tmp_path / "slos.yaml"
    path.write_text(
        "slos:\n  - ttft < 800ms, 100%\n  - speed < 1s, 99%\n  - tpot < 1s, 80%\n  - e2e < 1s, 99%\n  - e2e < 2s, 99%\n"
    )
    code, out, complaints = verb("slo", "--check", str(path))
    assert (code, out) == (2, "")
    assert [line.removeprefix(f"{path}: ").split(":")[0] for line in complaints.splitlines()] == [
        *("slos[0]", "slos[1]", "slos[2]", "slos[4]")
    ]


def test_objectives_of_the_configuration_are_the_agents(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text("slos: [ttft < 1s 99%]")
    path = tmp_path / "ufwatch.yaml"
    path.write_text("targets: [{url: http://a}]\nslos:\n  - file: chat.yaml\n  - availability, 99%\n")
    code, _, complaints = verb("run", "--check-config", "--config", str(path))
    assert code == 2
    assert complaints == (
        f'{path}: slos[0].file: {tmp_path}/chat.yaml: slos[0]: "ttft < 1s 99%" is not an objective; write it as '
        "ttft < 800ms, 95% (line 1) (line 3)\n"
    )
    (tmp_path / "chat.yaml").write_text('slos: ["ttft < 1s, 99%"]')
    assert verb("run", "--check-config", "--config", str(path))[0] == 0
