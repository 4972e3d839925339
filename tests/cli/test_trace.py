"""``ufwatch trace`` against the simulated vLLM and against nothing."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Verb
from tests.simulators import BUSY, Simulators


def test_requests_are_timed_and_split_by_the_servers_histograms(
    simulators: Simulators, verb: Verb, tmp_path: Path
) -> None:
    own = simulators.start("steady")
    report, baseline = tmp_path / "report.html", tmp_path / "run.json"
    code, out, complaints = verb("trace", own.url, "--n", "4", "--max-tokens", "4", "--json", "--html", str(report))
    assert (code, complaints) == (0, "")
    document = json.loads(out)
    assert (document["requests"], document["failed"]) == (4, 0)
    assert (document["cold"]["requests"], document["warm"]["requests"]) == (2, 2)
    for each in document["exchanges"]:
        assert each["server"]["source"] == "histogram_delta"
        assert each["output_tokens"] == 4
        assert sum(each["parts"].values()) + each["unaccounted"] == pytest.approx(each["total"], abs=1e-9)
        assert ("tcp_connect" in each["phases"]) != each["reused"]
    assert "<svg" in report.read_text()
    baseline.write_text(out)
    # A baseline that was a hundred times as fast: everything is worse.
    fast = json.loads(out)
    for kind in ("cold", "warm"):
        for layer in fast[kind]["layers"]:
            layer["median"] /= 100
    (tmp_path / "fast.json").write_text(json.dumps(fast))
    code, out, _ = verb("trace", own.url, "--n", "1", "--max-tokens", "4", "--baseline", str(tmp_path / "fast.json"))
    assert code == 1
    assert ", was " in out


def test_the_text_has_a_waterfall_a_table_and_a_verdict(simulators: Simulators, verb: Verb) -> None:
    own = simulators.start(BUSY)
    code, out, complaints = verb("trace", own.url, "--n", "2", "--max-tokens", "3", "--completions")
    assert (code, complaints) == (0, "")
    assert out.splitlines()[0].startswith("tcp_connect")
    assert "cold, 1 request" in out
    assert "warm, 1 request" in out
    assert "First token after " in out


def test_a_server_that_is_not_there_is_measured_as_far_as_it_goes(verb: Verb) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        code, out, complaints = verb("trace", f"http://127.0.0.1:{port}", "--n", "2", "--model", "m")
    assert (code, complaints) == (2, "")
    assert "failed in tcp_connect: refused" in out
    assert "2 of 2 failed in tcp_connect: refused" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ftp://a",), 'URL: scheme "ftp" is not http or https'),
        (("http://127.0.0.1:1", "--n", "0"), "--n: '0' is not a whole number from 1 to 10000"),
        (("http://127.0.0.1:1", "--n", "1.5"), "--n: '1.5'"),
        (("http://127.0.0.1:1", "--n", "1" * 5000), "--n: '111"),
        (("http://127.0.0.1:1", "--model", "\udcff"), "--model: is not UTF-8"),
        (
            ("http://127.0.0.1:1", "--model", "m", "--html", "/dev/null"),
            "--html: '/dev/null' is not the name of a file",
        ),
        (("http://127.0.0.1:1", "--model", "m", "--html", ""), "--html: ''"),
        (("http://127.0.0.1:1", "--timeout", "-1"), "--timeout: '-1'"),
        (("http://127.0.0.1:1", "--prompt", ""), "--prompt: is empty"),
        (("http://127.0.0.1:1",), "--model: the server's metrics name none; give one"),
        (("http://127.0.0.1:1", "--model", "m", "--baseline", "/nowhere.json"), "/nowhere.json: No such file"),
        (("http://127.0.0.1:1", "--model", "m", "--otlp", "ftp://a"), "--otlp"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], says: str, verb: Verb) -> None:
    code, out, complaints = verb("trace", *arguments)
    assert (code, out) == (2, "")
    assert says in complaints
    assert complaints.count("\n") == 1


@pytest.mark.parametrize(
    "content",
    [
        '{"version": 1, "cold": [1]}',
        '{"version": 1, "cold": "x"}',
        '{"version": 1, "cold": {"layers": [{"layer": "dns", "median": 1%s}]}}' % ("0" * 400),
        "[" * 100_000,
    ],
)
def test_a_baseline_that_is_none_is_one_line(content: str, verb: Verb, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(content)
    code, out, complaints = verb("trace", "http://127.0.0.1:1", "--model", "m", "--baseline", str(file))
    assert (code, out) == (2, "")
    assert complaints.startswith(str(file))
    assert complaints.count("\n") == 1


def test_layers_that_a_baseline_lacks_are_not_passed_over(simulators: Simulators, verb: Verb, tmp_path: Path) -> None:
    own, file = simulators.start("steady"), tmp_path / "baseline.json"
    ask = ("trace", own.url, "--n", "1", "--max-tokens", "4", "--json", "--baseline", str(file))
    file.write_text('{"version": 1}')
    code, _, complaints = verb(*ask)
    assert code == 2
    assert "not in the baseline, so not compared: tcp_connect, request_send" in complaints
    assert "No layer is out" not in verb(*[word for word in ask if word != "--json"])[1]
    file.write_text('{"version": 1, "cold": {"layers": [{"layer": "tcp_connect", "median": 1}]}}')
    code, _, complaints = verb(*ask)
    assert code == 0
    assert "not compared: request_send" in complaints
