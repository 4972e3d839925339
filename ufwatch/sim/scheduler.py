"""One engine: vLLM's continuous batching in virtual time, one token per running request and step.

Pure. What a step does is decided when it begins and becomes visible, all at once, when it ends; so it is with vLLM,
whose statistics leave the engine with a step's output.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from ufwatch.model import EngineState
from ufwatch.sim.blocks import BlockPool
from ufwatch.sim.journal import Journal
from ufwatch.sim.load import Load, Request
from ufwatch.sim.outcome import Outcome
from ufwatch.sim.scenario import Scenario
from ufwatch.sim.stats import EngineStats, new_stats

_TRIM_EVERY = 256


@dataclass(slots=True)
class _Attempt:
    """One look-up in the prefix cache by a request that asked to run."""

    tokens: int
    hits: int
    preempted: bool
    admitted: bool = False


@dataclass(slots=True)
class _Step:
    begin: float
    work: list[tuple[Request, int]] = field(default_factory=list)
    """Requests and how many tokens of each are computed."""
    attempts: list[_Attempt] = field(default_factory=list)
    preempted: int = 0
    prefill: int = 0
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class KvBatch:
    """What one step did to the findable blocks: the content of one batch of vLLM's KV events."""

    at: float
    stored: tuple[int, ...]
    evicted: tuple[int, ...]


