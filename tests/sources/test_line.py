"""The kept line: what it reads is what the client reads, however the bytes come."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.sources.loopback import (
    PAGE,
    Server,
    Turn,
    answer,
    fetching,
    get,
    hang,
    looped,
    refused,
    reset,
    saying,
    serving,
    text,
)
from ufwatch.model import UP, Reason
from ufwatch.sources import kept
from ufwatch.sources.answer import Answer
from ufwatch.sources.fetch import Fetched, Fetcher
from ufwatch.sources.line import End, Line, Reply, parse_head

TEXT = "Content-Type: text/plain"
CHUNKED = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return CHUNKED.encode() + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


WHOLE = {
    "length": text(),
    "no type": answer(PAGE),
    "one chunk": chunked(PAGE),
    "chunks": chunked(PAGE[:7], PAGE[7:8], PAGE[8:]),
    "chunk extension": CHUNKED.encode() + b"%X;a=b\r\n%b\r\n0\r\n\r\n" % (len(PAGE), PAGE),
    "trailers": chunked(PAGE, end=b"0\r\nX-A: b\r\nX-C: d\r\n\r\n"),
    "long": text(PAGE * 5000),
    "gzip": text(gzip.compress(PAGE), "Content-Encoding: gzip"),
    "openmetrics": answer(PAGE + b"# EOF\n", "Content-Type: application/openmetrics-text"),
    "close": text(PAGE, "Connection: close"),
    "until it closes": f"HTTP/1.1 200 OK\r\n{TEXT}\r\nConnection: close\r\n\r\n".encode() + PAGE,
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + PAGE,
    "interim": b"HTTP/1.1 103 Early Hints\r\n\r\n" + text(),
}
FAILED = {
    "cut": text(PAGE, "X-A: b")[:-3],
    "cut in the head": b"HTTP/1.1 200 OK\r\nContent-",
    "nothing": b"",
    "cut chunk": chunked(PAGE)[:-9],
    "no last chunk": chunked(PAGE, end=b""),
    "no chunk": CHUNKED.encode() + b"zz\r\n",
    "chunk without its end": CHUNKED.encode() + b"3\r\nabcdef\r\n0\r\n\r\n",
    "no exposition": answer(PAGE, "Content-Type: text/html"),
    "html": text(b"<html>\n"),
    "json": text(b"{}\n"),
    "empty": text(b""),
    "no newline": text(PAGE[:-1]),
    "not gzip": text(PAGE, "Content-Encoding: gzip"),
    "cut gzip": text(gzip.compress(PAGE)[:-9], "Content-Encoding: gzip"),
    "brotli": text(PAGE, "Content-Encoding: br"),
    "too large": text(PAGE * 100),
    "too large in chunks": chunked(*[PAGE] * 100),
    "503": answer(b"busy\n", status="503 Service Unavailable"),
    "404 without a body": answer(b"", status="404 Not Found"),
    "401": answer(b"no\n", status="401 No"),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "a blank in a name": b"HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\na 1",
}


def second(sent: bytes) -> Turn:
    """A page, and over the next connection ``sent`` and its end."""
    return saying(text(), sent, keep=False)


async def both(sent: bytes, cap: int, patch: pytest.MonkeyPatch) -> tuple[Fetched, Fetched]:
    """What the line and the client make of ``sent``."""
    found: list[Fetched] = []
    for lined in (True, False):
        with patch.context() as context:
            if not lined:
                context.setattr(Answer, "is_plain", lambda _: False)
            async with serving(second(sent)) as server, fetching() as fetcher:
                assert (await get(fetcher, server.url)).health == UP
                (route,) = fetcher._routes.values()
                assert (route.kept is not None) == lined
                route.peer = "peer"
                found.append(await get(fetcher, server.url, cap=cap))
    return found[0], found[1]


@pytest.mark.parametrize("what", [*WHOLE, *FAILED])
def test_the_client_is_the_oracle(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = WHOLE.get(what, FAILED.get(what, b""))
    line, client = asyncio.run(both(sent, 1000 if what in FAILED else 1 << 20, monkeypatch))
    assert line.health.up == client.health.up == (what in WHOLE)
    if what in ("no chunk", "chunk without its end"):
        # Of a broken chunk the client says one thing or another by what else came in the same packet.
        refused(line, Reason.TRUNCATED)
        return
    assert line.health == client.health
    assert (line.body, line.status, line.content_type) == (client.body, client.status, client.content_type)
    if line.health.up:
        assert line.wire_bytes == client.wire_bytes


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def write(self, data: Any) -> None:
        del data

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


async def read(pieces: list[bytes], cap: int = 1 << 20) -> tuple[Reply, bool]:
    """What a line makes of an answer that comes in pieces, and whether it stays open."""
    line, wire = Line(), Wire()
    line.connection_made(wire)
    asked = asyncio.ensure_future(line.ask(b"GET", asyncio.get_running_loop().time() + 5, cap))
    await asyncio.sleep(0)
    for piece in pieces:
        if not wire.closed and not asked.done():
            line.data_received(piece)
    if not line.open or not asked.done():
        line.connection_lost(None)
    return await asked, line.open


@pytest.mark.parametrize("what", [name for name in (*WHOLE, *FAILED) if name != "long"])
def test_how_the_bytes_are_cut_does_not_matter(what: str) -> None:
    sent = WHOLE.get(what, FAILED.get(what, b""))
    dice = random.Random(what)

    async def run() -> None:
        expected = await read([sent])
        every = [sent[at : at + 1] for at in range(len(sent))]
        for turn in range(60):
            cuts = sorted(dice.sample(range(len(sent) + 1), min(turn % 7, len(sent))))
            pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
            reply, _ = await read([piece for piece in (pieces if turn else every) if piece])
            same = reply._replace(wire_bytes=0) == expected[0]._replace(wire_bytes=0)
            assert same, (pieces, reply, expected[0])

    asyncio.run(run())


def test_a_page_in_many_small_chunks_is_put_together_in_linear_time() -> None:
    sent = chunked(*[b"a" * 999 + b"\n"] * 16_000)

    async def run() -> Reply:
        return (await read([sent[at : at + 4096] for at in range(0, len(sent), 4096)], cap=1 << 30))[0]

    reply = asyncio.run(run())
    assert (reply.end, len(reply.body)) == (End.WHOLE, 16_000_000)


@pytest.mark.parametrize(
    ("head", "length", "keeps"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5", 5, True),
        (b"HTTP/1.1 200\r\ncontent-length:5", 5, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5", None, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5", None, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", None, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: Close", 5, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5", 5, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n folded", None, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx", None, False),
    ],
)
def test_the_length_is_only_what_the_head_says_once(head: bytes, length: int | None, keeps: bool) -> None:
    found = parse_head(head)
    assert found is not None
    assert (found.length, found.chunked, found.keep) == (length, False, keeps)


@pytest.mark.parametrize("head", [b"", b"HTTP/2 200 OK", b"HTTP/1.1 20 OK"])
def test_what_is_no_head(head: bytes) -> None:
    assert parse_head(head) is None


@asynccontextmanager
async def lined(turn: Turn) -> AsyncIterator[tuple[Server, Fetcher]]:
    """A fetcher whose next GET of the server goes over a line, by ``turn``."""
    first = True

    async def then(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonlocal first
        if first:
            first = False
            writer.write(text())
            return True
        return await turn(head, reader, writer)

    async with serving(then) as server, fetching() as fetcher:
        assert (await get(fetcher, server.url)).health == UP
        yield server, fetcher


@looped
async def test_a_line_closed_for_being_idle_is_replaced_once() -> None:
    seen: list[asyncio.StreamWriter] = []

    async def turn(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if writer in seen:
            return reset(writer) if len(seen) > 1 else False
        seen.append(writer)
        writer.write(text())
        return True

    async with lined(turn) as (server, fetcher):
        for _ in range(4):
            assert (await get(fetcher, server.url)).health == UP
        # One by the client; then line, line closed, line, line reset, line, line closed, line.
        assert (server.connections, len(server.heads)) == (5, 8)


@looped
async def test_it_is_replaced_only_once_and_then_the_client_goes_on() -> None:
    seen: list[asyncio.StreamWriter] = []

    async def turn(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if len(seen) in (1, 2):
            seen.append(writer)
            return False
        seen.append(writer)
        writer.write(text())
        return True

    async with lined(turn) as (server, fetcher):
        assert (await get(fetcher, server.url)).health == UP
        refused(await get(fetcher, server.url), Reason.CONNECT, "closed before an answer")
        assert len(server.heads) == 4
        assert (await get(fetcher, server.url)).health == UP
        assert len(server.heads) == 5


@looped
async def test_one_longer_idle_than_servers_wait_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEEPALIVE_SECONDS", 0.0)
    async with lined(saying(text())) as (server, fetcher):
        for _ in range(3):
            assert (await get(fetcher, server.url)).health == UP
        assert (server.connections, len(server.heads)) == (4, 4)


@looped
async def test_one_get_at_a_time_and_the_others_by_the_client() -> None:
    async with lined(saying(text())) as (server, fetcher):
        found = await asyncio.gather(*(get(fetcher, server.url) for _ in range(3)))
        assert [each.health for each in found] == [UP] * 3
        assert len(server.heads) == 4


@looped
async def test_a_late_answer_and_a_late_rest_say_so() -> None:
    async def nothing(_: bytes, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> bool:
        return await hang(reader)

    async def half(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(text()[:-4])
        return await hang(reader)

    async with lined(nothing) as (server, fetcher):
        refused(await get(fetcher, server.url, deadline=0.1), Reason.TIMEOUT, "no answer within 0.1 s")
    async with lined(half) as (server, fetcher):
        fetched = await get(fetcher, server.url, deadline=0.1)
        refused(fetched, Reason.TIMEOUT, f"{len(PAGE) - 4} bytes of the body within 0.1 s")
        assert (fetched.status, fetched.wire_bytes) == (200, len(PAGE) - 4)


@looped
async def test_a_server_that_is_gone_is_refused_as_the_client_says_it() -> None:
    async with fetching() as fetcher:
        async with serving(saying(text(), keep=False)) as server:
            assert (await get(fetcher, server.url)).health == UP
        refused(await get(fetcher, server.url), Reason.CONNECT, "refused")


@looped
async def test_bytes_that_nobody_asked_for_end_the_line() -> None:
    async with lined(saying(text() + b"HTTP/1.1 200 OK\r\n", text())) as (server, fetcher):
        for _ in range(3):
            assert (await get(fetcher, server.url)).health == UP
        assert server.connections == 3


@looped
async def test_a_get_under_way_ends_when_the_fetcher_closes() -> None:
    arrived = asyncio.Event()

    async def turn(_: bytes, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> bool:
        arrived.set()
        return await hang(reader)

    async with lined(turn) as (server, fetcher):
        under_way = asyncio.ensure_future(get(fetcher, server.url))
        await arrived.wait()
        await fetcher.close()
        refused(await under_way, Reason.CONNECT)
        refused(await get(fetcher, server.url), Reason.CONNECT, "stopping")


@looped
async def test_a_cancelled_get_leaves_no_answer_for_the_next() -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()
    asked = 0

    async def turn(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            arrived.set()
            await go_on.wait()
            writer.write(text(b"stale 1\n"))
        else:
            writer.write(text())
        return True

    async with lined(turn) as (server, fetcher):
        assert (await get(fetcher, server.url)).body == PAGE
        under_way = asyncio.ensure_future(get(fetcher, server.url))
        await arrived.wait()
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)
        go_on.set()
        assert (await get(fetcher, server.url)).body == PAGE


@looped
async def test_once_a_minute_the_client_looks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lined(saying(text())) as (server, fetcher):
        await get(fetcher, server.url)
        assert server.connections == 2
        (route,) = fetcher._routes.values()
        monkeypatch.setattr(route, "proxy_decided_until", 0.0)
        await get(fetcher, server.url)
        await get(fetcher, server.url)
        assert server.connections == 2
