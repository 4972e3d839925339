"""vLLM's KV-event streams of one target over ZMQ: one subscription per data-parallel rank, gaps asked for again.

Health comes from the sockets' own monitors (is a publisher connected?) and never from the age of the last event: an
idle server publishes nothing. Payloads are counted and dropped at once; they carry the prompts' token ids.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ufwatch.clock import Clock
from ufwatch.config import KvEventsConfig
from ufwatch.decode.kv_events import MISSING_EXTRA
from ufwatch.errors import ConfigError, SourceError
from ufwatch.model import UP, Health, Quality
from ufwatch.sources.kv_stream import KvStream

_TCP = re.compile(r"tcp://(\[[^\]/]+\]|[^:/]+):(\d{1,5})")
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsSnapshot:
    """What the streams of one target said since the source was made. Counts never fall; blocks unless said."""

    health: Health
    """Up when every rank has its publisher connected."""
    health_by_rank: Mapping[int, Health] = field(default_factory=dict)
    """By the same rank as ``evictions_by_rank``."""
    evictions_by_rank: Mapping[int, float] = field(default_factory=dict)
    """Blocks removed from the GPU, by the rank the publisher names (the configured one until it has)."""
    removed_other: float = 0.0
    stored: float = 0.0
    cleared: float = 0.0
    """AllBlocksCleared events: whole caches of unknown size, no evictions."""
    batches: int = 0
    gaps: int = 0
    missing_batches: int = 0
    """Asked for again and not here yet."""
    lost_batches: int = 0
    """Gone for good, or not wholly readable."""
    duplicates: int = 0
    restarts: int = 0
    unknown: int = 0
    """Events of a kind not known here."""
    faults: int = 0
    """Messages and events that could not be read."""
    last_event_age_seconds: float | None = None

    @property
    def quality(self) -> Quality:
        """Exact while nothing was missed; else the counts are lower bounds."""
        whole = not (self.lost_batches or self.missing_batches)
        return Quality.EXACT if whole else Quality.BOUNDED


class KvEventsSource:
    """Subscribes as ``config`` says.

    ``retry_seconds`` is the first pause after an endpoint could not be opened (doubled up to 30 s),
    ``replay_timeout_seconds`` the longest silence of a publisher asked for a replay.
    Raises SourceError when pyzmq or msgspec is not installed, ConfigError when the endpoints cannot be used.
    """

    def __init__(
        self,
        config: KvEventsConfig,
        clock: Clock,
        *,
        retry_seconds: float = 1.0,
        replay_timeout_seconds: float = 5.0,
    ) -> None:
        try:
            import msgspec  # noqa: F401
            import zmq.asyncio  # noqa: F401
        except ImportError as error:
            raise SourceError(MISSING_EXTRA) from error
        mistakes = check(config)
        if mistakes:
            raise ConfigError("kv_events", mistakes)
        self._clock = clock
        self._streams = [
            KvStream(
                rank=rank,
                endpoint=of_rank(config.bind or config.connect or "", rank),
                bind=config.bind is not None,
                replay=None if config.replay is None else of_rank(config.replay, rank),
                topic=config.topic,
                clock=clock,
                retry_seconds=retry_seconds,
                replay_timeout_seconds=replay_timeout_seconds,
            )
            for rank in range(config.ranks)
        ]

    async def run(self) -> None:
        """Receives until cancelled. An endpoint that cannot be opened is tried again, with health down meanwhile."""
        import zmq.asyncio

        context = zmq.asyncio.Context()
        try:
            async with asyncio.TaskGroup() as group:
                for stream in self._streams:
                    group.create_task(stream.run(context))
        finally:
            context.destroy(linger=0)

    def snapshot(self) -> KvEventsSnapshot:
        """The counts so far, and whether the publishers are connected now."""
        evictions: dict[int, float] = {}
        health: dict[int, Health] = {}
        for stream in self._streams:
            evictions[stream.engine] = evictions.get(stream.engine, 0.0) + stream.state.removed_gpu
            if stream.engine not in health or health[stream.engine].up:
                health[stream.engine] = stream.health
        states = [stream.state for stream in self._streams]
        last_events = [stream.last_event for stream in self._streams if stream.last_event is not None]
        return KvEventsSnapshot(
            health=next((one for one in health.values() if not one.up), UP),
            health_by_rank=health,
            evictions_by_rank=evictions,
            removed_other=sum(state.removed_other for state in states),
            stored=sum(state.stored for state in states),
            cleared=sum(state.cleared for state in states),
            batches=sum(state.batches for state in states),
            gaps=sum(state.gaps for state in states),
            missing_batches=sum(gap.last - gap.first + 1 for state in states for gap in state.missing),
            lost_batches=sum(state.lost_batches for state in states),
            duplicates=sum(state.duplicates for state in states),
            restarts=sum(state.epoch for state in states),
            unknown=sum(state.unknown for state in states),
            faults=sum(state.faults for state in states),
            last_event_age_seconds=self._clock.monotonic() - max(last_events) if last_events else None,
        )


def of_rank(endpoint: str, rank: int) -> str:
    """The endpoint of data-parallel rank ``rank``, as vLLM derives it: port + rank."""
    if rank == 0:
        return endpoint
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}"


def check(config: KvEventsConfig) -> list[str]:
    """What is wrong with the endpoints, each as ``key: what is wrong; what to do``; empty when nothing is."""
    if (config.bind is None) == (config.connect is None):
        return ["bind, connect: exactly one of the two is needed"]
    if config.ranks < 1:
        return ["ranks: must be 1 at least"]
    mistakes: list[str] = []
    places: dict[str, tuple[str, int]] = {}
    for key, endpoint in (("bind", config.bind), ("connect", config.connect), ("replay", config.replay)):
        if endpoint is None:
            continue
        if endpoint.startswith("ipc://") and len(endpoint) > len("ipc://"):
            if config.ranks > 1:
                mistakes.append(f"{key}: an ipc endpoint serves rank 0 only; use tcp for {config.ranks} ranks")
            continue
        matched = _TCP.fullmatch(endpoint)
        if matched is None or not 1 <= int(matched[2]) <= _MAX_PORT - config.ranks + 1:
            mistakes.append(f"{key}: {endpoint!r} is no endpoint; write tcp://host:port or ipc://path")
            continue
        if matched[1] == "*" and key != "bind":
            mistakes.append(f"{key}: `*` cannot be connected to; name the publisher's host")
        places["replay" if key == "replay" else "events"] = matched[1], int(matched[2])
    if len(places) == 2:
        (host, port), (replay_host, replay_port) = places["events"], places["replay"]
        same_host = host == replay_host or "*" in (host, replay_host)
        if same_host and abs(port - replay_port) < config.ranks:
            mistakes.append(
                f"replay: its ports, one for each of {config.ranks} ranks, meet the events'; move one of them"
            )
    return mistakes
