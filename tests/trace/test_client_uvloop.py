"""The same moments are stamped on uvloop, which connects and encrypts by its own means."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import uvloop

from tests.sources.loopback import free_port, issue, serving
from tests.trace.servers import GOOD, HEAD, answering, base, relay, request, tracing
from tests.trace.streams import DONE, ROLE, usage, words
from tests.trace.test_client import LATE, Dual, SlowNames, in_order, phases, took
from ufwatch.config import HttpAccess
from ufwatch.trace.model import Phase


def run(test: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test, 30))


def test_all_phases_over_tls_and_none_of_connecting_again(tmp_path: Path) -> None:
    async def both() -> None:
        certificates = issue(tmp_path)
        slow = answering(0.06, HEAD, ROLE, 0.07, words("Hello"), 0.08, words(" you"), usage(2), DONE)
        async with (
            serving(slow, certificates.server()) as server,
            relay(server.port, wait=0.05) as port,
            tracing(resolver=SlowNames(model_test="127.0.0.1")) as tracer,
        ):
            asked = request(f"https://model.test:{port}", access=HttpAccess(ca_file=certificates.ca_file))
            cold, warm = await tracer.traced(asked), await tracer.traced(asked)
        assert (cold.failure, warm.failure) == (None, None)
        assert phases(cold) == [p for p in Phase if p is not Phase.PROXY]
        assert phases(warm) == [Phase.SEND, Phase.HEADERS, Phase.FIRST_TOKEN, Phase.STREAM]
        assert (cold.tls_version, cold.peer_address, warm.reused) == ("TLSv1.3", "127.0.0.1", True)
        assert 0.05 - 0.002 <= took(cold, Phase.TLS) < 0.05 + LATE
        assert took(cold, Phase.TCP) < 0.05, "the handshake is not in it"
        assert cold.min_rtt is None or 0 < cold.min_rtt < 0.05
        assert min(took(cold, Phase.HEADERS), took(warm, Phase.HEADERS)) >= 0.06 - 0.002
        in_order(cold)
        in_order(warm)

    run(both())


def test_a_dead_address_a_refusal_and_a_hanging_answer() -> None:
    async def all_three() -> None:
        async with serving(answering(*GOOD)) as server, tracing(resolver=Dual()) as tracer:
            found = await tracer.traced(request(base(server, host="both.test")))
            refused = await tracer.traced(request(f"http://127.0.0.1:{free_port()}"))
        assert found.failure is None
        assert [(a.address, a.won) for a in found.attempts] == [("::1", False), ("127.0.0.1", True)]
        assert refused.failure is not None
        assert (refused.failure.error_type, refused.failure.phase) == ("refused", Phase.TCP)

    run(all_three())
