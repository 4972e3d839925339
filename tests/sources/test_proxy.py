"""Forward proxies from the environment, and the targets that must not go through one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.sources.loopback import (
    Certificates,
    Names,
    Turn,
    answer,
    fetching,
    free_port,
    get,
    issue,
    looped,
    refused,
    saying,
    serving,
    text,
)
from ufwatch.config import HttpAccess
from ufwatch.model import UP, Reason
from ufwatch.sources.proxy import ProxyRules, all_local, is_local, is_loopback


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue(tmp_path_factory.mktemp("tls"))


def proxying(port: int) -> Turn:
    """A forward proxy that takes every name for this machine: absolute addresses and CONNECT."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def turn(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            if head.startswith(b"CONNECT "):
                writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            else:
                up_writer.write(head)
            await asyncio.gather(pump(reader, up_writer), pump(up_reader, writer))
        finally:
            up_writer.close()
            with suppress(ConnectionError):
                await up_writer.wait_closed()
        return False

    return turn


@looped
async def test_a_dead_proxy_does_not_touch_local_targets() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    names = Names(engine_test="127.0.0.1")
    async with serving(saying(text())) as server, fetching({"HTTP_PROXY": dead}, names) as fetcher:
        assert (await get(fetcher, server.url)).health == UP
        assert (await get(fetcher, f"http://engine.test:{server.port}/metrics")).health == UP
        refused(await get(fetcher, f"http://nowhere.test:{server.port}/"), Reason.CONNECT, "nowhere.test", "proxy")
        refused(await get(fetcher, f"http://8.8.8.8:{server.port}/"), Reason.CONNECT, "proxy")


@pytest.mark.parametrize("names", [Names(), Names(model_test="8.8.8.8")])
def test_a_target_outside_goes_through_the_proxy(names: Names) -> None:
    async def run() -> None:
        async with serving(saying(text())) as server, serving(proxying(server.port)) as proxy:
            environ = {"http_proxy": f"http://me:hunter2@127.0.0.1:{proxy.port}", "NO_PROXY": "other.test"}
            async with fetching(environ, names) as fetcher:
                for _ in range(2):
                    assert (await get(fetcher, "http://model.test/metrics")).health == UP
                assert names.asked.count("model.test") == 1
            head = proxy.heads[0]
            assert head.startswith(b"GET http://model.test/metrics HTTP/1.1\r\n")
            assert b"Proxy-Authorization: Basic bWU6aHVudGVyMg==\r\n" in head
            assert b"Accept-Encoding: gzip\r\n" in head

    asyncio.run(run())


@looped
async def test_https_goes_through_the_proxys_tunnel(certificates: Certificates) -> None:
    async with serving(saying(text()), certificates.server()) as server, serving(proxying(server.port)) as proxy:
        async with fetching({"HTTPS_PROXY": f"127.0.0.1:{proxy.port}"}, Names()) as fetcher:
            fetched = await get(fetcher, "https://model.test/metrics", HttpAccess(ca_file=certificates.ca_file))
            assert fetched.health == UP
        assert proxy.heads[0].startswith(b"CONNECT model.test:443 HTTP/1.1\r\n")


@pytest.mark.parametrize(("status", "reason"), [("407 Who", Reason.PERMISSION), ("502 Bad", Reason.CONNECT)])
def test_a_proxy_that_refuses_a_tunnel(status: str, reason: Reason) -> None:
    async def run() -> None:
        async with serving(saying(answer(b"", status=status))) as proxy:
            environ = {"https_proxy": f"http://me:hunter2@127.0.0.1:{proxy.port}"}
            async with fetching(environ, Names()) as fetcher:
                fetched = await get(fetcher, "https://model.test/metrics")
                refused(fetched, reason, "the proxy answered", status[:3])
                assert "hunter2" not in fetched.health.detail

    asyncio.run(run())


@looped
async def test_a_proxy_that_hangs_up() -> None:
    async with serving(lambda _, __, ___: asyncio.sleep(0, False)) as proxy:
        environ = dict.fromkeys(("http_proxy", "https_proxy"), f"http://127.0.0.1:{proxy.port}")
        async with fetching(environ, Names()) as fetcher:
            for scheme in ("http", "https"):
                fetched = await get(fetcher, f"{scheme}://model.test/metrics")
                refused(fetched, Reason.CONNECT, "closed before an answer")


@looped
async def test_an_unknown_kind_of_proxy_is_named() -> None:
    async with fetching({"HTTP_PROXY": "socks5://me:hunter2@127.0.0.1:1"}, Names()) as fetcher:
        fetched = await get(fetcher, "http://model.test/")
        refused(fetched, Reason.CONNECT, "http_proxy")
        assert "hunter2" not in fetched.health.detail


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("*", "model.test", True),
        ("model.test", "model.test", True),
        ("model.test", "a.model.test", True),
        (".test", "model.test", True),
        ("*.test", "MODEL.test.", True),
        ("del.test", "model.test", False),
        ("model.test:80", "model.test", True),
        ("model.test:81", "model.test", False),
        ("a.test, model.test ,", "model.test", True),
        ("8.8.8.8", "8.8.8.8", True),
        ("8.8.8.8:80", "8.8.8.8", True),
        ("8.8.0.0/16", "8.8.8.8", True),
        ("8.9.0.0/16", "8.8.8.8", False),
        ("[2001:4860::8888]:80", "2001:4860::8888", True),
        ("2001:4860::8888", "2001:4860::8888", True),
        ("8", "8.8.8.8", False),
        ("", "model.test", False),
    ],
)
def test_no_proxy(no_proxy: str, host: str, direct: bool) -> None:
    rules = ProxyRules({"HTTP_PROXY": "proxy.test:3128", "NO_PROXY": no_proxy})
    assert rules.proxy_for("http", host, 80) == (None if direct else "http://proxy.test:3128")
    assert rules.proxy_for("https", host, 443) is None


def test_lower_case_variables_win() -> None:
    rules = ProxyRules({"HTTPS_PROXY": "http://upper.test", "https_proxy": "http://lower.test"})
    assert rules.proxy_for("https", "model.test", 443) == "http://lower.test"


@pytest.mark.parametrize(
    ("host", "local", "loopback"),
    [
        ("localhost", True, True),
        ("LOCALHOST.", True, True),
        ("a.localhost", True, True),
        ("127.8.8.8", True, True),
        ("::1", True, True),
        ("::ffff:127.0.0.1", True, True),
        ("10.1.2.3", True, False),
        ("192.168.1.1", True, False),
        ("100.64.0.1", True, False),
        ("169.254.1.1", True, False),
        ("fe80::1%eth0", True, False),
        ("fd00::1", True, False),
        ("8.8.8.8", False, False),
        ("2001:4860:4860::8888", False, False),
        ("model.test", None, False),
        ("localhost.test", None, False),
    ],
)
def test_what_is_local(host: str, local: bool | None, loopback: bool) -> None:
    assert is_local(host) is local
    assert is_loopback(host) is loopback


def test_a_name_is_local_when_all_its_addresses_are() -> None:
    assert all_local(["10.0.0.1", "::1"])
    assert not all_local(["10.0.0.1", "8.8.8.8"])
    assert not all_local([])
