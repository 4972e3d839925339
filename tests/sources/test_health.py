"""The health probe against servers that answer, hang, close, redirect and talk nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ufwatch.config import HttpAccess, TargetConfig
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.health import HealthSource, Probe, health_url

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Answers each request with the next of ``answers``; None closes instead, an empty one is no answer."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.gone: list[asyncio.Event] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        gone = asyncio.Event()
        self.gone.append(gone)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        gone.set()


@contextlib.asynccontextmanager
async def probing(server: Server, access: HttpAccess | None = None) -> AsyncIterator[HealthSource]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    fetcher = Fetcher({})
    source = HealthSource(
        TargetConfig(name="a", url=f"http://127.0.0.1:{port}/metrics", access=access or HttpAccess()),
        fetcher,
    )
    try:
        yield source
    finally:
        source.close()
        await fetcher.close()
        listening.close()
        await asyncio.gather(*(gone.wait() for gone in server.gone))
        await asyncio.sleep(0)


def probes(server: Server, times: int = 1) -> list[Probe]:
    async def run() -> list[Probe]:
        async with probing(server) as source:
            return [await source.poll(0.3) for _ in range(times)]

    return asyncio.run(run())


def test_one_connection_is_kept() -> None:
    server = Server(OK)
    assert probes(server, 3) == [Probe(200)] * 3
    assert server.connections == 1
    assert server.requests[0].startswith(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno", 503),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine", 200),
        (b"HTTP/1.0 200 OK\r\n\r\nfine", 200),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", 200),
        (b"", None),
        (b"SSH-2.0-OpenSSH\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut", None),
        (b"HTTP/1.1 OK 200\r\n\r\n", None),
        (None, None),
    ],
)
def test_every_answer_has_a_status_or_none(answer: bytes | None, status: int | None) -> None:
    assert probes(Server(answer), 2) == [Probe(status)] * 2


def test_a_connection_closed_between_two_probes_says_nothing() -> None:
    server = Server(OK, None, OK)
    assert probes(server, 2) == [Probe(200)] * 2
    assert server.connections == 2


def test_nobody_listening_is_no_answer() -> None:
    async def run() -> Probe:
        fetcher = Fetcher({})
        try:
            return await HealthSource(TargetConfig(name="a", url="http://127.0.0.1:1"), fetcher).poll(0.3)
        finally:
            await fetcher.close()

    assert asyncio.run(run()) == Probe(None)


def test_a_refused_connection_leaves_no_cycle() -> None:
    async def run() -> int:
        fetcher = Fetcher({})
        source = HealthSource(TargetConfig(name="a", url="http://127.0.0.1:1"), fetcher)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                assert await source.poll(0.3) == Probe(None)
            return sum(isinstance(found, OSError) for found in gc.get_objects())
        finally:
            gc.enable()
            await fetcher.close()

    assert asyncio.run(run()) <= 2


def test_a_redirect_goes_through_the_client() -> None:
    moved = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /healthz\r\nContent-Length: 0\r\n\r\n"
    server = Server(moved, moved, OK)
    assert probes(server) == [Probe(200)]
    assert server.requests[-1].startswith(b"GET /healthz ")


def test_credentials_are_sent(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    server = Server(OK)

    async def run() -> Probe:
        async with probing(server, HttpAccess(api_key_file=key)) as source:
            return await source.poll(0.3)

    assert asyncio.run(run()) == Probe(200)
    assert b"\r\nAuthorization: Bearer secret\r\n" in server.requests[0]


@pytest.mark.parametrize(
    ("url", "health"),
    [
        ("http://a:1", "http://a:1/health"),
        ("http://a:1/metrics", "http://a:1/health"),
        ("https://a/v/", "https://a/v/health"),
    ],
)
def test_health_lies_beside_the_metrics(url: str, health: str) -> None:
    assert health_url(url) == health
