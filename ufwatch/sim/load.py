"""Requests: what one is, and the synthetic clients that send them. Pure; chance comes from the scenario's seed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

from ufwatch.sim.scenario import Scenario

_PREFIX_KEYS = 1 << 62
_PROMPT_KEYS = 1 << 63
_KEY_SHIFT = 20
_STOPPED_SHARE = 0.3
"""Of synthetic requests, those that end before their token limit."""

Listener = Callable[[float, int], None]
"""Told the time and the number of tokens at each step that yields some to a request; 0 tokens: the process died."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request and how far it has come. ``serial`` is unique in its engine; block keys are contents, as integers."""

    serial: int
    arrival: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    prompt_keys: list[int]
    """One key for each full block of the prompt; equal keys mean an equal prompt up to there."""
    reason: str = "length"
    listener: Listener | None = None

    tokens: int = field(init=False)
    """Prompt and generated so far."""
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    stored: int = 0
    """How many of ``blocks``, from the first, are findable by content."""
    scheduled_at: float | None = None
    first_at: float | None = None
    last_at: float = 0.0
    cached: int = 0
    """Prompt tokens found in the prefix cache at first admission."""
    preemptions: int = 0
    aborted: bool = False

    def __post_init__(self) -> None:
        self.tokens = self.prompt_tokens

    @property
    def generated(self) -> int:
        return self.tokens - self.prompt_tokens

    def key(self, block: int) -> int:
        """The content of a full block: shared within the prompt, this request's own once it holds generated tokens."""
        return self.prompt_keys[block] if block < len(self.prompt_keys) else (self.serial << _KEY_SHIFT) | block

    def keys(self, count: int) -> list[int]:
        if count <= len(self.prompt_keys):
            return self.prompt_keys[:count]
        return [self.key(block) for block in range(count)]


def prompt_keys(words: list[str], block_size: int) -> list[int]:
    """Keys of a real prompt's full blocks, one word a token: equal beginnings have equal keys."""
    chain = blake2b(digest_size=8)
    keys = []
    for end in range(block_size, len(words) + 1, block_size):
        chain.update("\0".join([*words[end - block_size : end], ""]).encode())
        keys.append(_PROMPT_KEYS | int.from_bytes(chain.digest(), "big"))
    return keys


class Load:
    """The synthetic clients of one engine."""

    def __init__(self, scenario: Scenario, index: int) -> None:
        self._scenario = scenario
        self._random = Random(f"{scenario.seed}/load/{index}")
        self._rate = scenario.arrivals_per_second / scenario.engines
        clients, rest = divmod(scenario.concurrency, scenario.engines)
        self._clients = clients + (index < rest)
        self._due: list[float] = []
        self._end = math.inf if scenario.sleep_at_seconds is None else scenario.sleep_at_seconds
        self._group = index
        self.serial = 0

    @property
    def next_at(self) -> float:
        """When the next request arrives; inf when none is on its way."""
        return self._due[0] if self._due and self._due[0] < self._end else math.inf

    def start(self, at: float) -> None:
        """The server is ready: clients come; those of a server that was down before were turned away."""
        self._due = []
        if self._rate:
            self._due.append(at + self._random.expovariate(self._rate))
        # Spread over a second, or all clients would stay in step for ever.
        self._due += [at + self._random.random() for _ in range(self._clients)]
        heapq.heapify(self._due)

    def answered(self, at: float) -> None:
        """A synthetic request has ended: its client, if the load is a number of clients, sends the next."""
        if self._clients:
            heapq.heappush(self._due, at)

    def take(self) -> Request:
        """The request that arrives at ``next_at``."""
        at = heapq.heappop(self._due)
        if self._rate:
            heapq.heappush(self._due, at + self._random.expovariate(self._rate))
        scenario, random = self._scenario, self._random
        prompt = scenario.prefix_tokens + random.randint(*scenario.prompt_tokens)
        output = random.randint(*scenario.output_tokens)
        stopped = random.random() < _STOPPED_SHARE
        # In turn, not by chance: then a pool that is one prefix too small misses every time, as a real LRU does.
        self._group = (self._group + 1) % max(scenario.prefix_groups, 1)
        serial = self.next_serial()
        shared = scenario.prefix_tokens // scenario.block_size if scenario.prefix_groups else 0
        keys = [
            _PREFIX_KEYS | (self._group << _KEY_SHIFT) | block if block < shared else (serial << _KEY_SHIFT) | block
            for block in range(prompt // scenario.block_size)
        ]
        return Request(
            serial=serial,
            arrival=at,
            prompt_tokens=prompt,
            output_tokens=output,
            max_tokens=scenario.output_tokens[1] if stopped else output,
            prompt_keys=keys,
            reason="stop" if stopped else "length",
        )

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial
