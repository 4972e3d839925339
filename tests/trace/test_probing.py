"""What a probe makes of its requests, without sending any."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import inf

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.pages import capture
from tests.trace.exchanges import exchange, failed
from ufwatch.clock import ManualClock
from ufwatch.config import ProbeConfig, TargetConfig
from ufwatch.core.counting import Asked
from ufwatch.metrics import HISTOGRAMS
from ufwatch.sources.fetch import Fetcher
from ufwatch.trace.client import Tracer
from ufwatch.trace.model import Chunk, Exchange, Failure, Phase, ServerSplit, SplitSource, Usage
from ufwatch.trace.probing import ITL_EDGES, TTFT_EDGES, Probe, asked_of, phases_of, token_gaps
from ufwatch.trace.request import Operation, TraceRequest

TOKENS = tuple(Chunk(0.1 + 0.02 * n, 0, 3, 1) for n in range(4))


def random_bytes() -> Iterator[bytes]:
    for number in count():
        yield hashlib.sha256(str(number).encode()).digest()


class Standing:
    """A probe whose requests the test makes up."""

    def __init__(self, **config: object) -> None:
        self.clock = ManualClock()
        made = random_bytes()
        self.probe = Probe(
            ProbeConfig(target="a", **config),  # type: ignore[arg-type]
            TargetConfig(name="a", url="http://a"),
            tracer=Tracer({}),
            fetcher=Fetcher({}),
            clock=self.clock,
            random_bytes=lambda n: next(made)[:n],
        )

    def take(self, *exchanges: Exchange) -> None:
        for each in exchanges:
            self.probe.take(each)

    def values(self, metric: str) -> dict[str, float]:
        """By what the series has beside target and model."""
        return {
            ",".join(value for name, value in s.labels if name not in ("target", "model_name")): s.value
            for s in self.probe.samples("m")
            if s.metric == metric
        }


def test_a_probe_begins_at_0_with_every_series_of_its_counters() -> None:
    standing = Standing()
    assert {(s.metric, s.value) for s in standing.probe.samples("m") if s.metric.endswith("_total")} == {
        ("probe_requests_total", 0.0),
        ("probe_failures_total", 0.0),
    }
    assert set(standing.values("probe_failures_total")) == {"prepare", *Phase}
    assert standing.values("probe_phase_seconds") == {}
    assert standing.values("probe_ttft_seconds_count") == {"": 0.0}
    assert standing.probe.exemplars("m") == {}
    assert len(standing.probe.samples("m")) < 100


def test_a_request_is_in_both_histograms_with_its_trace() -> None:
    standing = Standing()
    standing.take(exchange(wait=0.79, chunks=TOKENS))
    assert standing.values("probe_ttft_seconds_bucket")["0.75"] == 1.0, "of the first content, whenever its phase ended"
    assert standing.values("probe_itl_seconds_bucket")["0.025"] == 3.0
    assert standing.values("probe_itl_seconds_count") == {"": 3.0}
    traces = {e.trace_id for e in standing.probe.exemplars("m").values()}
    assert traces == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert all(e.unix_seconds == standing.clock.wall() for e in standing.probe.exemplars("m").values())


@pytest.mark.parametrize(
    ("chunks", "completion", "gaps"),
    [
        (TOKENS, 4, 3),
        ((TOKENS[0], TOKENS[1], replace(TOKENS[2], coalesced=True), TOKENS[3]), 4, 2),
        ((TOKENS[0], replace(TOKENS[1], tokens=2), TOKENS[2], TOKENS[3]), 5, 1),
        (tuple(replace(chunk, tokens=None) for chunk in TOKENS), 4, 3),
        (tuple(replace(chunk, tokens=None) for chunk in TOKENS), 5, 0),
        (tuple(replace(chunk, tokens=None) for chunk in TOKENS), None, 0),
        (tuple(replace(chunk, tokens=None, choice=n % 2) for n, chunk in enumerate(TOKENS)), 4, 0),
        ((), 0, 0),
    ],
    ids=["tokens", "coalesced", "two at once", "as many", "more tokens", "untold", "two choices", "none"],
)
def test_only_single_tokens_that_came_alone_are_intervals(
    chunks: tuple[Chunk, ...], completion: int | None, gaps: int
) -> None:
    found = token_gaps(exchange(chunks=chunks, usage=Usage(5, completion)))
    assert found == pytest.approx((0.02,) * gaps)


def test_phases_add_up_and_absent_ones_are_absent() -> None:
    cold, warm = exchange(), exchange(connecting={}, server=ServerSplit(SplitSource.NONE))
    for each in (cold, warm):
        assert sum(seconds for _, seconds in phases_of(each)) == pytest.approx(each.total)
    assert {"dns", "tcp_connect", "tls_handshake", "queue", "prefill", "unaccounted"} <= dict(phases_of(cold)).keys()
    assert not {"dns", "tcp_connect", "tls_handshake", "queue"} & dict(phases_of(warm)).keys()
    standing = Standing()
    standing.take(cold)
    assert standing.values("probe_phase_seconds") == dict(phases_of(cold))
    standing.take(warm)
    assert standing.values("probe_phase_seconds") == dict(phases_of(warm))


def test_a_mean_over_the_requests_of_others_is_no_phase_of_ours() -> None:
    busy = exchange(
        server=ServerSplit(SplitSource.HISTOGRAM, exact=False, queue=1.0, prefill=2.0, decode=3.0, ttft=4.0)
    )
    found = dict(phases_of(busy))
    assert not {"queue", "prefill", "decode", "pre_engine_wait"} & found.keys()
    assert found["server_and_http"] == pytest.approx(0.018)
    assert sum(found.values()) == pytest.approx(busy.total)


def test_phases_leave_with_a_failure_and_with_age() -> None:
    standing = Standing(interval_seconds=10.0)
    standing.take(exchange(), failed())
    assert standing.values("probe_phase_seconds") == {}
    assert standing.values("probe_failures_total")["tls_handshake"] == 1.0
    assert standing.values("probe_requests_total") == {"": 2.0}
    standing.take(exchange())
    standing.clock.advance(30.0)
    assert standing.values("probe_phase_seconds")
    standing.clock.advance(0.1)
    assert standing.values("probe_phase_seconds") == {}
    assert standing.values("probe_ttft_seconds_count") == {"": 2.0}


def test_a_failure_before_anything_was_tried_has_a_name_too() -> None:
    standing = Standing()
    standing.take(replace(failed(), failure=Failure(None, "configuration", "no such file")))
    assert {name: n for name, n in standing.values("probe_failures_total").items() if n} == {"prepare": 1.0}


def test_a_server_that_refuses_usage_by_chunk_is_asked_without() -> None:
    standing = Standing()
    assert b"continuous_usage_stats" in standing.probe._request("m").body()
    standing.take(replace(failed(), failure=Failure(Phase.HEADERS, "status_400", "HTTP 400"), status=400))
    assert b"continuous_usage_stats" not in standing.probe._request("m").body()


def test_every_other_request_has_a_connection_of_its_own_and_every_prompt_is_new() -> None:
    def asked(fresh: bool | None) -> list[TraceRequest]:
        standing = Standing(fresh_connection=fresh)
        requests = []
        for _ in range(4):
            requests.append(standing.probe._request("m"))
            standing.take(exchange())
        return requests

    assert [request.fresh_connection for request in asked(None)] == [True, False, True, False]
    assert [request.fresh_connection for request in asked(True)] == [True] * 4
    assert [request.fresh_connection for request in asked(False)] == [False] * 4
    prompts = [request.prompt for request in asked(None)]
    assert len({prompt[:8] for prompt in prompts}) == 4, "new from its first characters on"
    assert max(map(len, prompts)) < 60


def test_a_request_is_as_the_configuration_says() -> None:
    standing = Standing(operation="completions", prompt="Hi", max_tokens=3, timeout_seconds=7.0)
    request = standing.probe._request("")
    assert (request.operation, request.prompt, request.max_tokens) == (Operation.COMPLETION, "Hi", 3)
    assert (request.deadline_seconds, request.endpoint) == (7.0, "http://a/v1/completions")
    assert b'"model"' not in request.body(), "a model that nobody knows is not named"


def test_an_answer_may_be_as_long_as_was_asked_for() -> None:
    """It is read in the agent's own loop: of 4 MB of empty events that would take seconds."""
    for tokens in (8, 1024):
        request = Standing(max_tokens=tokens).probe._request("m")
        assert 1024 * tokens < request.body_cap_bytes < 2**17 + 2048 * tokens


