"""``ufwatch signals``: what a server offers, from which source, how exact at best, and whether there is a value now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import SHORT, Verb
from tests.processes import until
from tests.simulators import Simulators
from tests.sources.loopback import free_port
from ufwatch import catalogue
from ufwatch.sim.server import SimServer

VerbJson = Callable[..., tuple[int, Any]]


def _offer(document: Any, signal: str) -> list[tuple[str | None, str | None, str | None]]:
    (target,) = document["targets"]
    assert {row["signal"] for row in target["signals"]} == set(catalogue.SEVEN)
    return [(r["source"], r["quality"], r["reason"]) for r in target["signals"] if r["signal"] == signal]


def test_a_steady_server_offers_what_its_page_has(server: SimServer, verb_json: VerbJson) -> None:
    code, document = verb_json("signals", "--target", server.url, "--no-gpu")
    assert code == 0
    assert [offer[:2] for offer in _offer(document, "page_table_miss")] == [("prompt_tokens_by_source", "exact")]
    assert [offer[:2] for offer in _offer(document, "token_jitter")] == [("histogram", "bounded")]
    assert [offer[:2] for offer in _offer(document, "prefill_decode")] == [
        ("prompt_tokens_by_source", "exact"),
        ("request_seconds", "proxy"),
    ]
    for absent in ("kv_evictions", "graph_compile", "pinned_alloc_success", "sm_utilization"):
        assert _offer(document, absent) == [(None, None, "no_source")]


def test_an_idle_server_offers_the_same_and_says_why_there_is_no_value(
    simulators: Simulators, verb_json: VerbJson
) -> None:
    code, document = verb_json("signals", "--target", simulators.start("idle").url, "--no-gpu")
    assert code == 0
    assert _offer(document, "page_table_miss") == [("prompt_tokens_by_source", "exact", "idle")]
    assert _offer(document, "token_jitter") == [("histogram", "bounded", "idle")]


def test_a_server_without_statistics_offers_nothing(simulators: Simulators, verb_json: VerbJson) -> None:
    code, document = verb_json("signals", "--target", simulators.start("no_stats").url, "--no-gpu")
    assert code == 0
    assert _offer(document, "token_jitter") == [(None, None, "stats_disabled")]


def test_recycled_blocks_are_a_proxy(simulators: Simulators, verb_json: VerbJson) -> None:
    code, document = verb_json("signals", "--target", simulators.start("prefix_thrashing").url, "--no-gpu")
    assert code == 0
    assert _offer(document, "kv_evictions") == [("recycles", "proxy", None)]


def test_the_table_has_one_line_per_signal(server: SimServer, verb: Verb) -> None:
    code, out, complaints = verb("signals", "--target", f"a={server.url}", "--no-gpu", "--interval", SHORT)
    assert (code, complaints) == (0, "")
    name, *lines = out.splitlines()
    assert name == "a"
    assert [line.split()[0] for line in lines].count("prefill_decode") == 2
    assert "  sm_utilization" in out
    assert [line for line in lines if "page_table_miss" in line and "prompt_tokens_by_source" in line]
    assert all("  " in line and len(line) < 120 for line in lines)


def test_a_server_that_is_down_is_exit_2(verb: Verb) -> None:
    code, out, _ = verb("signals", "--target", f"a=http://127.0.0.1:{free_port()}", "--no-gpu", "--interval", SHORT)
    assert code == 2
    assert "starting" in out


def test_kv_events_are_exact_where_they_are_connected(
    simulators: Simulators, verb_json: VerbJson, tmp_path: Any
) -> None:
    pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    found = simulators.start("prefix_thrashing", kv_events=endpoint)
    until(lambda: found.engine.now > 0)
    file = tmp_path / "ufwatch.yaml"
    file.write_text(f"targets: [{{name: a, url: '{found.url}', kv_events: {{bind: '{endpoint}'}}}}]")
    code, document = verb_json("signals", "--config", str(file), "--no-gpu")
    assert code == 0
    assert _offer(document, "kv_evictions") == [("kv_events", "exact", None)]
