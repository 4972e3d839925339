"""A whole simulated server in virtual time: its engines, its process, what it shows and what is true. Pure."""

from __future__ import annotations

import math

from ufwatch.model import EngineState
from ufwatch.sim.journal import Truth, truth
from ufwatch.sim.layout import page_layout
from ufwatch.sim.load import Listener, Request, prompt_keys
from ufwatch.sim.page import PageWriter
from ufwatch.sim.scenario import Scenario
from ufwatch.sim.scheduler import EngineCore, KvBatch

DEFAULT_WALL_START = 1_700_000_000.0


class ServerDownError(RuntimeError):
    """The simulated process does not exist at this time: there is no page and nothing can be sent to it."""


class SimEngine:
    """The server of one scenario. Time starts at 0, when it first becomes ready, and moves only by ``advance``.

    The process began ``restart_down_seconds`` before it became ready. ``wall_start`` is the Unix time of virtual 0.
    """

    def __init__(self, scenario: Scenario, *, wall_start: float = DEFAULT_WALL_START) -> None:
        self.scenario = scenario
        self.now = 0.0
        self._wall_start = wall_start
        self._cores = [EngineCore(scenario, index) for index in range(scenario.engines)]
        self._writers: dict[str, PageWriter] = {}
        self._process_began = -scenario.restart_down_seconds
        self._ready_at = 0.0
        self._up = True
        self._next_death = scenario.restart_every_seconds or math.inf

    @property
    def up(self) -> bool:
        """Whether the process answers."""
        return self._up

    @property
    def asleep(self) -> bool:
        return all(core.stats.asleep for core in self._cores)

    @property
    def process_start_seconds(self) -> float:
        """Unix time at which the present process, or the one now starting, began."""
        return self.wall(self._process_began)

    def wall(self, at: float) -> float:
        """Unix time of a virtual time."""
        return self._wall_start + at

    @property
    def next_step_end(self) -> float:
        """When the next token can come; inf when no engine is working."""
        return min((core.step_end for core in self._cores if core.step_end is not None), default=math.inf)

    def advance(self, to_seconds: float) -> None:
        """Moves time forward. ValueError for a time before ``now``."""
        if to_seconds < self.now:
            raise ValueError(f"time runs forwards: {to_seconds} is before {self.now}")
        while True:
            if self._up:
                self._run(min(to_seconds, self._next_death))
                if self._next_death > to_seconds:
                    return
                self._die(self.scenario.restart_down_seconds)
            elif self._ready_at <= to_seconds:
                self._boot()
            else:
                self.now = to_seconds
                return

    def restart(self, down_seconds: float | None = None) -> None:
        """The process dies now and is back, with counters at 0, after ``down_seconds`` (the scenario's by default)."""
        if self._up:
            self._die(self.scenario.restart_down_seconds if down_seconds is None else down_seconds)
            self.advance(self.now)

    def submit(self, words: list[str], max_tokens: int, listener: Listener) -> Request:
        """Sends a request, one word a token, that arrives ``now`` and gets exactly ``max_tokens`` tokens.

        ValueError when it does not fit the model; ServerDownError when there is no process, or it sleeps.
        """
        if not self._up or self.asleep:
            raise ServerDownError("the simulated server takes no requests now")
        if not words or max_tokens < 1:
            raise ValueError("a request has a prompt and asks for at least one token")
        if len(words) + max_tokens + self.scenario.spec_tokens > self.scenario.max_model_len:
            raise ValueError(f"prompt and answer are longer than the model's {self.scenario.max_model_len} tokens")
        core = min(self._cores, key=lambda candidate: candidate.requests)
        request = Request(
            serial=core.next_serial(),
            arrival=self.now,
            prompt_tokens=len(words),
            output_tokens=max_tokens,
            max_tokens=max_tokens,
            prompt_keys=prompt_keys(words, self.scenario.block_size),
            listener=listener,
        )
        core.submit(request, self.now)
        return request

    def abort(self, request: Request) -> None:
        """The client of a submitted request is gone; nothing happens when it has been answered or died."""
        for core in self._cores:
            core.abort(request, self.now)

    def page(self, version: str) -> bytes:
        """The text of ``/metrics`` now, as this version of vLLM writes it; ServerDownError without a process."""
        if not self._up:
            raise ServerDownError("the simulated server is down")
        writer = self._writers.get(version)
        if writer is None:
            writer = self._writers[version] = PageWriter(
                page_layout(version),
                self.scenario,
                [core.stats for core in self._cores],
                process_start=self.process_start_seconds,
                created=self.wall(self._ready_at),
            )
        return writer.render(self.now - self._process_began)

    def truth(self, start: float, stop: float, engine: int | None = None) -> Truth:
        """What happened in ``(start, stop]``, of one engine or of all pooled, across restarts.

        ValueError when the window ends in the future or begins before the scenario's ``retention_seconds``.
        """
        if stop > self.now:
            raise ValueError(f"{stop} has not happened yet")
        cores = self._cores if engine is None else [self._cores[engine]]
        return truth([core.journal for core in cores], start, stop)

    def state(self, engine: int | None = None) -> EngineState:
        """The state now; of several engines the worst."""
        return self.truth(self.now, self.now, engine).state

    def collect_kv_events(self) -> None:
        """Begins to keep what steps do to findable blocks, for ``take_kv_batches``."""
        for core in self._cores:
            if core.kv_batches is None:
                core.kv_batches = []

    def take_kv_batches(self) -> list[tuple[int, KvBatch]]:
        """Engine index and batch of every step since the last call, engine by engine in order of time."""
        taken = []
        for index, core in enumerate(self._cores):
            taken += [(index, batch) for batch in core.kv_batches or ()]
            core.kv_batches = None if core.kv_batches is None else []
        return taken

    def _run(self, to: float) -> None:
        for core in self._cores:
            core.advance(to)
        self.now = max(self.now, to)

    def _die(self, down_seconds: float) -> None:
        for core in self._cores:
            core.die(self.now)
        self._up = False
        self._process_began = self.now
        self._ready_at = self.now + down_seconds

    def _boot(self) -> None:
        self.now = self._ready_at
        for core in self._cores:
            core.boot(self.now)
        self._writers.clear()
        self._up = True
        every = self.scenario.restart_every_seconds
        if every is not None:
            self._next_death = (math.floor(self.now / every) + 1) * every
