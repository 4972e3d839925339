"""Connections that are kept, lost or refused, and addresses that lead elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.sources.loopback import (
    Names,
    Turn,
    fetching,
    free_port,
    get,
    hang,
    looped,
    paths,
    redirecting,
    refused,
    reset,
    saying,
    secret,
    serving,
    text,
)
from ufwatch.config import HttpAccess
from ufwatch.model import UP, Reason


@looped
async def test_nobody_listens() -> None:
    async with fetching() as fetcher:
        port = free_port()
        refused(await get(fetcher, f"http://127.0.0.1:{port}/"), Reason.CONNECT, f"127.0.0.1:{port}", "refused")


@looped
async def test_a_name_without_an_address() -> None:
    async with fetching(resolver=Names()) as fetcher:
        refused(await get(fetcher, "http://nowhere.test/"), Reason.CONNECT, "nowhere.test:80", "does not resolve")


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000", "ftp://h/", "http://", "http:///metrics", "http://h:99999/", "http://[::1/", "http://a..b/"],
)
def test_what_is_no_address_is_a_failed_fetch(url: str) -> None:
    async def run() -> None:
        async with fetching(resolver=Names()) as fetcher:
            refused(await get(fetcher, url), Reason.CONNECT)

    asyncio.run(run())


@looped
async def test_credentials_in_an_address_are_refused_and_not_shown() -> None:
    async with fetching() as fetcher:
        fetched = await get(fetcher, "http://user:hunter2@127.0.0.1:1/metrics")
        refused(fetched, Reason.CONNECT, "file")
        assert "hunter2" not in fetched.health.detail
        assert "user" not in fetched.health.detail


@pytest.mark.parametrize("abrupt", [False, True])
def test_a_fresh_connection_that_is_closed_is_not_tried_again(abrupt: bool) -> None:
    async def turn(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        return reset(writer) if abrupt else False

    async def run() -> None:
        async with serving(turn) as server, fetching() as fetcher:
            refused(await get(fetcher, server.url), Reason.CONNECT, "closed before an answer")
            assert len(server.heads) == 1

    asyncio.run(run())


def closing_second(*, abrupt: bool = False, instead: bytes = b"", recover: bool = True) -> Turn:
    """Answers a connection's first request and closes it at the second; without ``recover``, new ones at once."""
    served: set[asyncio.StreamWriter] = set()

    async def turn(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if writer not in served and (recover or not served):
            served.add(writer)
            writer.write(text())
            await writer.drain()
            return True
        writer.write(instead)
        return reset(writer) if abrupt else False

    return turn


@pytest.mark.usefixtures("client_only")
@pytest.mark.parametrize("abrupt", [False, True])
def test_a_kept_connection_that_was_closed_is_replaced_once(abrupt: bool) -> None:
    async def run() -> None:
        async with serving(closing_second(abrupt=abrupt)) as server, fetching() as fetcher:
            for _ in range(3):
                assert (await get(fetcher, server.url)).health == UP
            assert (server.connections, len(server.heads)) == (3, 5)

    asyncio.run(run())


@pytest.mark.usefixtures("client_only")
@looped
async def test_it_is_replaced_only_once() -> None:
    async with serving(closing_second(recover=False)) as server, fetching() as fetcher:
        assert (await get(fetcher, server.url)).health == UP
        refused(await get(fetcher, server.url), Reason.CONNECT)
        assert (server.connections, len(server.heads)) == (2, 3)


@pytest.mark.usefixtures("client_only")
@looped
async def test_it_is_not_replaced_once_an_answer_has_begun() -> None:
    async with serving(closing_second(instead=b"HTTP/1.1 200 OK\r\nContent-")) as server, fetching() as fetcher:
        assert (await get(fetcher, server.url)).health == UP
        refused(await get(fetcher, server.url), Reason.CONNECT)
        assert len(server.heads) == 2


@looped
async def test_after_close_every_fetch_fails() -> None:
    async with serving(saying(text())) as server, fetching() as fetcher:
        assert (await get(fetcher, server.url)).health == UP
        await fetcher.close()
        refused(await get(fetcher, server.url), Reason.CONNECT, "stopping")


@looped
async def test_a_fetch_under_way_fails_at_close() -> None:
    async with serving(lambda _, reader, __: hang(reader)) as server, fetching() as fetcher:
        waiting = asyncio.create_task(get(fetcher, server.url))
        while not server.heads:
            await asyncio.sleep(0)
        await fetcher.close()
        refused(await waiting, Reason.CONNECT)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_on_the_same_server_is_followed_and_remembered(status: int) -> None:
    async def run() -> None:
        async with serving(redirecting({"/metrics": "/metrics/"}, status)) as server, fetching() as fetcher:
            for _ in range(3):
                assert (await get(fetcher, server.url)).health == UP
            assert paths(server) == ["/metrics", "/metrics/", "/metrics/", "/metrics/"]

    asyncio.run(run())


@looped
async def test_what_was_remembered_is_forgotten_when_it_fails() -> None:
    places = {"/metrics": "/old"}
    async with serving(redirecting(places)) as server, fetching() as fetcher:
        assert (await get(fetcher, server.url)).health == UP
        places.clear()
        places["/old"] = ""
        refused(await get(fetcher, server.url), Reason.CONTENT, "nowhere")
        assert (await get(fetcher, server.url)).health == UP
        assert paths(server) == ["/metrics", "/old", "/old", "/metrics"]


@looped
async def test_a_redirect_elsewhere_is_refused_and_the_token_stays_here(tmp_path: Path) -> None:
    access = HttpAccess(api_key_file=secret(tmp_path, "sesame-4711"))
    async with serving(saying(text())) as other, fetching() as fetcher:
        for place in (
            f"http://127.0.0.1:{other.port}/metrics",
            f"http://localhost:{other.port}/metrics",
            f"//localhost:{other.port}/",
        ):
            async with serving(redirecting({"/metrics": place})) as server:
                fetched = await get(fetcher, server.url, access)
                refused(fetched, Reason.CONTENT, "redirect", str(other.port))
                assert fetched.status == 307
        assert other.heads == []


@pytest.mark.parametrize("place", ["http://[::1/", "http://a:b/", "ftp://127.0.0.1/", "http://user:pw@127.0.0.1:{}/"])
def test_a_redirect_to_no_address_is_refused(place: str) -> None:
    async def run() -> None:
        places: dict[str, str] = {}
        async with serving(redirecting(places)) as server, fetching() as fetcher:
            places["/metrics"] = place.format(server.port)
            fetched = await get(fetcher, server.url)
            refused(fetched, Reason.CONTENT, "redirect")
            assert "pw" not in fetched.health.detail

    asyncio.run(run())


@looped
async def test_at_most_three_redirects() -> None:
    async with serving(redirecting({"/metrics": "/a", "/a": "/b", "/b": "/c"})) as server, fetching() as fetcher:
        assert (await get(fetcher, server.url)).health == UP
    async with serving(redirecting({"/metrics": "/metrics"})) as server, fetching() as fetcher:
        refused(await get(fetcher, server.url), Reason.CONTENT, "more than 3 redirects")
        assert len(server.heads) == 4