def test_edges_are_vllms_and_those_of_the_objectives() -> None:
    families = {f.name: f for f in text_string_to_metric_families(capture("metrics-0.32.0-load").decode())}
    vllms = {
        histogram.id: {float(s.labels["le"]) for s in families[histogram.families[0]].samples if "le" in s.labels}
        for histogram in HISTOGRAMS
    }
    assert {*TTFT_EDGES, inf} == vllms["ttft"] | {0.8, 2.3}
    assert {*ITL_EDGES, inf} == vllms["itl"] | {0.06, 0.08}
    assert [list(e) for e in (TTFT_EDGES, ITL_EDGES)] == [sorted(TTFT_EDGES), sorted(ITL_EDGES)]


def test_objectives_count_from_the_last_byte_sent() -> None:
    found = asked_of(exchange(wait=0.5, stream=0.1))
    assert not found.failed
    assert found.seconds["ttft"] == pytest.approx(0.5)
    assert found.seconds["e2e"] == pytest.approx(0.6)
    assert found.seconds["tpot"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("failure", "ours"),
    [
        (Failure(Phase.TCP, "refused", ""), False),
        (Failure(Phase.HEADERS, "status_503", ""), False),
        (Failure(Phase.HEADERS, "status_429", ""), False),
        (Failure(Phase.HEADERS, "status_404", ""), True),
        (Failure(Phase.HEADERS, "status_401", ""), True),
        (Failure(None, "configuration", ""), True),
    ],
)
def test_a_failure_of_ours_says_nothing_of_the_server(failure: Failure, ours: bool) -> None:
    assert asked_of(replace(failed(), failure=failure)) == Asked({}, failed=True, ours=ours)


def test_an_answer_that_was_cut_had_its_first_token() -> None:
    cut = replace(exchange(wait=0.5), failure=Failure(Phase.STREAM, "cut", ""))
    assert asked_of(cut).seconds.keys() == {"ttft"}
