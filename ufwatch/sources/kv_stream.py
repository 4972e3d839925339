"""One publisher of KV events: its subscription, who is connected to it, and the replay of what was missed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ufwatch.clock import Clock
from ufwatch.decode.kv_events import KvState, decode_batch, give_up, is_missing, reconnect, refill, step
from ufwatch.model import UP, Health, Reason

if TYPE_CHECKING:
    import zmq
    import zmq.asyncio

MAX_MESSAGE_BYTES = 64 << 20
MAX_QUEUED = 10_000
"""Batches ZMQ holds for us; what does not fit is dropped, and asked for again."""
MAX_RETRY_SECONDS = 30.0
MAX_REPLAYS = 5
"""Requests for one gap: a publisher may be busy, and drops of a long replay what its socket cannot hold."""
HEARTBEAT_MS = 5_000
"""A host that went without a word is noticed after three of these."""
_DRAIN = 256
_MAX_ENGINE = 999
_END = -1


class Peers:
    """How many publishers are connected, from the events of a ZMQ socket monitor.

    A connection counts once its handshake is done: whoever merely opens the port is no publisher. The handshake's
    event does not say which connection it is of, hence sums: each connection either succeeds or fails, then ends.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._succeeded = 0
        self._failed = 0

    @property
    def count(self) -> int:
        return min(self._succeeded, len(self._open))

    def note(self, event: int, value: int) -> bool:
        """Takes one monitor event and its value; true when a publisher has just connected."""
        import zmq

        if event in (zmq.EVENT_CONNECTED, zmq.EVENT_ACCEPTED):
            self._open.add(value)
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._succeeded += 1
            return True
        elif event in (
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
        ):
            self._failed += 1
        elif event == zmq.EVENT_DISCONNECTED:
            self._open.discard(value)
            if self._failed:
                self._failed -= 1
            elif self._succeeded:
                self._succeeded -= 1
        return False


