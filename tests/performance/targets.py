"""Inference servers that cost nothing to ask: prebuilt busy pages from a process of their own.

``python -m tests.performance.targets TARGETS PAGES`` listens on as many loopback ports and prints them as a JSON list;
for each line on its standard input it prints how many requests there were so far, and it ends with the input. Every
port counts its own requests, so that each scrape of it shows the next page; after the last page the first one follows,
which looks like a restart: make as many as there will be scrapes. ``/health`` is answered beside all that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import IO

from tests.performance.pages import recorded, sequence

_HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Targets:
    """The other process: its addresses and its count."""

    def __init__(self, asks: IO[str], answers: IO[str]) -> None:
        self._asks, self._answers = asks, answers
        self.urls: Sequence[str] = [f"http://127.0.0.1:{port}" for port in json.loads(answers.readline())]

    def asked(self) -> int:
        """How many requests all targets had so far."""
        self._asks.write("?\n")
        self._asks.flush()
        return int(self._answers.readline())


@contextlib.contextmanager
def busy_targets(targets: int, pages: int) -> Iterator[Targets]:
    """So many targets, served by another process until the block ends."""
    command = [sys.executable, "-m", "tests.performance.targets", str(targets), str(pages)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield Targets(server.stdin, server.stdout)
        finally:
            server.stdin.close()


class Answering(asyncio.Protocol):
    """One connection to one target; ``asked`` is the target's."""

    def __init__(self, answers: list[bytes], asked: list[int]) -> None:
        self._answers, self._asked = answers, asked
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._buffer = (self._buffer + data).split(b"\r\n\r\n")
        for request in requests:
            if request.startswith(b"GET /health "):
                self._transport.write(_HEALTHY)
                continue
            self._transport.write(self._answers[self._asked[0] % len(self._answers)])
            self._asked[0] += 1


async def serve(targets: int, pages: int) -> None:
    head = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/plain; version=1.0.0; charset=utf-8\r\n"
    answers = [
        f"{head}content-length: {len(page)}\r\n\r\n".encode() + page for page in sequence(recorded(), pages, busy=True)
    ]
    loop = asyncio.get_running_loop()
    counts: list[list[int]] = []

    async def listen() -> int:
        asked = [0]
        counts.append(asked)
        server = await loop.create_server(lambda: Answering(answers, asked), "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    print(json.dumps([await listen() for _ in range(targets)]), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(sum(asked for (asked,) in counts), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
