"""Servers of bytes on loopback that do whatever a test wants, and a fetcher for them."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

import trustme
from aiohttp.abc import AbstractResolver, ResolveResult

from ufwatch.config import HttpAccess
from ufwatch.model import Reason
from ufwatch.sources.fetch import Fetched, Fetcher

P = ParamSpec("P")
PAGE = b"# TYPE a counter\na 1\nb 2\n"
OPEN = HttpAccess()


def looped(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


def answer(body: bytes = PAGE, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def text(body: bytes = PAGE, *headers: str) -> bytes:
    return answer(body, "Content-Type: text/plain; version=0.0.4; charset=utf-8", *headers)


Turn = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]


@dataclass
class Server:
    """A server of bytes: ``turn`` gets each request's head and says whether the connection stays open."""

    turn: Turn
    port: int = 0
    connections: int = 0
    heads: list[bytes] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError, asyncio.CancelledError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    self.heads.append(head)
                    if not await self.turn(head, reader, writer):
                        break
        finally:
            self.ended.set()
            writer.close()
            with suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()


@asynccontextmanager
async def serving(turn: Turn, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(turn)
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
        await listener.wait_closed()


def saying(*answers: bytes, keep: bool = True) -> Turn:
    """Sends the answers in turn, the last one for ever."""
    left = list(answers)

    async def turn(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        return keep

    return turn


async def hang(reader: asyncio.StreamReader) -> bool:
    await reader.read()
    return False


def reset(writer: asyncio.StreamWriter) -> bool:
    """Ends a connection with RST instead of FIN."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


@asynccontextmanager
async def fetching(
    environ: dict[str, str] | None = None, resolver: AbstractResolver | None = None
) -> AsyncIterator[Fetcher]:
    fetcher = Fetcher(environ, resolver=resolver)
    try:
        yield fetcher
    finally:
        await fetcher.close()


async def get(
    fetcher: Fetcher, url: str, access: HttpAccess = OPEN, *, deadline: float = 10.0, cap: int = 64 << 20
) -> Fetched:
    fetched = await fetcher.get(url, access, deadline_seconds=deadline, body_cap_bytes=cap)
    assert (fetched.body is not None) == fetched.health.up
    assert "\n" not in fetched.health.detail
    return fetched


async def one(turn: Turn, *, deadline: float = 10.0, cap: int = 64 << 20) -> Fetched:
    async with serving(turn) as server, fetching() as fetcher:
        return await get(fetcher, server.url, deadline=deadline, cap=cap)


def refused(fetched: Fetched, reason: Reason, *parts: str) -> None:
    assert fetched.health.reason is reason, fetched.health
    for part in parts:
        assert part in fetched.health.detail


class Names(AbstractResolver):
    """Names of this test only; none is looked up on the network."""

    def __init__(self, **addresses: str) -> None:
        self.addresses = {name.replace("_", "."): address for name, address in addresses.items()}
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError("no such name")
        address = self.addresses[host]
        return [ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        pass


def secret(folder: Path, value: str, name: str = "key") -> Path:
    path = folder / name
    path.write_text(value)
    return path


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def redirecting(places: dict[str, str], status: int = 307) -> Turn:
    async def turn(head: bytes, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        path = head.split()[1].decode()
        if path in places:
            port = writer.get_extra_info("sockname")[1]
            place = places[path].replace("{port}", str(port))
            writer.write(answer(b"", f"Location: {place}", status=f"{status} Moved"))
        else:
            writer.write(text())
        return True

    return turn


def paths(server: Server) -> list[str]:
    return [head.split()[1].decode() for head in server.heads]


def https(server: Server) -> str:
    return server.url.replace("http://", "https://")


@dataclass(frozen=True)
class Certificates:
    """A certificate authority, a server's certificate for 127.0.0.1 and model.test, and a client's."""

    folder: Path
    ca: trustme.CA
    ca_file: Path
    client_cert_file: Path
    client_key_file: Path

    def server(
        self, *, ask_client: bool = False, names: tuple[str, ...] = ("127.0.0.1", "model.test")
    ) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names).configure_cert(context)
        if ask_client:
            self.ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def issue(folder: Path) -> Certificates:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    client = ca.issue_cert("agent@example.test")
    client.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
    client.private_key_pem.write_to_path(str(folder / "client.key"))
    client.private_key_and_cert_chain_pem.write_to_path(str(folder / "both.pem"))
    return Certificates(folder, ca, folder / "ca.pem", folder / "client.pem", folder / "client.key")
