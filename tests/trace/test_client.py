"""Every phase of a request is measured apart, against servers that take known times."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.sources.loopback import Names, issue, looped, secret, serving
from tests.trace.servers import (
    GOOD,
    HEAD,
    PLAIN,
    Asked,
    Then,
    answering,
    base,
    connect_proxy,
    one,
    relay,
    request,
    tracing,
)
from tests.trace.streams import DONE, ROLE, chunk, usage, words
from tests.trace.test_split_live import ALONE
from ufwatch.config import HttpAccess
from ufwatch.sim.server import SimServer
from ufwatch.trace.client import Tracer
from ufwatch.trace.model import Exchange, Phase, SplitSource, Usage
from ufwatch.trace.recorder import current
from ufwatch.trace.request import Ids, Operation, TraceRequest

CONNECTING = (Phase.DNS, Phase.TCP, Phase.PROXY, Phase.TLS)
LATE = 1.0
"""By how much a busy machine may be late: what a test allows over a known time."""


def took(exchange: Exchange, phase: Phase) -> float:
    span = exchange.span(phase)
    assert span is not None, phase
    return span.end - span.start


def phases(exchange: Exchange) -> list[Phase]:
    return [span.phase for span in exchange.spans]


def in_order(exchange: Exchange) -> None:
    """Phases follow one another within the request."""
    ends = [0.0]
    for span in exchange.spans:
        assert ends[-1] <= span.start <= span.end <= exchange.total
        ends.append(span.end)


class SlowNames(Names):
    """Answers after a known time."""

    wait = 0.05

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        await asyncio.sleep(self.wait)
        return await super().resolve(host, port, family)


@looped
async def test_all_phases_over_tls(tmp_path: Path) -> None:
    certificates = issue(tmp_path)
    slow = answering(0.06, HEAD, ROLE, 0.07, words("Hello"), 0.08, words(" you"), usage(2), DONE)
    async with (
        serving(slow, certificates.server()) as server,
        relay(server.port, wait=0.05) as port,
        tracing(resolver=SlowNames(model_test="127.0.0.1")) as tracer,
    ):
        access = HttpAccess(ca_file=certificates.ca_file)
        found = await tracer.traced(request(f"https://model.test:{port}", access=access))
    assert found.failure is None
    assert phases(found) == [p for p in Phase if p is not Phase.PROXY]
    in_order(found)
    known = (
        (Phase.DNS, 0.05),
        (Phase.TLS, 0.05),
        (Phase.HEADERS, 0.06),
        (Phase.FIRST_TOKEN, 0.07),
        (Phase.STREAM, 0.08),
    )
    for phase, least in known:
        assert least - 0.002 <= took(found, phase) < least + LATE, phase
    assert (found.status, found.peer_address, found.tls_version) == (200, "127.0.0.1", "TLSv1.3")
    assert (found.reused, found.retried, found.proxied) == (False, False, False)
    assert [(a.address, a.won, a.error) for a in found.attempts] == [("127.0.0.1", True, "")]
    assert found.role_at is not None
    assert found.role_at < found.chunks[0].at
    assert found.usage == Usage(7, 2)
    assert found.server.source is SplitSource.NONE
    assert found.min_rtt is None or 0 < found.min_rtt < 0.05


@looped
async def test_names_are_looked_up_by_the_system_unless_told_otherwise() -> None:
    async with serving(answering(*GOOD)) as server:
        tracer = Tracer({})
        try:
            found = await tracer.traced(request(base(server, host="localhost")))
            gone = await tracer.traced(request("http://no-such-name.invalid"))
        finally:
            await tracer.close()
    assert found.failure is None
    assert phases(found)[:2] == [Phase.DNS, Phase.TCP]
    assert gone.failure is not None
    assert gone.failure.phase is Phase.DNS
    assert gone.failure.error_type in ("nxdomain", "dns")
    in_order(found)


@looped
async def test_a_connection_that_is_used_again_has_no_phases_of_connecting(tmp_path: Path) -> None:
    certificates = issue(tmp_path)
    access = HttpAccess(ca_file=certificates.ca_file)
    async with serving(answering(0.06, *GOOD), certificates.server()) as server, tracing() as tracer:
        asked = request(base(server, "https", "model.test"), access=access)
        cold, warm = await tracer.traced(asked), await tracer.traced(asked)
        alone = await tracer.traced(request(asked.url, access=access, fresh_connection=True))
    assert [set(CONNECTING) & set(phases(found)) for found in (cold, warm, alone)] == [
        {Phase.DNS, Phase.TCP, Phase.TLS},
        set(),
        {Phase.DNS, Phase.TCP, Phase.TLS},
    ]
    assert [found.reused for found in (cold, warm, alone)] == [False, True, False]
    assert warm.attempts == ()
    assert (warm.peer_address, warm.tls_version) == ("127.0.0.1", "TLSv1.3")
    assert server.connections == 2
    for found in (cold, warm, alone):
        assert took(found, Phase.HEADERS) >= 0.06 - 0.002, "the request was sent before the answer came"
        in_order(found)


@looped
async def test_an_idle_connection_that_was_dropped_is_replaced_once_and_said_so() -> None:
    seen = []

    async def closes_after_each(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        seen.append(head)
        if len(seen) == 2:
            await reader.readexactly(1)
            return False  # as a server does that closed the idle connection while the request was on its way
        return await answering(*GOOD)(head, reader, writer)

    async with serving(closes_after_each) as server, tracing() as tracer:
        asked = request(base(server))
        first, second = await tracer.traced(asked), await tracer.traced(asked)
    assert (first.retried, second.retried, second.reused) == (False, True, False)
    assert second.failure is None
    assert Phase.TCP in phases(second)
    assert len(seen) == 3
    in_order(second)


@looped
async def test_a_fresh_connection_that_is_dropped_is_not_tried_again() -> None:
    async def drops(_: bytes, __: asyncio.StreamReader, ___: asyncio.StreamWriter) -> bool:
        return False

    async with serving(drops) as server, tracing() as tracer:
        found = await tracer.traced(request(base(server)))
    assert found.failure is not None
    assert (found.failure.error_type, found.failure.phase) == ("disconnected", Phase.HEADERS)
    assert server.connections == 1


@looped
async def test_what_goes_over_the_wire(tmp_path: Path) -> None:
    asked = Asked()
    ids = Ids("ab" * 16, "cd" * 8, "req-1")
    access = HttpAccess(api_key_file=secret(tmp_path, "sk-1"))
    async with serving(answering(*GOOD, asked=asked)) as server, tracing() as tracer:
        chat = request(
            base(server), access=access, prompt="Grüße", temperature=0.0, choices=1, extra={"ignore_eos": True}
        )
        found = await tracer.traced(chat, ids)
        await tracer.traced(
            request(base(server) + "/v1/", operation=Operation.COMPLETION, seed=3, continuous_usage=True)
        )
    head, second = (h.decode() for h in server.heads)
    assert head.startswith("POST /v1/chat/completions HTTP/1.1")
    assert f"traceparent: 00-{'ab' * 16}-{'cd' * 8}-01\r\n" in head
    quiet = TraceRequest(url="http://a", model="m", sampled=False)
    assert quiet.headers(Ids("ab" * 16, "cd" * 8, "r"))["traceparent"].endswith("-00")
    assert "X-Request-Id: req-1\r\n" in head
    assert "Authorization: Bearer sk-1\r\n" in head
    assert f"Host: 127.0.0.1:{server.port}\r\n" in head
    assert second.startswith("POST /v1/completions HTTP/1.1")
    assert asked.bodies[0] == {
        "model": "m",
        "messages": [{"role": "user", "content": "Grüße"}],
        "max_tokens": 64,
        "temperature": 0.0,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "stream": True,
    }
    assert asked.bodies[1]["prompt"] == "Say hello."
    assert asked.bodies[1]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (found.trace_id, found.span_id, found.request_id) == ids
    assert found.request_attributes == {"gen_ai.request.max_tokens": 64, "gen_ai.request.temperature": 0.0}
    assert "Grüße" not in repr(found) + repr(chat)


@looped
async def test_identifiers_are_new_for_each_request() -> None:
    async with serving(answering(*GOOD)) as server, tracing() as tracer:
        both = [await tracer.traced(request(base(server))) for _ in range(2)]
    assert len({found.trace_id for found in both} | {found.span_id for found in both}) == 4
    assert {len(found.trace_id) for found in both} == {32}


class Dual(AbstractResolver):
    """A name with a dead IPv6 address first and a live IPv4 one."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family
        dead, live = ("::1", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)
            for address, kind in (dead, live)
        ]

    async def close(self) -> None:
        pass


