"""The KV block pool: blocks found again by content, and the least recently freed one taken when room is needed.

Pure, and vLLM's rules: a block with content stays findable after its owner is gone until it is taken for new data
(an eviction); a block that held nothing findable is merely recycled; one block is never handed out (the null block).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

_GAPS_KEPT = 4


@dataclass(slots=True)
class PoolEvents:
    """What happened to blocks since this was last taken."""

    stored: list[int] = field(default_factory=list)
    """Keys of blocks that became findable."""
    evicted: list[int] = field(default_factory=list)
    """Keys of findable blocks taken for new data."""
    lifetimes: list[float] = field(default_factory=list)
    """Of recycled blocks, seconds since they were handed out; evictions are among them."""
    idle: list[float] = field(default_factory=list)
    """Of the same blocks, seconds since they were last used."""
    reuse_gaps: list[float] = field(default_factory=list)


class BlockPool:
    """``size`` blocks, of which ``size - 1`` are usable."""

    def __init__(self, size: int) -> None:
        self.usable = size - 1
        self.events = PoolEvents()
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, size))
        self._users = [0] * size
        self._key: list[int | None] = [None] * size
        self._blocks: dict[int, list[int]] = {}
        """Several blocks may hold the same content: two prompts computed in the same step."""
        self._born = [-1.0] * size
        self._used = [-1.0] * size
        self._gaps: dict[int, list[float]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of usable blocks in use, 0–1."""
        return 1.0 - len(self._free) / self.usable

    def find(self, keys: Sequence[int], limit: int) -> list[int]:
        """Blocks that hold the first of ``keys`` (at most ``limit``), up to the first that is not resident."""
        found = []
        for key in keys[:limit]:
            blocks = self._blocks.get(key)
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def admit(self, found: Sequence[int], fresh: int, now: float) -> list[int] | None:
        """Takes ``found`` into use and ``fresh`` blocks more; None, and nothing done, when there is no room."""
        unused = sum(1 for block in found if not self._users[block])
        if fresh > len(self._free) - unused:
            return None
        for block in found:
            if not self._users[block]:
                del self._free[block]
            self._users[block] += 1
            gaps = self._gaps.setdefault(block, [])
            gaps.append(now - self._used[block])
            del gaps[:-_GAPS_KEPT]
            self._used[block] = now
        return [*found, *self._take(fresh, now)]

    def grow(self, fresh: int, now: float) -> list[int] | None:
        """Takes ``fresh`` blocks; None, and nothing done, when there is no room."""
        return self._take(fresh, now) if fresh <= len(self._free) else None

    def store(self, block: int, key: int) -> None:
        """Makes a full block findable by its content."""
        self._key[block] = key
        self._blocks.setdefault(key, []).append(block)
        self.events.stored.append(key)

    def release(self, blocks: Sequence[int], now: float) -> None:
        """Gives blocks back, tail first, so that a prefix outlives what followed it."""
        for block in reversed(blocks):
            self._users[block] -= 1
            self._used[block] = now
            if not self._users[block]:
                self._free[block] = None

    def take_events(self) -> PoolEvents:
        """What happened since the last call."""
        events, self.events = self.events, PoolEvents()
        return events

    def _take(self, count: int, now: float) -> list[int]:
        return [self._take_one(now) for _ in range(count)]

    def _take_one(self, now: float) -> int:
        block, _ = self._free.popitem(last=False)
        if self._born[block] >= 0:
            self.events.lifetimes.append(now - self._born[block])
            self.events.idle.append(now - self._used[block])
            self.events.reuse_gaps.extend(self._gaps.pop(block, ()))
            key = self._key[block]
            if key is not None:
                holders = self._blocks[key]
                holders.remove(block)
                if not holders:
                    del self._blocks[key]
                self._key[block] = None
                self.events.evicted.append(key)
        self._born[block] = self._used[block] = now
        self._users[block] = 1
        return block
