"""Parts and what no part explains add up to the total, always; what is only an estimate says so."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ufwatch.trace.account import Account, network
from ufwatch.trace.model import Chunk, Exchange, Phase, ServerSplit, Span, SplitSource

SPAN = ServerSplit(SplitSource.SPAN, queue=0.05, prefill=0.1, decode=0.4, ttft=0.2, e2e=0.65)


def spans(*moments: float, phases: tuple[Phase, ...] = tuple(Phase)) -> tuple[Span, ...]:
    return tuple(Span(p, a, b) for p, a, b in zip(phases, moments, moments[1:], strict=False))


def exchange(**more: object) -> Exchange:
    """Sent at 0.1, head at 0.15, first content at 0.4, end at 0.9."""
    reused = (Phase.SEND, Phase.HEADERS, Phase.FIRST_TOKEN, Phase.STREAM)
    fields = {
        "url": "",
        "operation": "chat",
        "model": "m",
        "trace_id": "",
        "span_id": "",
        "request_id": "",
        "started_unix_ns": 1_800_000_000_000_000_000,
        "total": 0.9,
        "spans": spans(0.05, 0.1, 0.15, 0.4, 0.9, phases=reused),
        "chunks": (Chunk(0.4, 0, 1), Chunk(0.9, 0, 1)),
        "min_rtt": 0.01,
        "server": SPAN,
    }
    return Exchange(**{**fields, **more})  # type: ignore[arg-type]


def shares(account: Account) -> dict[str, float]:
    assert math.fsum([*(p.seconds for p in account.parts), account.unaccounted]) == pytest.approx(
        account.total, abs=1e-9
    )
    return {part.name: round(part.seconds, 9) for part in account.parts}


def test_with_the_servers_span() -> None:
    account = network(exchange())
    assert shares(account) == {
        "request_send": 0.05,
        "pre_engine_wait": 0.05,
        "queue": 0.05,
        "prefill": 0.1,
        "network": 0.01,
        "http_frontend": 0.09,
        "decode": 0.4,
    }
    assert account.unaccounted == pytest.approx(0.05 + 0.1), "before the request, and after the decode"
    assert account.http_frontend_raw == pytest.approx(0.09)
    assert [part.name for part in account.parts if part.estimate] == ["network"]
    assert (account.network, account.network_to) == (0.01, "server")


def test_behind_a_proxy_the_network_ends_there() -> None:
    assert network(exchange(proxied=True)).network_to == "proxy"


def test_what_would_be_below_nothing_is_held_and_shown_raw() -> None:
    account = network(exchange(server=ServerSplit(SplitSource.SPAN, queue=0.1, prefill=0.2, decode=0.4, ttft=0.35)))
    assert shares(account)["http_frontend"] == 0.0
    assert account.http_frontend_raw == pytest.approx(-0.06)
    slow = network(exchange(min_rtt=9.0))
    assert shares(slow)["network"] == pytest.approx(0.3), "no more than was waited"


def test_with_the_body_alone_the_wait_before_the_engine_is_in_one_with_http() -> None:
    found = shares(network(exchange(server=ServerSplit(SplitSource.BODY, queue=0.0, prefill=0.1, decode=0.4))))
    assert found["pre_engine_and_http"] == pytest.approx(0.19)
    assert found["queue"] == 0.0, "measured, and nothing: not absent"


def test_means_are_estimates() -> None:
    mean = ServerSplit(SplitSource.HISTOGRAM, False, 0.05, 0.1, 0.4, 0.2)
    assert {p.name for p in network(exchange(server=mean)).parts if not p.estimate} == {"request_send"}


def test_without_a_split() -> None:
    account = network(exchange(server=ServerSplit(SplitSource.NONE)))
    assert shares(account) == {"request_send": 0.05, "network": 0.01, "server_and_http": 0.29, "stream": 0.5}
    assert account.http_frontend_raw is None
    unknown = shares(network(exchange(server=ServerSplit(SplitSource.NONE), min_rtt=None)))
    assert unknown["server_and_http_and_network"] == pytest.approx(0.3)


def test_of_a_request_that_failed_what_was_measured() -> None:
    cut = exchange(chunks=(), spans=spans(0.0, 0.1, 0.2, phases=(Phase.SEND, Phase.HEADERS)), total=0.2)
    assert shares(network(cut)) == {"request_send": 0.1, "response_headers": 0.1}
    nothing = network(exchange(chunks=(), spans=(), total=0.0))
    assert (nothing.parts, nothing.unaccounted) == ((), 0.0)


def skewed(ahead: float) -> Account:
    start = 1_800_000_000_000_000_000 + round((0.15 + ahead) * 1e9)
    split = ServerSplit(SplitSource.SPAN, ttft=0.2, e2e=0.65, start_unix_ns=start, end_unix_ns=start + 650_000_000)
    return network(exchange(server=split))


def test_clocks_that_agree() -> None:
    account = skewed(0.0)
    assert not account.clock_skew_suspected
    assert account.server_ahead == pytest.approx(-0.025)
    assert account.server_ahead_doubt == pytest.approx(0.075)


@pytest.mark.parametrize("ahead", [5.0, -5.0, 0.2, -0.2])
def test_clocks_that_do_not(ahead: float) -> None:
    account = skewed(ahead)
    assert account.clock_skew_suspected
    assert account.server_ahead is not None
    assert account.server_ahead_doubt is not None
    assert abs(account.server_ahead - ahead) <= account.server_ahead_doubt
    assert shares(account) == shares(skewed(0.0)), "durations do not know of clocks"


SECONDS = st.floats(0.0, 1e4, allow_nan=False)
MAYBE = st.none() | SECONDS


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    phases = draw(st.lists(st.sampled_from(list(Phase)), unique=True))
    moments = sorted(draw(st.lists(SECONDS, min_size=2 * len(phases), max_size=2 * len(phases))))
    pairs = zip(sorted(phases, key=list(Phase).index), moments[::2], moments[1::2], strict=True)
    made = tuple(Span(phase, start, end) for phase, start, end in pairs)
    queue, prefill, decode, ttft = (draw(MAYBE) for _ in range(4))
    split = ServerSplit(draw(st.sampled_from(list(SplitSource))), draw(st.booleans()), queue, prefill, decode, ttft)
    first = next((span.end for span in made if span.phase is Phase.FIRST_TOKEN), None)
    return exchange(
        spans=made,
        total=max(moments, default=0.0),
        chunks=() if first is None else (Chunk(first, 0, 1),),
        min_rtt=draw(MAYBE),
        server=split,
    )


@given(exchanges())
@settings(max_examples=300, deadline=None)
def test_parts_and_the_rest_are_the_total(found: Exchange) -> None:
    account = network(found)
    together = math.fsum([*(part.seconds for part in account.parts), account.unaccounted])
    assert together == pytest.approx(found.total, abs=1e-9 * (1 + sum(part.seconds for part in account.parts)))
    assert all(part.seconds >= 0 for part in account.parts)
