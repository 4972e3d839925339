"""Clients that hold connections: bounded in number and in time, and never in the way of a scrape."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable

import aiohttp
import pytest

from tests.web.exchange import Agent, exchange, sink
from ufwatch.config import WebConfig
from ufwatch.web import door
from ufwatch.web.app import build_app
from ufwatch.web.server import Served, serve

AGENT = Agent()

HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connected(served: Served, sent: bytes) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def _closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 5) == b""
    except ConnectionResetError:
        return True


def _with(monkeypatch: pytest.MonkeyPatch, *, most: int = 8, seconds: float = 10.0) -> None:
    class Small(door.Door):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **{**kwargs, "most": most, "seconds": seconds})  # type: ignore[arg-type]

    monkeypatch.setattr("ufwatch.web.server.Door", Small)


def _run(work: Callable[[aiohttp.ClientSession, Served], Awaitable[None]]) -> None:
    exchange(work)


def test_one_too_many_closes_the_oldest_and_a_scrape_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    _with(monkeypatch, most=3)

    async def work(client: aiohttp.ClientSession, served: Served) -> None:
        held = [await _connected(served, HALF) for _ in range(4)]
        assert await _closed(held[0][0])
        async with client.get("/metrics") as answer:
            assert answer.status == 200
        assert await _closed(held[1][0])
        # The scrape's own connection was closed again: the two left are still served.
        for reader, writer in held[2:]:
            writer.write(b"\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
        for _, writer in held:
            writer.close()

    _run(work)


@pytest.mark.parametrize("sent", [b"", HALF], ids=["nothing", "half"])
def test_a_connection_that_asks_for_nothing_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    _with(monkeypatch, seconds=0.1)

    async def work(_: aiohttp.ClientSession, served: Served) -> None:
        reader, writer = await _connected(served, sent)
        assert await _closed(reader)
        writer.close()

    _run(work)


def test_one_that_has_asked_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    _with(monkeypatch, seconds=0.1)

    async def work(_: aiohttp.ClientSession, served: Served) -> None:
        reader, writer = await _connected(served, b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(reader.readuntil(b"404 Not Found\n"), 5)
        await asyncio.sleep(0.3)
        writer.write(HALF + b"\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()

    _run(work)


def test_it_opens_under_uvloop_too(monkeypatch: pytest.MonkeyPatch) -> None:
    uvloop = pytest.importorskip("uvloop")
    _with(monkeypatch, most=1, seconds=0.1)

    async def main() -> None:
        served = await serve(build_app(sink(), AGENT, AGENT.readings), WebConfig(port=0))
        try:
            first, second = [await _connected(served, HALF) for _ in range(2)]
            assert await _closed(first[0])
            second[1].write(b"\r\n")
            assert b" 200 " in await asyncio.wait_for(second[0].readline(), 5)
            third = await _connected(served, HALF)
            assert await _closed(third[0])
            for _, writer in (first, second, third):
                writer.close()
        finally:
            await served.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_what_is_no_http_is_not_told_whose_server_it_is() -> None:
    async def work(_: aiohttp.ClientSession, served: Served) -> None:
        reader, writer = await _connected(served, b"rubbish\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b"Server: ufwatch\r\n" in answer
        assert b"aiohttp" not in answer
        writer.close()

    _run(work)


@pytest.mark.parametrize(("allowed", "most"), [(128, 64), (1024, 256), (1 << 20, 256), (resource.RLIM_INFINITY, 256)])
def test_half_of_the_descriptors_are_for_the_targets(allowed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert door.most_connections() == most