class EngineCore:
    """The scheduler, its blocks and its numbers. ``stats`` starts anew at each boot, ``journal`` never."""

    stats: EngineStats

    def __init__(self, scenario: Scenario, index: int) -> None:
        self.scenario = scenario
        self.journal = Journal(scenario.num_gpu_blocks, scenario.retention_seconds)
        self.kv_batches: list[KvBatch] | None = None
        """Filled, when a list, with what each step did to the findable blocks."""
        self._load = Load(scenario, index)
        self._random = Random(f"{scenario.seed}/steps/{index}")
        self._steps = 0
        self.boot(0.0)

    def boot(self, at: float) -> None:
        """A new process: nothing is cached, running or counted."""
        self.stats = new_stats(self.scenario)
        self._pool = BlockPool(self.scenario.num_gpu_blocks)
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._step: _Step | None = None
        self._drained_at = at
        self._load.start(at)
        self.journal.enter(at, EngineState.IDLE)

    def die(self, at: float) -> None:
        """The process is gone with all it held; clients that listen are told so by a count of 0."""
        for request in [*self._running, *self._waiting]:
            if request.listener is not None:
                request.listener(at, 0)
        self._running, self._waiting, self._step = [], deque(), None
        self.journal.enter(at, EngineState.DOWN)

    @property
    def step_end(self) -> float | None:
        """When the step under way ends; None when there is none, or when it never will."""
        stall = self.scenario.stall_at_seconds
        if self._step is None or (stall is not None and self._step.end > stall):
            return None
        return self._step.end

    @property
    def requests(self) -> int:
        """Requests in the engine, running or waiting."""
        return len(self._running) + len(self._waiting)

    def next_serial(self) -> int:
        return self._load.next_serial()

    def advance(self, to: float) -> None:
        """Lets everything happen that happens up to ``to``, inclusive."""
        stall = self.scenario.stall_at_seconds
        while True:
            if self._step is not None:
                if stall is not None and self._step.end > stall:
                    if to >= stall:
                        self.journal.enter(max(stall, self._step.begin), EngineState.STALLED)
                    return
                if self._step.end > to:
                    return
                self._finish(self._step)
            elif (at := self._load.next_at) <= to:
                self._receive(at)
                self._begin(at)
            else:
                self._rest(to)
                return

    def submit(self, request: Request, at: float) -> None:
        """Adds a request; ``advance`` must have come to ``at``."""
        self._waiting.append(request)
        if self._step is None:
            self._begin(at)

    def abort(self, request: Request, at: float) -> None:
        """The client is gone: the request leaves at once, without a trace in the per-request histograms."""
        if request in self._waiting:
            self._waiting.remove(request)
        elif request in self._running:
            self._running.remove(request)
        else:
            return
        request.aborted = True
        self.journal.count(self.journal.aborted, at, 1)
        self._pool.release(request.blocks, at)
        request.blocks = []

    def _receive(self, to: float) -> None:
        while self._load.next_at <= to:
            self._waiting.append(self._load.take())

    def _rest(self, to: float) -> None:
        sleep = self.scenario.sleep_at_seconds
        if sleep is not None and to >= sleep and not self.stats.asleep:
            self.stats.asleep = True
            self.journal.enter(max(sleep, self._drained_at), EngineState.ASLEEP)

    def _begin(self, at: float) -> None:
        step = _Step(at)
        budget = self._schedule_running(step, self.scenario.max_num_batched_tokens)
        if not step.preempted:
            self._schedule_waiting(step, budget)
        step.end = (
            at + self.scenario.schedule.draw(self._random) + step.prefill * self.scenario.prefill_seconds_per_token
        )
        self._step = step
        self.journal.enter(at, EngineState.SERVING)

    def _schedule_running(self, step: _Step, budget: int) -> int:
        position = 0
        while position < len(self._running) and budget > 0:
            request = self._running[position]
            new = min(request.tokens - request.computed, budget)
            if not self._make_room(step, request, new):
                break
            self._plan(step, request, new)
            budget -= new
            position += 1
        return budget

    def _make_room(self, step: _Step, request: Request, new: int) -> bool:
        """Blocks for ``new`` more tokens, preempting the newest requests for them; False when it fell itself."""
        # A draft that is not accepted has been computed all the same, and its place was taken.
        wanted = self._blocks_for(request.computed + new + self.scenario.spec_tokens) - len(request.blocks)
        while wanted > 0:
            blocks = self._pool.grow(wanted, step.begin)
            if blocks is not None:
                request.blocks += blocks
                break
            victim = self._running.pop()
            self._preempt(step, victim)
            if victim is request:
                return False
        return True

    def _preempt(self, step: _Step, request: Request) -> None:
        self._pool.release(request.blocks, step.begin)
        request.blocks, request.stored, request.computed = [], 0, 0
        request.preemptions += 1
        step.preempted += 1
        self._waiting.appendleft(request)

    def _schedule_waiting(self, step: _Step, budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.scenario.max_num_seqs:
            request = self._waiting[0]
            # The last token is always computed, or there would be nothing to sample from.
            limit = (request.tokens - 1) // self.scenario.block_size
            found = self._pool.find(request.keys(limit), limit)
            hits = len(found) * self.scenario.block_size
            attempt = _Attempt(request.tokens, hits, request.preemptions > 0)
            step.attempts.append(attempt)
            new = min(request.tokens - hits, budget)
            blocks = self._pool.admit(found, self._blocks_for(hits + new) - len(found), step.begin)
            if blocks is None:
                return
            attempt.admitted = True
            self._waiting.popleft()
            self._running.append(request)
            request.blocks, request.stored, request.computed = blocks, len(found), hits
            if request.scheduled_at is None:
                request.scheduled_at, request.cached = step.begin, hits
            self._plan(step, request, new)
            budget -= new

    def _plan(self, step: _Step, request: Request, new: int) -> None:
        step.work.append((request, new))
        if request.computed + new < request.tokens or new > 1 or request.first_at is None:
            step.prefill += new
        # Findable as soon as it is planned, so that two equal prompts admitted together share it.
        full = (request.computed + new) // self.scenario.block_size
        while request.stored < full:
            self._pool.store(request.blocks[request.stored], request.key(request.stored))
            request.stored += 1

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.scenario.block_size)

    def _finish(self, step: _Step) -> None:
        self._step = None
        end, outcome = step.end, Outcome(step.end, self.stats, self.journal)
        for request, new in step.work:
            if request.aborted:
                continue
            request.computed += new
            if request.computed < request.tokens:
                continue
            count = 1 + self._accept(request)
            request.tokens += count
            request.computed += count - 1
            outcome.yielded(request, count)
            if request.listener is not None:
                request.listener(end, count)
            if request.generated >= request.output_tokens:
                outcome.finished(request)
                self._running.remove(request)
                self._pool.release(request.blocks, end)
                if request.listener is None:
                    self._load.answered(end)
        for attempt in step.attempts:
            outcome.looked_up(attempt.tokens, attempt.hits, preempted=attempt.preempted, admitted=attempt.admitted)
        events = self._pool.take_events()
        outcome.close(step.preempted, events, kv_metrics=self.scenario.kv_cache_metrics)
        if self.kv_batches is not None and (events.stored or events.evicted):
            self.kv_batches.append(KvBatch(end, tuple(events.stored), tuple(events.evicted)))
        self._receive(end)
        stats = self.stats
        stats.running, stats.waiting, stats.usage = len(self._running), len(self._waiting), self._pool.usage
        self._steps += 1
        if not self._steps % _TRIM_EVERY:
            self.journal.trim(end)
        if self._running or self._waiting:
            self._begin(end)
        else:
            self._drained_at = end
            self.journal.enter(end, EngineState.IDLE)

    def _accept(self, request: Request) -> int:
        """How many draft tokens this step gave on top of the one that is certain."""
        drafts = self.scenario.spec_tokens
        if not drafts or request.first_at is None:
            return 0
        self.stats.drafts += 1
        self.stats.draft_tokens += drafts
        accepted = 0
        limit = min(drafts, request.output_tokens - request.generated - 1)
        while accepted < limit and self._random.random() < self.scenario.spec_acceptance:
            self.stats.accepted_at[accepted] += 1
            accepted += 1
        return accepted
