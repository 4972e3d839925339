"""Names and labels come from elsewhere: nothing in them may steer a terminal, or keep the rest from being shown."""

from __future__ import annotations

import subprocess

import pytest

from tests.cli.conftest import SHORT, Verb
from tests.page_server import PageServer
from tests.pages import engine_page
from tests.processes import COMMAND, environment
from ufwatch.cli.sampling import print_json
from ufwatch.errors import UfwatchError
from ufwatch.render.table import plain, side_by_side, targets_table

HOSTILE = "\x1b]0;owned\x07日本"
ESCAPED = r"\x1b]0;owned\x07日本"


def test_no_control_character_of_a_page_reaches_the_terminal(verb: Verb) -> None:
    info = f'vllm:cache_config_info{{block_size="{HOSTILE}",engine="0"}} 1\n'
    once = 'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 5'
    with PageServer(engine_page(prompt=5, generation=9, more=info + once)) as page:
        _, out, _ = verb("doctor", "--target", page.url, "--no-gpu", "--interval", SHORT)
    assert out.replace("\n", "").isprintable()
    assert f"blocks of {ESCAPED} tokens" in out


def test_no_control_character_of_a_label_or_name_reaches_the_terminal() -> None:
    entry = {"signal": "running", "labels": {"engine": HOSTILE}, "value": 1.0, "low": None, "high": None}
    entry |= {"source": "vllm", "quality": "exact", "reason": None}
    target = {"target": HOSTILE, "up": True, "state": "serving", "reason": None, "signals": [entry]}
    table = targets_table([target])
    assert table.startswith(f"{ESCAPED}  up, serving\n  running  engine={ESCAPED}  1  ")
    assert ESCAPED in side_by_side([target], 80)


@pytest.mark.parametrize("name", ["once", "signals", "doctor"])
def test_a_terminal_of_few_characters_gets_the_others_escaped(name: str) -> None:
    command = [*COMMAND, name, "--target", "日本=http://127.0.0.1:9", "--no-gpu", "--interval", "1s"]
    env = {**environment(), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith(r"\u65e5\u672c")


def test_plain_leaves_what_can_be_seen() -> None:
    assert plain("a b=日本 ü") == "a b=日本 ü"
    assert plain("a\nb\x1b\u202e\udc80") == r"a\nb\x1b\u202e\udc80"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_json_is_one_line(value: float, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UfwatchError, match="JSON cannot hold"):
        print_json({"value": value})
    assert capsys.readouterr().out == ""
