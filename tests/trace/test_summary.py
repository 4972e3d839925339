"""Medians by layer, and the verdict on them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.trace.exchanges import CONNECTING, exchange, failed, split
from ufwatch.errors import ConfigError
from ufwatch.trace.document import baseline_of, document
from ufwatch.trace.model import Phase, ServerSplit, SplitSource
from ufwatch.trace.summary import spread, summary
from ufwatch.trace.verdict import round_trip, verdict
from ufwatch.trace.waterfall import verdict_text


def test_dns_tls_and_model_have_their_share_of_the_first_token() -> None:
    found = summary([exchange()])
    assert found.first_token is not None
    # 23 + 10 + 41 to connect, 1 to send, 20 to wait.
    assert found.first_token.median == pytest.approx(0.095)
    medians = {layer.name: layer.spread.median for layer in found.layers}
    assert medians == pytest.approx(
        {
            "dns": 0.023,
            "tcp_connect": 0.010,
            "tls_handshake": 0.041,
            "request_send": 0.001,
            "network": 0.002,
            "http_frontend": 0.003,
            "pre_engine_wait": 0.002,
            "queue": 0.001,
            "prefill": 0.012,
            "decode": 0.098,
            "unaccounted": 0.002,
        }
    )
    shares = {layer.name: layer.share for layer in found.layers}
    assert shares["tls_handshake"] == pytest.approx(0.041 / 0.095)
    assert shares["decode"] is None
    assert [layer.name for layer in found.layers if layer.estimate] == ["network"]


def test_failures_are_counted_and_not_averaged() -> None:
    found = summary([exchange(), failed(), failed()])
    assert (found.requests, found.failed) == (3, 2)
    assert found.total is not None
    assert found.total.n == 1
    nothing = summary([failed()])
    assert (nothing.first_token, nothing.layers) == (None, ())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], (1, 3.0, 3.0, 3.0, 3.0)),
        ([1.0, 2.0], (2, 1.5, 2.0, 1.0, 2.0)),
        ([float(n) for n in range(10, 0, -1)], (10, 5.5, 9.0, 1.0, 10.0)),
        ([float(n) for n in range(11)], (11, 5.0, 9.0, 0.0, 10.0)),
    ],
)
def test_a_spread(values: list[float], expected: tuple[float, ...]) -> None:
    assert spread(values) == expected


def test_no_spread_of_nothing() -> None:
    assert spread([]) is None


def test_what_is_slow_for_its_kind_is_found_with_what_to_try() -> None:
    found = verdict(summary([exchange()]), 0.002)
    assert {each.layer: each.expected for each in found.findings} == pytest.approx(
        {"tls_handshake": 0.019, "dns": 0.02}
    )
    assert [each.layer for each in found.findings] == ["tls_handshake", "dns"]
    assert "session" in found.findings[0].advice
    assert [layer.name for layer in found.leading[:2]] == ["tls_handshake", "dns"]


def test_a_long_line_makes_long_handshakes_ordinary() -> None:
    assert [each.layer for each in verdict(summary([exchange()]), 0.030).findings] == ["dns"]


def test_what_is_a_small_part_of_the_wait_does_not_matter() -> None:
    slow = exchange(wait=3.0, server=split(prefill=2.9, ttft=2.95))
    assert [each.layer for each in verdict(summary([slow]), 0.002).findings] == ["prefill"]


def test_waiting_in_the_server_is_told_apart() -> None:
    queued = exchange(connecting={}, wait=0.5, server=split(queue=0.4, prefill=0.05, ttft=0.49))
    assert [each.layer for each in verdict(summary([queued]), 0.0).findings] == ["queue"]
    waiting = exchange(connecting={}, wait=0.5, server=split(queue=0.001, prefill=0.05, ttft=0.49))
    assert [each.layer for each in verdict(summary([waiting]), 0.0).findings] == ["pre_engine_wait"]


def test_what_there_is_no_rule_for_is_not_called_ordinary() -> None:
    alone = replace(exchange(), server=ServerSplit(SplitSource.NONE))
    of_alone = summary([alone])
    found = verdict(of_alone, 0.100)
    assert found.unjudged == ("server_and_http",)
    assert "Nothing to judge by: server_and_http." in verdict_text(found, of_alone)
    medians = {layer.name: layer.spread.median for layer in of_alone.layers}
    assert verdict(of_alone, None, medians).unjudged == ()
    assert verdict(of_alone, None, {}).unjudged != ()


def test_a_baseline_is_what_this_server_usually_takes() -> None:
    usual, now = summary([exchange()]), summary([exchange(connecting={**CONNECTING, Phase.TCP: 0.016})])
    medians = {layer.name: layer.spread.median for layer in usual.layers}
    assert verdict(usual, None, medians).findings == ()
    (finding,) = verdict(now, None, medians).findings
    assert (finding.layer, finding.against_baseline) == ("tcp_connect", True)
    assert finding.expected == pytest.approx(0.010)
    # Half as much again of very little is noise.
    small = summary([exchange(connecting={**CONNECTING, Phase.TCP: 0.0149})])
    assert verdict(small, None, medians).findings == ()


def test_the_json_of_a_run_is_the_baseline_of_the_next() -> None:
    runs = [exchange(), exchange(connecting={}), failed()]
    cold, warm = summary([runs[0], runs[2]]), summary([runs[1]])
    found = verdict(cold, round_trip(tuple(runs)))
    text = json.dumps(document(runs, cold, warm, found), allow_nan=False)
    content = json.loads(text)
    assert (content["requests"], content["failed"]) == (3, 1)
    assert content["exchanges"][2]["failure"] == {
        "phase": "tls_handshake",
        "error_type": "certificate",
        "detail": "llm.test:443: self-signed \x1b[31m<b>",
    }
    parts = content["exchanges"][0]
    assert sum(parts["parts"].values()) + parts["unaccounted"] == pytest.approx(parts["total"])
    baseline = baseline_of(content, "run.json")
    assert baseline["cold"] == pytest.approx({layer.name: layer.spread.median for layer in cold.layers})
    assert verdict(cold, None, baseline["cold"]).findings == ()


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"version": 2},
        {"version": 1, "cold": {"layers": [{"layer": "dns"}]}},
        {"version": 1, "cold": {"layers": [{"layer": "dns", "median": float("nan")}]}},
        {"version": 1, "cold": {"layers": [3]}},
    ],
)
def test_what_is_no_baseline_is_one_line(content: object) -> None:
    with pytest.raises(ConfigError) as raised:
        baseline_of(content, "run.json")
    assert str(raised.value).startswith("run.json: ")
    assert "\n" not in str(raised.value)