@looped
async def test_a_dead_ipv6_address_and_a_live_ipv4_one() -> None:
    async with serving(answering(*GOOD)) as server, tracing(resolver=Dual()) as tracer:
        found = await tracer.traced(request(base(server, host="both.test")))
    assert found.failure is None
    assert found.peer_address == "127.0.0.1"
    assert [(a.address, a.won) for a in found.attempts] == [("::1", False), ("127.0.0.1", True)]
    assert found.attempts[0].error
    span = found.span(Phase.TCP)
    assert span is not None
    assert span.start == found.attempts[1].start, "the winner's connection, not the loser's"
    in_order(found)


@looped
async def test_an_ipv6_literal() -> None:
    try:
        listener = await asyncio.start_server(lambda *_: None, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 here")
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with tracing() as tracer:
        found = await tracer.traced(request(f"http://[::1]:{port}"))
    assert found.failure is not None
    assert (found.failure.error_type, found.failure.phase) == ("refused", Phase.TCP)
    assert found.attempts[0].address == "::1"


@looped
async def test_a_connect_proxy_has_a_phase_of_its_own(tmp_path: Path) -> None:
    certificates = issue(tmp_path)
    async with (
        serving(answering(*GOOD), certificates.server()) as server,
        serving(connect_proxy(server.port, wait=0.06)) as proxy,
        tracing({"https_proxy": f"http://proxy.test:{proxy.port}"}, SlowNames(proxy_test="127.0.0.1")) as tracer,
    ):
        access = HttpAccess(ca_file=certificates.ca_file)
        found = await tracer.traced(request("https://model.test", access=access))
    assert found.failure is None, found.failure
    assert phases(found) == list(Phase)
    assert 0.06 - 0.002 <= took(found, Phase.PROXY) < 0.06 + LATE
    assert 0.05 - 0.002 <= took(found, Phase.DNS) < 0.05 + LATE, "of the proxy's name"
    assert found.proxied
    in_order(found)


@looped
async def test_a_plain_proxy() -> None:
    async with (
        serving(answering(*GOOD)) as proxy,
        tracing({"http_proxy": f"http://127.0.0.1:{proxy.port}"}) as tracer,
    ):
        found = await tracer.traced(request("http://far.test"))
        local = await tracer.traced(request("http://127.0.0.1:1"))
    assert (found.failure, found.proxied) == (None, True)
    assert Phase.PROXY not in phases(found)
    assert proxy.heads[0].startswith(b"POST http://far.test/v1/chat/completions ")
    assert not local.proxied, "what is on this machine is reached directly"


@looped
async def test_what_streams_hold() -> None:
    tool = chunk({"tool_calls": [{"index": 0, "function": {"name": "f"}}]})
    parts = (HEAD, b": ping\n\n", ROLE, tool, words("a", "b"), chunk({}, finish="tool_calls"), usage(4), DONE)
    found = await one(*parts, choices=1)
    assert found.failure is None
    assert [c.characters for c in found.chunks] == [1, 1, 1]
    assert found.chunks[2].coalesced
    assert (found.finish_reasons, found.response_id, found.response_model) == (("tool_calls",), "c1", "m")
    assert (found.output_tokens, found.refused) == (4, False)


@looped
async def test_metrics_in_the_body_are_the_split() -> None:
    metrics = {"queue_time_ms": 2.0, "time_to_first_token_ms": 30.0, "generation_time_ms": 40.0}
    found = await one(HEAD, words("a"), usage(2, metrics=metrics), DONE)
    split = found.server
    assert (split.source, split.queue, split.prefill, split.decode) == (SplitSource.BODY, 0.002, 0.03, 0.04)
    assert (split.ttft, split.pre_engine_wait) == (None, None), "what the body calls TTFT is the prefill"


@looped
async def test_an_end_mark_is_the_end_though_the_connection_stays_open() -> None:
    found = await one(PLAIN, words("a", "b"), DONE, Then.HANG)
    assert found.failure is None
    assert found.total < 0.9, "not until the connection was given up"
    split_mark = await one(PLAIN, words("a", "b"), DONE[:9], 0.01, DONE[9:], Then.HANG, deadline_seconds=0.5)
    assert split_mark.failure is None
    assert split_mark.total < 0.4


@looped
async def test_a_long_prompt_is_sent_when_its_last_byte_is() -> None:
    async def reads_late(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.1)
        return await answering(*GOOD)(head, reader, writer)

    async with serving(reads_late) as server, tracing() as tracer:
        found = await tracer.traced(request(base(server), prompt="x" * (24 << 20)))
    assert found.failure is None
    assert took(found, Phase.SEND) > 0.05, "the kernel takes so much only when the server reads"


@looped
async def test_a_cancelled_request_leaves_nothing() -> None:
    async with serving(answering(HEAD, words("a"), Then.HANG)) as server, tracing() as tracer:
        task = asyncio.create_task(tracer.traced(request(base(server))))
        while not server.heads:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.ended.wait(), 5)
    assert current.get() is None


