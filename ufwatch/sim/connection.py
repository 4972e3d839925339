"""One connection to the simulated server: requests in, answers out, and the faults it is told to have."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
from typing import TYPE_CHECKING, cast

from ufwatch.sim import wire
from ufwatch.sim.completions import Ask, InvalidRequestError, Reply, read_ask
from ufwatch.sim.engine import ServerDownError

if TYPE_CHECKING:
    from ufwatch.sim.server import SimServer

_COMPLETIONS = {"/v1/completions": False, "/v1/chat/completions": True}


class Connection(asyncio.Protocol):
    """Answers one request after the other; a completion is answered by a task of its own."""

    def __init__(self, server: SimServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._tokens: asyncio.Queue[int] = asyncio.Queue()
        """Counts of tokens as they come; 0 when no more will: the process died or the client left."""
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream server hands over a Transport; uvloop's is one in all but its base class.
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._server.connections.discard(self)
        self._stop_waiting()
        self._transport = None
        self._tokens.put_nowait(0)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._stop_waiting()
        self._answer_buffered()

    def drop(self) -> None:
        """Ends the connection with a reset, as the end of a process does in the middle of an answer."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    async def finish(self) -> None:
        """Drops the connection and waits for its task."""
        self.drop()
        if self._task is not None:
            await self._task

    def _answer_buffered(self) -> None:
        while self._transport is not None and self._task is None:
            try:
                request = wire.take_request(self._buffer)
            except wire.BadRequestError as error:
                self._write(wire.error_answer(400, str(error)))
                self._close()
                return
            if request is None:
                self._wait_for_request()
                return
            self._answer(request)

    def _answer(self, request: wire.HttpRequest) -> None:
        server = self._server
        server.catch_up()
        if not server.engine.up:
            self.drop()
        elif request.path in _COMPLETIONS and request.method == "POST":
            self._complete(request)
        elif request.method != "GET":
            self._write(wire.error_answer(405, "Method Not Allowed"))
        elif request.path.startswith("/metrics"):
            self._metrics(gzipped="gzip" in request.headers.get("accept-encoding", ""))
        elif request.path == "/health":
            self._write(wire.answer(200, b"", "text/plain"))
        elif request.path == "/version":
            self._write(wire.json_answer(200, {"version": server.version}))
        elif request.path == "/v1/models":
            model = {"id": server.engine.scenario.model_name, "object": "model", "owned_by": "vllm"}
            self._write(wire.json_answer(200, {"object": "list", "data": [model]}))
        else:
            self._write(wire.error_answer(404, "Not Found"))

    def _metrics(self, *, gzipped: bool) -> None:
        server = self._server
        server.scrapes += 1
        if server.fault == "hang":
            return
        if server.fault == "reset":
            self.drop()
            return
        if server.fault == "status_500":
            self._write(wire.answer(500, b"Internal Server Error", "text/plain; charset=utf-8"))
            return
        page = server.engine.page(server.version)
        if server.fault == "cut_body":
            # As a proxy does that loses its upstream: no length, and the end in the middle of a number.
            self._write(wire.head(200, {"content-type": wire.METRICS_TYPE, "connection": "close"}))
            self._write(page[: _inside_a_number(page)])
            self._close()
        elif gzipped:
            self._write(wire.answer(200, gzip.compress(page, mtime=0), wire.METRICS_TYPE, {"content-encoding": "gzip"}))
        else:
            self._write(wire.answer(200, page, wire.METRICS_TYPE))

    def _complete(self, request: wire.HttpRequest) -> None:
        server = self._server
        try:
            ask = read_ask(request.body, chat=_COMPLETIONS[request.path], model=server.engine.scenario.model_name)
            self._tokens = asyncio.Queue()
            served = server.engine.submit(ask.words, ask.max_tokens, self._heard)
        except InvalidRequestError as error:
            self._write(wire.error_answer(error.status, str(error)))
        except ValueError as error:
            self._write(wire.error_answer(400, str(error)))
        except ServerDownError as error:
            self._write(wire.error_answer(503, str(error)))
        else:
            reply = Reply(
                ask, number=server.next_number(), model=server.engine.scenario.model_name, created=server.wall_seconds()
            )

            async def serve() -> None:
                server.live += 1
                server.wake()
                try:
                    await (self._stream(ask, reply) if ask.stream else self._whole(ask, reply))
                finally:
                    server.live -= 1
                    server.engine.abort(served)
                    self._task = None
                self._answer_buffered()

            self._task = asyncio.ensure_future(serve())

    def _heard(self, at: float, count: int) -> None:  # noqa: ARG002
        self._tokens.put_nowait(count)

    async def _stream(self, ask: Ask, reply: Reply) -> None:
        fault = self._server.stream_fault
        started, sent = False, 0
        while sent < ask.max_tokens:
            count = await self._tokens.get()
            if not count:
                self.drop()
                return
            if not started:
                started = True
                self._write(
                    wire.head(200, {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"})
                )
            sent += count
            for event in reply.tokens(count, "length" if sent >= ask.max_tokens else None):
                self._write(wire.chunk(event))
            if fault is not None and sent >= fault.after_tokens:
                if fault.kind == "reset":
                    # What was written must not be thrown away with the reset.
                    await asyncio.sleep(0.01)
                    self.drop()
                else:
                    self._write(wire.chunk(b""))
                    self._close()
                return
        for event in reply.end():
            self._write(wire.chunk(event))
        self._write(wire.chunk(b""))

    async def _whole(self, ask: Ask, reply: Reply) -> None:
        got = 0
        while got < ask.max_tokens:
            count = await self._tokens.get()
            if not count:
                self.drop()
                return
            got += count
        self._write(wire.answer(200, json.dumps(reply.whole("length")).encode(), "application/json"))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _wait_for_request(self) -> None:
        self._stop_waiting()
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(self._server.keep_alive_seconds, self._close)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def _inside_a_number(page: bytes) -> int:
    """A place near the middle of the page that lies within the digits of a value."""
    end = page.index(b"\n", len(page) // 2)
    while page[page.rindex(b"\n", 0, end) + 1] == ord("#"):
        end = page.index(b"\n", end + 1)
    return page.rindex(b" ", 0, end) + 2
