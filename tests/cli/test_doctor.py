"""``ufwatch doctor``: verdicts with their evidence, the flag that helps, and exit codes for scripts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHORT, Verb
from tests.page_server import PageServer
from tests.pages import engine_page
from tests.simulators import Simulators
from tests.sources.loopback import free_port
from ufwatch import catalogue
from ufwatch.sim.server import SimServer

VerbJson = Callable[..., tuple[int, Any]]


def _findings(document: Any) -> dict[str, tuple[str, str, str]]:
    (target,) = document["targets"]
    assert all(list(line) == ["about", "verdict", "evidence", "fix"] for line in target["findings"])
    return {line["about"]: (line["verdict"], line["evidence"], line["fix"] or "") for line in target["findings"]}


def test_a_steady_server_is_no_fault(server: SimServer, verb_json: VerbJson) -> None:
    code, document = verb_json("doctor", "--target", server.url, "--no-gpu")
    found = _findings(document)
    assert code == 0
    assert [about for about in found if about != "server flags"] == ["target", *catalogue.SEVEN]
    assert found["target"][:2] == ("good", "answers, serving, 1 engine(s)")
    verdict, evidence, _ = found["page_table_miss"]
    assert verdict == "good"
    assert "each prompt token once; blocks of 16 tokens, so shorter shared prefixes never hit" in evidence
    assert found["prefill_decode"][0] == "good"
    verdict, evidence, fix = found["token_jitter"]
    assert (verdict, evidence) == ("could be better", "bounded by a histogram of 19 edges")
    assert "--custom-histogram-buckets" in fix
    verdict, evidence, fix = found["kv_evictions"]
    assert (verdict, evidence) == ("absent", "the page has no eviction family, and preemptions are not evictions")
    assert "--kv-events-config" in fix
    assert found["graph_compile"][0] == found["pinned_alloc_success"][0] == found["sm_utilization"][0] == "absent"


def test_cards_that_nobody_wants_read_are_no_advice(server: SimServer, verb_json: VerbJson) -> None:
    _, document = verb_json("doctor", "--target", server.url, "--no-gpu")
    assert _findings(document)["sm_utilization"] == (
        "absent",
        "reading cards is switched off (--no-gpu, gpu.enabled)",
        "",
    )


def test_every_absence_says_what_to_do(server: SimServer, verb_json: VerbJson) -> None:
    _, document = verb_json("doctor", "--target", server.url)
    for about, (verdict, evidence, fix) in _findings(document).items():
        assert evidence, about
        assert fix or verdict in ("good", "cannot tell"), about


def test_statistics_switched_off_are_a_fault(simulators: Simulators, verb_json: VerbJson) -> None:
    code, document = verb_json("doctor", "--target", simulators.start("no_stats").url, "--no-gpu")
    found = _findings(document)
    assert code == 1
    assert found["target"][0] == "fault"
    assert found["target"][2] == "start vLLM without --disable-log-stats"
    assert found["server flags"][0] == "cannot tell"


def test_prefix_caching_switched_off_is_by_design(verb_json: VerbJson) -> None:
    info = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0"} 1'
    with PageServer(engine_page(prompt=5, generation=9, more=info)) as server:
        code, document = verb_json("doctor", "--target", server.url, "--no-gpu")
    assert code == 0
    verdict, evidence, fix = _findings(document)["page_table_miss"]
    assert (verdict, evidence) == ("could be better", "prefix caching is off: every look-up misses, by design")
    assert fix == "start vLLM with --enable-prefix-caching"


def test_a_page_of_something_else_is_a_fault(verb_json: VerbJson) -> None:
    with PageServer(b"# TYPE go_goroutines gauge\ngo_goroutines 3\n") as server:
        code, document = verb_json("doctor", "--target", server.url, "--no-gpu")
    assert code == 1
    assert _findings(document)["target"][0] == "fault"
    assert "point the url at the engine itself" in _findings(document)["target"][2]


@pytest.mark.parametrize("way", ["bind", "connect"])
def test_kv_events_that_nobody_publishes_are_a_fault_that_names_both_ways(
    server: SimServer, verb: Verb, tmp_path: Path, way: str
) -> None:
    pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    file = tmp_path / "ufwatch.yaml"
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    file.write_text(f"targets: [{{name: a, url: '{server.url}', kv_events: {{{way}: '{endpoint}'}}}}]")
    code, out, complaints = verb("doctor", "--config", str(file), "--no-gpu", "--interval", SHORT)
    assert (code, complaints) == (1, "")
    lines = out.splitlines()
    at = next(n for n, line in enumerate(lines) if "kv_evictions" in line)
    assert lines[at].startswith("  FAULT   kv_evictions")
    assert "->" in lines[at + 1]
    for word in ("--kv-events-config", "vLLM connects, and we must bind:"):
        assert word in lines[at + 1]


def test_kv_events_that_arrive_are_good(simulators: Simulators, verb_json: VerbJson, tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    thrashing = simulators.start("prefix_thrashing", kv_events=endpoint)
    file = tmp_path / "ufwatch.yaml"
    file.write_text(f"targets: [{{name: a, url: '{thrashing.url}', kv_events: {{bind: '{endpoint}'}}}}]")
    code, document = verb_json("doctor", "--config", str(file), "--no-gpu")
    assert code == 0
    assert _findings(document)["kv_evictions"] == ("good", "every eviction is counted as a BlockRemoved event", "")


def test_text_files_without_a_living_writer_are_a_fault(server: SimServer, verb_json: VerbJson, tmp_path: Path) -> None:
    file = tmp_path / "ufwatch.yaml"
    file.write_text(f"targets: [{{name: a, url: '{server.url}', textfile: '{tmp_path}'}}]")
    code, document = verb_json("doctor", "--config", str(file), "--no-gpu")
    assert code == 1
    assert _findings(document)["pinned_alloc_success"][0] == "fault"


def test_what_an_exporter_says_it_cannot_give_is_the_evidence(
    server: SimServer, verb_json: VerbJson, tmp_path: Path
) -> None:
    now = time.time()
    lines = [
        f"# ufwatch {now + 30:.3f} {now:.3f}",
        "# absent ufwatch_pinned_alloc_attempts_total: this PyTorch has no CUDA\x1b[31m",
        "# absent token_intervals_total: statistics are off",
        'ufwatch_graph_compiles_total{phase="compile",cache="cold"} 1',
    ]
    (tmp_path / "worker-1.prom").write_text("\n".join([*lines, ""]))
    file = tmp_path / "ufwatch.yaml"
    file.write_text(f"targets: [{{name: a, url: '{server.url}', textfile: '{tmp_path}'}}]")
    _, document = verb_json("doctor", "--config", str(file), "--no-gpu")
    found = _findings(document)
    said = "the exporter inside the server says: "
    assert found["pinned_alloc_success"] == ("absent", f"{said}this PyTorch has no CUDA [31m", "")
    assert found["token_jitter"][1].endswith(f"{said}statistics are off")
    assert found["graph_compile"][1] == "the text files are alive but have no such counter"


def test_a_server_that_cannot_be_read_is_exit_2(verb: Verb) -> None:
    port = free_port()
    code, out, _ = verb("doctor", "--target", f"a=http://127.0.0.1:{port}", "--no-gpu", "--interval", SHORT)
    assert code == 2
    assert out.startswith(f"a\n  FAULT   target                127.0.0.1:{port}: Connection refused\n")
    assert "-> start the server, or correct the address and port" in out
