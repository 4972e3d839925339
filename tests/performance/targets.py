"""Inference servers that cost nothing to ask: prebuilt busy pages from a process of their own.

``python -m tests.performance.targets TARGETS PAGES`` listens on as many loopback ports, prints them as a JSON list and
serves until its standard input ends. Every port counts its own requests, so that each scrape of it shows the next page;
after the last page the first one follows, which looks like a restart: make as many as there will be scrapes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

from tests.performance.pages import recorded, sequence


@contextlib.contextmanager
def busy_targets(targets: int, pages: int) -> Iterator[list[str]]:
    """The addresses of so many targets, served by another process until the block ends."""
    command = [sys.executable, "-m", "tests.performance.targets", str(targets), str(pages)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield [f"http://127.0.0.1:{port}" for port in json.loads(server.stdout.readline())]
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
        for _ in requests:
            self._transport.write(self._answers[self._asked[0] % len(self._answers)])
            self._asked[0] += 1


async def serve(targets: int, pages: int) -> None:
    head = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/plain; version=1.0.0; charset=utf-8\r\n"
    answers = [
        f"{head}content-length: {len(page)}\r\n\r\n".encode() + page for page in sequence(recorded(), pages, busy=True)
    ]
    loop = asyncio.get_running_loop()

    async def listen() -> int:
        asked = [0]
        server = await loop.create_server(lambda: Answering(answers, asked), "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        return port

    print(json.dumps([await listen() for _ in range(targets)]), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:])))
