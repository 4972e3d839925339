"""The ladder's rung of histograms, on a server whose every duration is known."""

from __future__ import annotations

from dataclasses import replace

import aiohttp

from tests.sources.loopback import looped
from tests.trace.servers import request, tracing
from ufwatch.sim.scenario import SCENARIOS
from ufwatch.sim.server import SimServer
from ufwatch.trace.account import network
from ufwatch.trace.model import SplitSource
from ufwatch.trace.split import best, from_histograms, read_sums

ALONE = replace(SCENARIOS["steady"], arrivals_per_second=0.0, concurrency=0)


@looped
async def test_a_request_that_is_alone_is_split_exactly() -> None:
    async with SimServer(ALONE) as server, tracing() as tracer, aiohttp.ClientSession() as client:

        async def page() -> bytes:
            async with client.get(f"{server.url}/metrics") as answer:
                return await answer.read()

        before = read_sums(await page())
        found = await tracer.traced(request(server.url, model=ALONE.model_name, max_tokens=8))
        after = read_sums(await page())
    assert found.failure is None, found.failure
    assert found.output_tokens == 8
    split = best(found.server, from_histograms(before, after, ALONE.model_name))
    assert (split.source, split.exact) == (SplitSource.HISTOGRAM, True)
    assert found.ttft is not None
    assert split.ttft is not None
    assert 0 < split.ttft <= found.ttft + 0.02, "the server's is within ours"
    account = network(replace(found, server=split))
    assert account.http_frontend_raw is not None
    assert account.part("decode") is not None
