"""What the OTLP receiver and forwarder cost at 1,000 spans a second. Run ``python -m tests.performance.receiver``.

A second process is vLLM's exporter and the backend at once, so that the CPU time of this one is the receiver's and the
forwarder's alone. The last line is JSON, CPU microseconds a span: ``grpc_request_us`` and ``http_request_us`` for
``llm_request`` spans, each of which gets five children, ``grpc_other_us`` and ``http_other_us`` for spans that are only
passed on, ``…_each_us`` where every request holds a single span instead of a hundred; ``core_percent`` is the dearest
of the batched ones at 1,000 a second. Every span must arrive.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from time import process_time

import aiohttp
import grpc

from tests.trace.otlp import (
    METHOD,
    GrpcBackend,
    HttpBackend,
    body,
    grpc_backend,
    http_backend,
    llm_request,
    spans_in,
    wire,
)
from ufwatch.trace.endpoint import GRPC, HTTP, Endpoint
from ufwatch.trace.receiver import ReceiverConfig, start_receiver, transport_to
from ufwatch.trace.wire import PROTOBUF
from ufwatch.web.server import serve

SPANS_PER_SECOND = 1000
SECONDS = 4.0
TOGETHER, EACH = 100, 1


def content(kind: str, number: int, spans: int) -> bytes:
    """A request with so many spans of their own traces."""
    made = []
    for position in range(spans):
        own = number * spans + position + 1
        trace, span = f"{own:032x}", f"{own:016x}"
        if kind == "request":
            made.append(llm_request(f"chatcmpl-{own}", trace=trace, span=span))
        else:
            attributes: dict[str, object] = {"http.request.method": "POST", "http.response.status_code": 200, "a": 0.5}
            made.append(wire("POST /v1/chat", trace=trace, span=span, attributes=attributes))
    return body(*made)


async def outside(protocol: str, kind: str, together: int) -> None:
    """The second process: opens the backend, tells its address, sends at the rate, tells what arrived."""
    contents = [content(kind, number, together) for number in range(int(SECONDS * SPANS_PER_SECOND / together))]
    loop = asyncio.get_running_loop()
    async with http_backend() as over_http, grpc_backend() as over_grpc:
        backend: HttpBackend | GrpcBackend = over_http if protocol == "http" else over_grpc
        print(f"{over_http.url}/v1/traces" if protocol == "http" else over_grpc.target, flush=True)
        port = int(await loop.run_in_executor(None, sys.stdin.readline))
        async with (
            aiohttp.ClientSession(headers={"Content-Type": PROTOBUF}) as client,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            export = channel.unary_unary(METHOD)
            began = loop.time()
            for number, one in enumerate(contents):
                await asyncio.sleep(began + number * together / SPANS_PER_SECOND - loop.time())
                if protocol == "http":
                    async with client.post(f"http://127.0.0.1:{port}/v1/traces", data=one) as answer:
                        await answer.read()
                else:
                    await export(one)
        print("sent", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        names = [span.name for payload in backend.bodies for span in spans_in(payload)]
        print(json.dumps({name: names.count(name) for name in set(names)}), flush=True)


async def measured(protocol: str, kind: str, together: int) -> float:
    """Return CPU microseconds a span."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.performance.receiver", protocol, kind, str(together)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    target = (await child.stdout.readline()).decode().strip()
    endpoint = Endpoint(protocol=HTTP if protocol == "http" else GRPC, target=target, tls=False)
    receiver = await start_receiver(
        ReceiverConfig(grpc_port=0, http_port=0),
        serve=serve,
        now=asyncio.get_running_loop().time,
        random=random.random,
        random_bytes=os.urandom,
        transport=transport_to(endpoint, {}),
    )
    began = process_time()
    child.stdin.write(f"{receiver.http_port if protocol == 'http' else receiver.grpc_port}\n".encode())
    assert await child.stdout.readline() == b"sent\n"
    await receiver.stop()
    used = process_time() - began
    spans = int(SECONDS * SPANS_PER_SECOND)
    counts = receiver.forwarded
    assert counts is not None
    assert counts.delivered == spans, counts
    child.stdin.write(b"\n")
    arrived = json.loads(await child.stdout.readline())
    assert await child.wait() == 0
    expected = {"llm_request": spans, "queue": spans} if kind == "request" else {"POST /v1/chat": spans}
    assert expected.items() <= arrived.items(), arrived
    return used / spans * 1e6


async def main() -> None:
    found = {}
    for protocol in ("grpc", "http"):
        for kind in ("request", "other"):
            found[f"{protocol}_{kind}_us"] = round(await measured(protocol, kind, TOGETHER), 1)
        found[f"{protocol}_request_each_us"] = round(await measured(protocol, "request", EACH), 1)
    dearest = max(value for name, value in found.items() if "each" not in name)
    print(json.dumps({**found, "core_percent": round(dearest * SPANS_PER_SECOND / 1e4, 2)}))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        asyncio.run(outside(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    else:
        asyncio.run(main())