class KvStream:
    """The stream of data-parallel rank ``rank``. ``run`` works until cancelled; the attributes may be read any time."""

    def __init__(
        self,
        *,
        rank: int,
        endpoint: str,
        bind: bool,
        replay: str | None,
        topic: str,
        clock: Clock,
        retry_seconds: float,
        replay_timeout_seconds: float,
    ) -> None:
        self.rank = rank
        self.engine = rank
        """The rank the publisher names; the configured one until it has."""
        self.state = KvState()
        self.last_event: float | None = None
        """Monotonic seconds."""
        self._endpoint = endpoint
        self._bind = bind
        self._replay = replay
        self._topic = topic
        self._clock = clock
        self._retry_seconds = retry_seconds
        self._replay_timeout_seconds = replay_timeout_seconds
        self._problem: Health | None = Health(up=False, reason=Reason.WARMING_UP, detail="not started")
        self._peers = Peers()
        self._gap = asyncio.Event()

    @property
    def health(self) -> Health:
        """Up while exactly one publisher is connected."""
        if self._problem is not None:
            return self._problem
        if self._peers.count == 1:
            return UP
        if self._peers.count > 1:
            detail = f"{self._endpoint}: {self._peers.count} publishers on one endpoint; give each its own port"
            return Health(up=False, reason=Reason.INCONSISTENT, detail=detail)
        hint = (
            "vLLM connects here only if its endpoint is this very address, without `*` or `::`"
            if self._bind
            else "vLLM listens there only if its endpoint contains `*` or `::`, else let the agent bind"
        )
        detail = f"{self._endpoint}: no publisher connected; {hint}"
        return Health(up=False, reason=Reason.CONNECT, detail=detail)

    async def run(self, context: zmq.asyncio.Context) -> None:
        """Receives until cancelled; an endpoint that cannot be opened is tried again, ever more slowly."""
        import zmq

        pause = self._retry_seconds
        while True:
            socket = self._socket(context)
            # Before the socket is opened, or the first connection is missed.
            monitor = socket.get_monitor_socket()
            try:
                if self._bind:
                    socket.bind(self._endpoint)
                else:
                    socket.connect(self._endpoint)
                self._problem = None
                self._peers = Peers()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._receive(socket))
                    group.create_task(self._watch(monitor))
                    group.create_task(self._fill_gaps(context))
            except zmq.ZMQError as error:
                self._problem = self._cannot_open(error, pause)
            finally:
                with contextlib.suppress(zmq.ZMQError):
                    socket.disable_monitor()
                monitor.close(linger=0)
                socket.close(linger=0)
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_RETRY_SECONDS)

    def _socket(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        import zmq

        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, MAX_QUEUED)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, HEARTBEAT_MS)
        socket.setsockopt(zmq.IPV6, int("[" in self._endpoint))
        socket.setsockopt(zmq.SUBSCRIBE, self._topic.encode())
        return socket

    def _cannot_open(self, error: zmq.ZMQError, pause: float) -> Health:
        reason = Reason.PERMISSION if error.errno == errno.EACCES else Reason.CONNECT
        verb = "bind" if self._bind else "connect"
        detail = f"cannot {verb} {self._endpoint}: {error.strerror}; next try in {pause:g} s"
        return Health(up=False, reason=reason, detail=detail)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        import zmq

        # A second handle on the same socket: what is queued already is taken without a future for each message.
        queued: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        while True:
            self._take(await socket.recv_multipart())
            with contextlib.suppress(zmq.Again):
                for _ in range(_DRAIN):
                    self._take(queued.recv_multipart(zmq.NOBLOCK))
            # A receive that has its answer ready does not give way to other tasks.
            await asyncio.sleep(0)

    def _take(self, frames: Sequence[bytes]) -> None:
        self.last_event = self._clock.monotonic()
        if len(frames) != 3 or len(frames[1]) != 8:
            self.state = replace(self.state, faults=self.state.faults + 1)
            return
        batch = decode_batch(frames[2])
        if batch.dp_rank is not None and 0 <= batch.dp_rank <= _MAX_ENGINE:
            self.engine = batch.dp_rank
        self.state, gap = step(self.state, int.from_bytes(frames[1], "big", signed=True), batch)
        if gap is not None:
            self._gap.set()

    async def _watch(self, monitor: Any) -> None:
        from zmq.utils.monitor import parse_monitor_message

        while True:
            event: Mapping[str, Any] = parse_monitor_message(await monitor.recv_multipart())
            if self._peers.note(event["event"], event["value"]):
                self.state = reconnect(self.state)

    async def _fill_gaps(self, context: zmq.asyncio.Context) -> None:
        while True:
            await self._gap.wait()
            self._gap.clear()
            for _ in range(MAX_REPLAYS if self._replay is not None else 0):
                before = self.state
                if not before.missing:
                    break
                ended = await self._ask(context)
                last = before.missing[-1].last
                still = tuple(gap for gap in self.state.missing if gap.first <= last)
                if ended and self.state.epoch == before.epoch and still == before.missing:
                    # The publisher gave all it has. Gaps opened meanwhile have set the event again.
                    self.state = give_up(self.state, last)
                    break
            else:
                if self.state.missing:
                    self.state = give_up(self.state, self.state.missing[-1].last)

    async def _ask(self, context: zmq.asyncio.Context) -> bool:
        """Asks once for all from the first gap on and takes what comes; whether the publisher came to its end."""
        import zmq

        replay = self._replay or ""
        epoch = self.state.epoch
        first = self.state.missing[0].first
        # A socket for each request: what an earlier one still brings cannot be taken for this one's answer.
        socket = context.socket(zmq.DEALER)
        try:
            # All of a replay comes at once, more than the default limit of messages.
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            socket.setsockopt(zmq.IPV6, int("[" in replay))
            socket.connect(replay)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            while self.state.epoch == epoch:
                async with asyncio.timeout(self._replay_timeout_seconds):
                    # [empty, topic, seq, payload]; older publishers send no topic.
                    frames = await socket.recv_multipart()
                seq = int.from_bytes(frames[-2], "big", signed=True) if len(frames) > 2 else _END
                if seq == _END:
                    return True
                if is_missing(self.state, seq):
                    self.state = refill(self.state, seq, decode_batch(frames[-1]))
        except (TimeoutError, zmq.ZMQError):
            return False
        finally:
            socket.close(linger=0)
        return False
