"""Model servers and proxies on loopback that take known times, and a tracer for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from aiohttp.abc import AbstractResolver

from tests.sources.loopback import Names, Server, Turn, hang, reset, serving
from tests.trace.streams import DONE, ROLE, chunk, usage, words
from ufwatch.trace.client import Tracer
from ufwatch.trace.model import Exchange
from ufwatch.trace.request import TraceRequest

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
GOOD = (HEAD, ROLE, words("Hello"), words(" you"), chunk({}, finish="stop"), usage(3), DONE)


class Then(Enum):
    """What a server does besides sending."""

    RESET = "reset"
    CLOSE = "close"
    HANG = "hang"


Step = bytes | float | Then


@dataclass
class Asked:
    """The requests that came, as their bodies."""

    bodies: list[dict[str, Any]] = field(default_factory=list)


def answering(*steps: Step, asked: Asked | None = None) -> Turn:
    """Sends the steps of bytes (the first is the head, the others chunks of the body), sleeping as long as floats say.

    The end of the steps is the end of the body.
    """

    async def turn(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        body = await reader.readexactly(_length(head))
        if asked is not None:
            asked.bodies.append(json.loads(body))
        chunked, sent = b"chunked" in steps[0] if isinstance(steps[0], bytes) else True, False
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            elif step is Then.RESET:
                return reset(writer)
            elif step is Then.CLOSE:
                return False
            elif step is Then.HANG:
                return await hang(reader)
            elif isinstance(step, bytes):
                writer.write(b"%x\r\n%s\r\n" % (len(step), step) if chunked and sent else step)
                sent = True
                await writer.drain()
        if not chunked:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    return turn


def status(code: str, body: bytes = b"", *headers: str) -> Turn:
    """Answers with a status and no stream."""
    lines = [f"HTTP/1.1 {code}", f"Content-Length: {len(body)}", *headers, "", ""]

    async def turn(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await reader.readexactly(_length(head))
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        return True

    return turn


def _length(head: bytes) -> int:
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    return int(fields.get(b"content-length", b"0"))


@asynccontextmanager
async def tracing(
    environ: Mapping[str, str] | None = None, resolver: AbstractResolver | None = None
) -> AsyncIterator[Tracer]:
    tracer = Tracer(environ, resolver=resolver or Names(model_test="127.0.0.1"))
    try:
        yield tracer
    finally:
        await tracer.close()


def request(base: str, **fields: Any) -> TraceRequest:
    return TraceRequest(url=base, **{"model": "m", "deadline_seconds": 20.0, **fields})


def base(server: Server, scheme: str = "http", host: str = "127.0.0.1") -> str:
    return f"{scheme}://{host}:{server.port}"


async def one(*steps: Step, **fields: Any) -> Exchange:
    """One request to a server that answers so."""
    async with serving(answering(*steps)) as server, tracing() as tracer:
        return await tracer.traced(request(base(server), **fields))


@asynccontextmanager
async def speaking(first: bytes | None) -> AsyncIterator[int]:
    """A port whose connections say ``first`` at the first byte that comes and end; with None they say nothing ever."""
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read(1)
        if first is None:
            await reader.read()
        else:
            writer.write(first)
        writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await listener.wait_closed()


@asynccontextmanager
async def relay(port: int, *, wait: float = 0.0) -> AsyncIterator[int]:
    """A port that leads to another; the first bytes of each connection are passed on only after ``wait``."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.sleep(wait)
            await splice(reader, writer, "127.0.0.1", port)
        writer.close()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


def connect_proxy(port: int, *, wait: float = 0.0, code: str = "200 OK") -> Turn:
    """A proxy that answers CONNECT after ``wait`` and leads every name to ``port``."""

    async def turn(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        assert head.startswith(b"CONNECT ")
        await asyncio.sleep(wait)
        writer.write(f"HTTP/1.1 {code}\r\n\r\n".encode())
        await writer.drain()
        if code.startswith("200"):
            await splice(reader, writer, "127.0.0.1", port)
        return False

    return turn


async def splice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    """Passes bytes both ways until either side ends."""
    other_reader, other_writer = await asyncio.open_connection(host, port)

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
            sink.write_eof()

    try:
        await asyncio.gather(pump(reader, other_writer), pump(other_reader, writer))
    finally:
        other_writer.close()
