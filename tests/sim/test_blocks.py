"""The block pool's rules, one by one."""

from __future__ import annotations

import random

from ufwatch.sim.blocks import BlockPool
from ufwatch.sim.load import prompt_keys


def filled(pool: BlockPool, keys: list[int], now: float) -> list[int]:
    blocks = pool.grow(len(keys), now)
    assert blocks is not None
    for block, key in zip(blocks, keys, strict=True):
        pool.store(block, key)
    return blocks


def test_released_content_is_found_until_it_is_taken_for_new_data() -> None:
    pool = BlockPool(5)
    pool.release(filled(pool, [1, 2], 0.0), 1.0)
    assert len(pool.find([1, 2, 3], 3)) == 2
    assert len(pool.find([1, 2, 3], 1)) == 1
    assert pool.find([9, 1], 2) == []
    # Two blocks were never used; the third taken evicts the tail, not the beginning, of what was released.
    assert pool.grow(3, 3.0) is not None
    events = pool.take_events()
    assert events.evicted == [2]
    assert events.lifetimes == [3.0]
    assert events.idle == [2.0]
    assert len(pool.find([1, 2], 2)) == 1


def test_a_block_in_use_is_shared_and_never_evicted() -> None:
    pool = BlockPool(4)
    owner = filled(pool, [1], 0.0)
    shared = pool.admit(pool.find([1], 1), 2, 1.0)
    assert shared is not None
    assert shared[0] == owner[0]
    assert pool.usage == 1.0
    assert pool.grow(1, 2.0) is None
    pool.release(owner, 3.0)
    assert pool.grow(1, 3.0) is None
    pool.release(shared, 4.0)
    assert pool.usage == 0.0


def test_admission_does_not_count_found_blocks_twice() -> None:
    pool = BlockPool(4)
    pool.release(filled(pool, [1, 2], 0.0), 1.0)
    found = pool.find([1, 2], 2)
    # Three are free, but two of them are the ones found.
    assert pool.admit(found, 2, 2.0) is None
    assert pool.free == 3
    assert pool.admit(found, 1, 2.0) is not None
    assert pool.free == 0


def test_recycling_without_content_is_no_eviction() -> None:
    pool = BlockPool(2)
    blocks = pool.grow(1, 0.0)
    assert blocks is not None
    pool.release(blocks, 1.0)
    pool.grow(1, 5.0)
    events = pool.take_events()
    assert (events.evicted, events.lifetimes, events.idle) == ([], [5.0], [4.0])
    assert pool.take_events().lifetimes == []


def test_equal_content_twice_is_removed_one_by_one() -> None:
    pool = BlockPool(3)
    pool.release(filled(pool, [7], 0.0), 1.0)
    pool.release(filled(pool, [7], 1.0), 2.0)
    pool.grow(1, 3.0)
    assert len(pool.find([7], 1)) == 1
    pool.grow(1, 3.0)
    assert pool.find([7], 1) == []
    assert pool.take_events().evicted == [7, 7]


def test_blocks_are_neither_lost_nor_doubled() -> None:
    chance = random.Random(1)
    pool = BlockPool(40)
    held: list[list[int]] = []
    for step in range(3000):
        keys = [chance.randrange(60) for _ in range(chance.randrange(1, 6))]
        blocks = pool.admit(found := pool.find(keys, 3), 2, float(step))
        if blocks is not None:
            assert blocks[: len(found)] == found
            for block in blocks[len(found) :]:
                pool.store(block, chance.randrange(60))
            held.append(blocks)
        if held and (blocks is None or chance.random() < 0.4):
            pool.release(held.pop(chance.randrange(len(held))), float(step))
        assert pool.free + len({block for blocks in held for block in blocks}) == 39


def test_equal_beginnings_have_equal_keys() -> None:
    first = prompt_keys([*"abcdefgh", "x"], 4)
    other = prompt_keys([*"abcdxfgh"], 4)
    assert len(first) == 2
    assert first[0] == other[0]
    assert first[1] != other[1]
    # The second block's key speaks of all that came before it.
    assert prompt_keys([*"zbcdefgh"], 4)[1] != first[1]
    assert prompt_keys(["ab", "c", "d", "e"], 4) != prompt_keys(["a", "bc", "d", "e"], 4)
