"""What an engine's process says it is."""

from __future__ import annotations

import asyncio

import pytest

from ufwatch.config import TargetConfig
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.version import VersionSource, flags_digest, version_url


class Engine:
    """A server that says ``body`` at ``/version``, as vLLM does: with its length."""

    def __init__(self, body: bytes) -> None:
        self.body, self.paths = body, list[str]()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.paths.append(head.split()[1].decode())
        length = f"Content-Length: {len(self.body)}"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{length}\r\n\r\n".encode() + self.body)
        await writer.drain()
        writer.close()


def _asked(body: bytes, *more: str) -> str | None:
    """What is found out of an engine that says ``body``; its command line is seen where it has ``more`` on it."""

    async def ask() -> str | None:
        engine = Engine(body)
        fetcher = Fetcher({})
        async with await asyncio.start_server(engine.answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            lines: list[tuple[str, ...]] = [("vllm", "serve", "m", "--port", str(port), *more)] if more else []
            target = TargetConfig(name="a", url=f"http://127.0.0.1:{port}/metrics")
            found = await VersionSource(fetcher, lambda: lines).identify(target)
            await fetcher.close()
        assert engine.paths == ["/version"]
        return None if found is None else found.replace(flags_digest(lines[0]), "DIGEST") if lines else found

    return asyncio.run(ask())


def test_its_version() -> None:
    assert _asked(b'{"version":"0.28.0"}') == "0.28.0"


def test_its_flags_where_its_command_line_is_seen() -> None:
    assert _asked(b'{"version":"0.28.0"}', "--enforce-eager") == "0.28.0 DIGEST"


def test_a_secret_is_no_flag() -> None:
    command = ("vllm", "serve", "m")
    one, other = flags_digest((*command, "--api-key", "one")), flags_digest((*command, "--api-key=other"))
    assert one == other == flags_digest(command)
    assert flags_digest((*command, "--enforce-eager")) != one


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"version":1}', b'{"version":""}', b"<html>", b"[" * 3000])
def test_an_answer_without_a_version(body: bytes) -> None:
    assert _asked(body) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1"])
def test_a_server_that_is_gone(url: str) -> None:
    async def ask() -> str | None:
        fetcher = Fetcher({})
        try:
            return await VersionSource(fetcher).identify(TargetConfig(name="a", url=url))
        finally:
            await fetcher.close()

    assert asyncio.run(ask()) is None


def test_its_address_is_beside_the_page() -> None:
    assert version_url("http://a:1/metrics") == version_url("http://a:1/") == "http://a:1/version"
    assert version_url("http://a/foo") == "http://a/foo/version"
