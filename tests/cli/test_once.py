"""``ufwatch once``: the JSON of the contract, a table a person can read, and exit codes for scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHORT, Verb
from tests.simulators import BUSY_PAIR, Simulators
from ufwatch import catalogue
from ufwatch.model import EngineState, Quality, Reason
from ufwatch.sim.server import SimServer

VerbJson = Callable[..., tuple[int, Any]]
TARGET_KEYS = ["target", "up", "state", "reason", "signals"]
SIGNAL_KEYS = ["signal", "labels", "value", "low", "high", "source", "quality", "reason"]
NOBODY = "http://127.0.0.1:9"


def _signals(target: Any, signal: str) -> list[Any]:
    return [entry for entry in target["signals"] if entry["signal"] == signal]


def _is_of_the_contract(document: Any) -> None:
    assert list(document) == ["targets"]
    for target in document["targets"]:
        assert list(target) == TARGET_KEYS
        assert target["state"] in {*EngineState, None}
        assert target["reason"] in {*Reason, None}
        assert {entry["signal"] for entry in target["signals"]} >= set(catalogue.SEVEN) - {"kv_evictions"}
        seen = [(entry["signal"], tuple(entry["labels"].items())) for entry in target["signals"]]
        assert len(seen) == len(set(seen))
        for entry in target["signals"]:
            assert list(entry) == SIGNAL_KEYS
            if entry["value"] is not None:
                assert entry["source"]
                assert entry["quality"] in set(Quality)
            elif entry["signal"].endswith("_p99") and entry["low"] is not None and entry["high"] is not None:
                assert entry["quality"] == "bounded"  # a quantile is two edges, never a number between them
            else:
                assert entry["reason"] in set(Reason)


def test_the_json_is_that_of_the_contract(simulators: Simulators, verb_json: VerbJson) -> None:
    two = simulators.start(BUSY_PAIR)
    code, document = verb_json("once", "--target", f"chat={two.url}", "--no-gpu")
    _is_of_the_contract(document)
    (target,) = document["targets"]
    assert (code, target["target"], target["up"], target["state"], target["reason"]) == (
        0,
        "chat",
        True,
        "serving",
        None,
    )
    assert [entry["labels"] for entry in _signals(target, "running")] == [{"engine": "0"}, {"engine": "1"}]
    assert [entry["labels"]["by"] for entry in _signals(target, "prefill_decode")] == ["tokens", "time"] * 2
    assert [entry["value"] > 0 for entry in _signals(target, "generation_tokens_rate")] == [True, True]
    assert [(e["value"], e["reason"]) for e in _signals(target, "sm_utilization")] == [(None, "no_source")]


def test_a_target_that_is_down_is_null_with_reasons_and_exit_2(server: SimServer, verb_json: VerbJson) -> None:
    code, document = verb_json("once", "--target", f"up={server.url}", "--target", f"down={NOBODY}", "--no-gpu")
    _is_of_the_contract(document)
    up, down = document["targets"]
    assert code == 2
    assert (up["up"], down["up"], down["state"], down["reason"]) == (True, False, "starting", "connect")
    assert {entry["value"] for entry in down["signals"]} == {None}


def test_one_sample_has_no_rates_and_says_so(server: SimServer, verb_json: VerbJson) -> None:
    code, document = verb_json("once", "--target", server.url, "--no-gpu", "--samples", "1")
    _is_of_the_contract(document)
    (target,) = document["targets"]
    assert code == 0
    assert {entry["reason"] for entry in _signals(target, "generation_tokens_rate")} == {"warming_up"}
    assert [entry["value"] is not None for entry in _signals(target, "running")] == [True]


def test_the_table_names_each_signal_with_its_value_or_its_reason(server: SimServer, verb: Verb) -> None:
    code, out, complaints = verb(
        "once", "--target", f"a={server.url}", "--target", f"b={NOBODY}", "--no-gpu", "--interval", SHORT
    )
    assert (code, complaints) == (2, "")
    first, second = out.split("\n\n")
    assert first.startswith("a  up, ")
    assert second.startswith("b  down, starting (connect)\n")
    lines = first.splitlines()[1:]
    named = {line.split()[0]: line for line in lines}
    assert set(catalogue.SEVEN) <= set(named)
    assert named["sm_utilization"].endswith("no_source")
    assert named["running"].endswith("exact from vllm")
    # One column per kind of thing: every value begins under the first one.
    assert len({line.index(" -  ") for line in lines if " -  " in line}) == 1
    assert max(map(len, lines)) < 110


@pytest.mark.parametrize("samples", ["0", "many", "1001", "-1"])
def test_a_wrong_number_of_samples_is_one_line(samples: str, verb: Verb) -> None:
    code, out, complaints = verb("once", "--target", NOBODY, f"--samples={samples}")
    assert (code, out) == (2, "")
    assert complaints == f"ufwatch: --samples: '{samples}' is not a whole number from 1 to 1000\n"


def test_a_missing_configuration_file_is_one_line(tmp_path: Path, verb: Verb) -> None:
    code, out, complaints = verb("once", "--config", str(tmp_path / "none.yaml"))
    assert (code, out, complaints.count("\n")) == (2, "", 1)
    assert complaints.startswith(f"{tmp_path / 'none.yaml'}: cannot be read")
