"""``ufwatch trace`` on a real vLLM over TLS, whose spans come to us: ``python -m tests.e2e.trace_vllm --vllm-dir DIR``.

DIR is what ``vllm_cpu.sh`` made. One server, started with a certificate, ``--otlp-traces-endpoint`` on the receiver and
``--enable-per-request-metrics``. Requests are traced while it is idle and under a burst of long prompts, then by each
lower rung of the ladder. A second receiver stands for a backend and must get whole trees. Prints one JSON object last;
exits 1 when anything is not as it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import trustme

from tests.e2e.server import Server
from ufwatch.config import HttpAccess
from ufwatch.sources.fetch import Fetcher
from ufwatch.trace.account import network
from ufwatch.trace.client import Tracer
from ufwatch.trace.endpoint import endpoint_from
from ufwatch.trace.export import Export, exporter_to
from ufwatch.trace.model import Exchange, Phase, SplitSource
from ufwatch.trace.receiver import Receiver, ReceiverConfig, start_receiver, transport_to
from ufwatch.trace.record import ids_from
from ufwatch.trace.request import TraceRequest
from ufwatch.trace.series import connections, metrics_of, run_series
from ufwatch.trace.spans import tree_of
from ufwatch.web.server import serve

PORT = 18_443
BURST, BURST_WORDS = 12, 900
BACKEND_GRPC, BACKEND_HTTP = 15_317, 15_318


class Checks:
    """What was found wrong."""

    def __init__(self) -> None:
        self.made = 0
        self.wrong: list[str] = []

    def that(self, good: bool, text: str) -> None:
        self.made += 1
        if not good:
            self.wrong.append(text)


async def receiver(grpc: int, http: int, environ: dict[str, str] | None = None) -> Receiver:
    endpoint = None if environ is None else endpoint_from(environ)
    return await start_receiver(
        ReceiverConfig(grpc_port=grpc, http_port=http),
        serve=serve,
        now=time.monotonic,
        random=random.random,
        random_bytes=os.urandom,
        transport=None if endpoint is None else transport_to(endpoint, environ or {}),
    )


async def burst(url: str, ca: Path) -> None:
    """A dozen long prompts at once, each new, so that the engine is busy with prefills."""
    import ssl

    context = ssl.create_default_context(cafile=ca)

    async def one(session: aiohttp.ClientSession) -> None:
        prompt = " ".join(os.urandom(2).hex() for _ in range(BURST_WORDS // 4))
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8}
        async with session.post(f"{url}/v1/completions", json=body, ssl=context) as answer:
            await answer.read()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(session) for _ in range(BURST)))


def judge(checks: Checks, name: str, exchanges: list[Exchange], source: SplitSource) -> dict[str, Any]:
    """Checks what must hold of every request, and gives their medians in milliseconds."""
    for each in exchanges:
        checks.that(each.failure is None, f"{name}: {each.failure}")
        checks.that(each.server.source is source, f"{name}: split from {each.server.source}, not {source}")
        account = network(each)
        parts = sum(part.seconds for part in account.parts)
        checks.that(abs(parts + account.unaccounted - each.total) < 1e-9, f"{name}: parts do not add up")
        connecting = [each.span(phase) is not None for phase in (Phase.DNS, Phase.TCP, Phase.TLS)]
        checks.that(all(connecting) != each.reused and any(connecting) != each.reused, f"{name}: phases of connecting")
        # The server's own first token cannot be later than ours, give or take what our loop was late.
        if each.server.ttft is not None and each.ttft is not None:
            late = each.ttft - each.server.ttft
            checks.that(late > -0.005 - each.loop_lag, f"{name}: {late:.4f} s between the server's TTFT and ours")
    found = {part.name for each in exchanges for part in network(each).parts}
    medians = {
        part: round(1e3 * median(p.seconds for each in exchanges if (p := network(each).part(part)) is not None), 2)
        for part in sorted(found)
    }
    unaccounted = round(1e3 * median(network(each).unaccounted for each in exchanges), 2)
    return {"requests": len(exchanges), "medians_ms": medians, "unaccounted_ms": unaccounted}


async def series(
    url: str, access: HttpAccess, n: int, wait_for: Callable[[str, str, float], Awaitable[Any]] | None, **more: Any
) -> list[Exchange]:
    tracer, fetcher = Tracer({}), Fetcher({})
    base = TraceRequest(url=url, model="tiny", max_tokens=16, access=access, **more)
    requests = [
        replace(base, prompt=f"{os.urandom(6).hex()} say something", fresh_connection=fresh) for fresh in connections(n)
    ]
    try:
        return await run_series(requests, tracer, metrics_of(base, fetcher), wait_for=wait_for)
    finally:
        await tracer.close()
        await fetcher.close()


async def run(vllm: Path, work: Path) -> dict[str, Any]:
    checks, report = Checks(), dict[str, Any]()
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    ca, key, chain = work / "ca.pem", work / "key.pem", work / "chain.pem"
    authority.cert_pem.write_to_path(str(ca))
    issued.private_key_pem.write_to_path(str(key))
    chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    backend = await receiver(BACKEND_GRPC, BACKEND_HTTP)
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{BACKEND_GRPC}", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    ours = await receiver(14317, 14318, environ)
    flags = (
        *("--enforce-eager", "--ssl-keyfile", str(key), "--ssl-certfile", str(chain)),
        *("--otlp-traces-endpoint", "grpc://127.0.0.1:14317", "--enable-per-request-metrics"),
    )
    server = Server(vllm, PORT, flags, work, plugin=False)
    server.url = f"https://localhost:{PORT}"
    access = HttpAccess(ca_file=ca)
    try:
        report["server_start_seconds"] = round(await server.start(), 1)
        await series(server.url, access, 2, None)  # the first request of a shape takes seconds
        idle = await series(server.url, access, 10, ours.wait_for)
        report["idle"] = judge(checks, "idle", idle, SplitSource.SPAN)
        under = asyncio.create_task(burst(server.url, ca))
        await asyncio.sleep(0.2)
        busy = await series(server.url, access, 4, ours.wait_for)
        await under
        report["burst"] = judge(checks, "burst", busy, SplitSource.SPAN)
        waits = [each.server.pre_engine_wait or 0.0 for each in busy]
        report["burst"]["pre_engine_wait_longest_ms"] = round(1e3 * max(waits), 1)
        checks.that(max(waits) > 0.1, f"burst: pre_engine_wait is {waits}")
        body = await series(server.url, access, 4, None)
        report["body"] = judge(checks, "body", body, SplitSource.BODY)
        histograms = await series(server.url, access, 4, None, include_usage=False)
        report["histograms"] = judge(checks, "histograms", histograms, SplitSource.HISTOGRAM)
        checks.that(all(each.server.exact for each in histograms), "histograms: not exact on an idle server")
        report["model_load_seconds"] = [round(load.seconds, 1) for load in ours.loads]
        checks.that(len(ours.loads) == 1, f"{len(ours.loads)} model loads were traced")
        report["trees"] = await _trees(checks, idle, backend, environ)
    finally:
        await server.stop()
        await ours.stop()
        await backend.stop()
    report["received"] = str(ours.received)
    report["forwarded"] = str(ours.forwarded)
    return {**report, "checks": checks.made, "wrong": checks.wrong}


async def _trees(
    checks: Checks, exchanges: list[Exchange], backend: Receiver, environ: dict[str, str]
) -> dict[str, Any]:
    """Sends our own spans after vLLM's, and looks at what the backend has of one trace."""
    endpoint = endpoint_from(environ)
    assert endpoint is not None
    export, ids = Export(exporter_to(endpoint), {}), ids_from(os.urandom)
    for each in exchanges:
        export.add(tree_of(each, ids))
    counts = await asyncio.to_thread(export.close, 2.0)
    checks.that(counts.dropped == 0 and counts.exported > 0, f"export: {counts}")
    for each in exchanges:
        span = await backend.wait_for(each.trace_id, each.request_id, 5.0)
        checks.that(span is not None, "backend: a server span did not arrive")
    return {"own_spans": counts.exported, "backend": str(backend.received)}


def main() -> int:
    parser = argparse.ArgumentParser(description="ufwatch trace on a real vLLM over TLS.")
    parser.add_argument("--vllm-dir", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ufwatch-trace-") as folder:
        report = asyncio.run(run(given.vllm_dir, Path(folder)))
    print(json.dumps(report, indent=1))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