@looped
async def test_requests_at_once_do_not_mix() -> None:
    async with serving(answering(0.02, *GOOD)) as server, tracing() as tracer:
        many = await asyncio.gather(*(tracer.traced(request(base(server))) for _ in range(8)))
    for found in many:
        assert found.failure is None
        assert len(found.attempts) == 1
        in_order(found)


@looped
async def test_lateness_of_our_own_loop_is_told() -> None:
    async def blocks(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        time.sleep(0.05)  # the server shares our loop
        return await answering(*GOOD)(head, reader, writer)

    async with serving(blocks) as server, tracing() as tracer:
        found = await tracer.traced(request(base(server)))
    assert 0.04 <= found.loop_lag < 0.05 + LATE


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://a:1", "http://a:1/v1/chat/completions"),
        ("http://a:1/", "http://a:1/v1/chat/completions"),
        ("http://a:1/v1", "http://a:1/v1/chat/completions"),
        ("http://a:1/metrics", "http://a:1/v1/chat/completions"),
        ("https://a/llm/v1/chat/completions", "https://a/llm/v1/chat/completions"),
        ("https://a/llm", "https://a/llm/v1/chat/completions"),
    ],
)
def test_addresses(url: str, endpoint: str) -> None:
    assert TraceRequest(url=url, model="m").endpoint == endpoint


@pytest.mark.parametrize("fields", [{"url": "a:1"}, {"url": "http://u:p@a"}, {"choices": 0}, {"deadline_seconds": 0}])
def test_requests_that_are_none(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        TraceRequest(**{"url": "http://a", "model": "m", **fields})  # type: ignore[arg-type]


@looped
async def test_a_connection_that_was_opened_before_is_used() -> None:
    async with SimServer(ALONE) as server, tracing() as tracer:
        asked = request(server.url, model=ALONE.model_name, max_tokens=2, continuous_usage=True)
        await tracer.open(asked)
        assert server.live == 0
        found = await tracer.traced(asked)
    assert found.failure is None
    assert found.reused
    assert Phase.TCP not in phases(found)
    assert [chunk.tokens for chunk in found.chunks] == [1, 1]


@looped
async def test_what_fails_while_opening_shows_in_the_request() -> None:
    async with tracing() as tracer:
        for url in ("http://127.0.0.1:9", "http://no-such-name.invalid"):
            await tracer.open(request(url))
            assert (await tracer.traced(request(url))).failure is not None
        await tracer.open(request("https://127.0.0.1:9", access=HttpAccess(ca_file=Path("/nonexistent"))))
