"""Listening, refusing to, and stopping whatever the clients do."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from tests.web.exchange import Agent, exchange, sink
from ufwatch.config import WebConfig
from ufwatch.errors import ListenError
from ufwatch.web.app import build_app
from ufwatch.web.server import Served, serve

AGENT = Agent()


async def serving(host: str = "127.0.0.1", port: int = 0, config_file: Path | None = None) -> Served:
    app = build_app(sink(), AGENT, AGENT.readings)
    return await serve(app, WebConfig(host=host, port=port, config_file=config_file))


def refusal(host: str = "127.0.0.1", port: int = 0) -> str:
    with pytest.raises(ListenError) as caught:
        asyncio.run(serving(host, port))
    line = str(caught.value)
    assert "\n" not in line
    return line


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


async def healthy(url: str) -> bool:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/-/healthy") as answer:
        return answer.status == 200


def test_port_zero_is_chosen_by_the_system() -> None:
    async def work(client: aiohttp.ClientSession, served: Served) -> None:
        assert served.port > 0
        assert served.url == f"http://127.0.0.1:{served.port}"
        async with client.get("/-/healthy") as answer:
            assert answer.status == 200

    exchange(work)


@pytest.mark.parametrize(
    ("host", "dial"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1"]),
        ("localhost", ["127.0.0.1"]),
        pytest.param("::1", ["[::1]"], marks=needs_ipv6),
        pytest.param("[::1]", ["[::1]"], marks=needs_ipv6),
        pytest.param("::", ["[::1]", "127.0.0.1"], marks=needs_ipv6),
        pytest.param("", ["[::1]", "127.0.0.1"], marks=needs_ipv6),
    ],
)
def test_addresses(host: str, dial: list[str]) -> None:
    async def main() -> None:
        served = await serving(host)
        try:
            assert await healthy(served.url)
            for name in dial:
                assert await healthy(f"http://{name}:{served.port}")
        finally:
            await served.stop()

    asyncio.run(main())


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert refusal(port=port).startswith(f"cannot listen on 127.0.0.1:{port}: the port is in use; ")


@needs_ipv6
def test_a_port_in_use_on_ipv6_is_one_line() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        assert refusal("::1", port).startswith(f"cannot listen on [::1]:{port}: the port is in use; ")


def test_addresses_that_are_not_ours() -> None:
    assert "this machine does not have that address" in refusal("192.0.2.1")
    assert "is no address of this machine" in refusal("no-such-host.invalid")
    assert "is no address of this machine" in refusal("a" * 70 + ".invalid")
    assert "between 0 and 65535" in refusal(port=70000)


def test_a_privileged_port_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_socket: socket.socket, _address: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    # Simulated: tests often run as root, who may bind them.
    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert "needs privileges; choose one above 1023" in refusal(port=80)


def test_the_port_is_free_again_after_stopping() -> None:
    async def main() -> None:
        first = await serving()
        assert await healthy(first.url)
        await first.stop()
        second = await serving(port=first.port)
        assert await healthy(second.url)
        await second.stop()

    asyncio.run(main())


def test_a_failed_start_leaves_nothing_behind() -> None:
    async def main() -> None:
        app = build_app(sink(), AGENT, AGENT.readings)

        async def fail(_: Any) -> None:
            raise RuntimeError("no")

        app.on_startup.append(fail)
        with socket.create_server(("127.0.0.1", 0)) as spare:
            port = spare.getsockname()[1]
        with pytest.raises(RuntimeError):
            await serve(app, WebConfig(port=port))
        again = await serving(port=port)
        await again.stop()

    asyncio.run(main())


def stopped_within(seconds: float, before: Callable[[Served], Awaitable[Any]], config_file: Path | None = None) -> None:
    async def main() -> float:
        served = await serving(config_file=config_file)
        kept = await before(served)
        started = time.monotonic()
        await served.stop()
        took = time.monotonic() - started
        for writer in kept:
            writer.close()
        return took

    assert asyncio.run(main()) < seconds


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"],
)
def test_stop_waits_for_no_half_sent_request(sent: bytes) -> None:
    async def connect(served: Served) -> list[asyncio.StreamWriter]:
        writers = []
        for _ in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(sent)
            writers.append(writer)
        await asyncio.sleep(0.05)
        return writers

    stopped_within(1.5, connect)


def test_stop_closes_connections_that_are_kept_alive() -> None:
    async def connect(served: Served) -> list[asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        return [writer]

    stopped_within(1.0, connect)


def test_stop_waits_for_no_half_done_handshake(tmp_path: Path) -> None:
    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    config = tmp_path / "web.yml"
    config.write_text("tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n")

    async def connect(served: Served) -> list[asyncio.StreamWriter]:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"\x16\x03\x01")
        await asyncio.sleep(0.05)
        return [writer]

    stopped_within(1.5, connect, config)


@pytest.mark.parametrize(
    "sent", [b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\nHost x\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n"]
)
def test_what_is_no_http_costs_a_400_and_no_log(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work(client: aiohttp.ClientSession, served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(sent)
        assert b" 400 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        async with client.get("/-/healthy") as answer:
            assert answer.status == 200

    exchange(work)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
