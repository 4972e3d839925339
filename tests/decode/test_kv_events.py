"""Both wire forms of a batch, and the order of batches: gaps, duplicates, late ones, restarts."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ufwatch.decode.kv_events as module
from ufwatch.decode.kv_events import (
    MAX_GAPS,
    KvBatch,
    KvState,
    Replay,
    decode_batch,
    give_up,
    is_missing,
    reconnect,
    refill,
    step,
)
from ufwatch.errors import SourceError


def payload(*events: Any, ts: float = 1.0, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([ts, list(events)] if rank is None else [ts, list(events), rank])


def stored_map(*hashes: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": b"\x01" * 32,
        "token_ids": [1, 2, 3],
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [["a", 1], None],
        "group_idx": 0,
    }


def test_the_array_form() -> None:
    batch = decode_batch(
        payload(
            ["BlockRemoved", [1, 2, 3], "GPU"],
            ["BlockRemoved", [4], None],
            ["BlockRemoved", [5, 6]],
            ["BlockRemoved", [7], "CPU"],
            ["BlockRemoved", [8, 9], "STORAGE"],
            ["BlockStored", [1, 2], None, [11, 12, 13], 16, None, "GPU"],
            ["BlockStored", [1], None, [11], 16, None, "CPU"],
            ["AllBlocksCleared"],
            rank=3,
        )
    )
    assert batch == KvBatch(ts=1.0, removed_gpu=6, removed_other=3, stored=2, cleared=1, dp_rank=3)


def test_the_map_form() -> None:
    batch = decode_batch(
        payload(
            {"type": "BlockRemoved", "block_hashes": [b"\x00" * 32, b"\x01" * 32], "medium": "GPU", "group_idx": 0},
            {"type": "BlockRemoved", "block_hashes": [2**63], "medium": None},
            {"type": "BlockRemoved", "block_hashes": [3]},
            {"block_hashes": [4], "medium": "CPU", "locality": "LOCAL", "type": "BlockRemoved"},
            stored_map(1, 2, 3),
            {"type": "AllBlocksCleared"},
            {"type": "AllBlocksCleared"},
            ts=7.5,
            rank=None,
        )
    )
    assert batch == KvBatch(ts=7.5, removed_gpu=4, removed_other=1, stored=3, cleared=2)


def test_unknown_kinds_are_no_faults_and_broken_events_harm_only_themselves() -> None:
    batch = decode_batch(
        payload(
            ["BlockMoved", [1]],
            {"type": "BlockMoved", "whatever": {}},
            ["BlockRemoved"],
            ["BlockRemoved", 7, "GPU"],
            {"type": "BlockRemoved"},
            {"block_hashes": [1]},
            {"type": 5},
            [],
            17,
            None,
            ["BlockRemoved", [1], 9],
            ["BlockRemoved", [1, 2], "GPU"],
        )
    )
    assert batch == KvBatch(ts=1.0, removed_gpu=2, unknown=2, faults=9, dp_rank=0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"not msgpack",
        msgspec.msgpack.encode(None),
        msgspec.msgpack.encode([]),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["x", []]),
        msgspec.msgpack.encode([1.0, 5]),
        msgspec.msgpack.encode([1.0, [], "x"]),
        payload(["BlockRemoved", [1], "GPU"])[:-3],
        b"\x92\xcb" + b"\x00" * 8 + b"\x91" * 100_000,
        payload() + b"\x00",
    ],
)
def test_a_payload_that_cannot_be_read_is_one_fault(data: bytes) -> None:
    assert decode_batch(data) == KvBatch(faults=1)


def test_text_that_is_no_utf8_is_a_fault() -> None:
    event = b"\x93\xacBlockRemoved\x91\x01\xa2\xff\xfe"
    assert decode_batch(b"\x92\xcb" + b"\x00" * 8 + b"\x91" + event).faults == 1


def test_nothing_of_a_prompt_is_kept() -> None:
    data = payload(stored_map(1), ["BlockStored", [1], None, [424242], 16, None, "GPU"])
    before = sys.getrefcount(data)
    batch = decode_batch(data)
    assert sys.getrefcount(data) == before
    assert "424242" not in repr(batch)


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    decode_batch(data)
    decode_batch(b"\x92\xcb" + b"\x00" * 8 + b"\x91" + data)


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module._codec.cache_clear()
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(SourceError, match=r"pip install 'ufwatch\[kv-events\]'"):
        decode_batch(b"")


def one(ts: float = 0.0, removed: int = 1) -> KvBatch:
    return KvBatch(ts=ts, removed_gpu=removed)


def run(*seqs: int, ts: float | None = None) -> tuple[KvState, list[Replay]]:
    state, asked = KvState(), []
    for position, seq in enumerate(seqs):
        state, gap = step(state, seq, one(float(position) if ts is None else ts))
        if gap is not None:
            asked.append(gap)
    return state, asked


def test_counting_begins_with_the_first_batch_seen() -> None:
    state, asked = run(41, 42, 43)
    assert (state.removed_gpu, state.lost_batches, state.gaps, asked) == (3, 0, 0, [])


def test_a_gap_is_asked_for_and_filled_once() -> None:
    state, asked = run(0, 1, 5)
    assert asked == [Replay(2, 4)]
    for seq in (1, 2, 3, 3, 4, 5, 6):
        state = refill(state, seq, one(1.0))
    assert (state.removed_gpu, state.missing, state.lost_batches) == (6, (), 0)
    state, gap = step(state, 6, one(9.0))
    assert (state.removed_gpu, gap) == (7, None)


def test_a_late_batch_is_counted_once_and_a_duplicate_never() -> None:
    state, _ = run(0, 1, 4)
    for seq in (3, 3, 4, 1, 2):
        state, gap = step(state, seq, one(0.5))
        assert gap is None
    assert (state.removed_gpu, state.duplicates, state.missing, state.epoch) == (5, 3, (), 0)


def test_what_cannot_be_filled_is_lost() -> None:
    state, _ = run(0, 10, 20)
    state = refill(state, 5, one(0.5))
    assert is_missing(state, 4)
    state = give_up(state, 12)
    assert (state.lost_batches, state.missing) == (10, (Replay(13, 19),))
    assert give_up(state, 19).lost_batches == 17


def test_a_restarted_publisher_counts_on() -> None:
    state, asked = run(100, 101, 0, 1)
    assert (state.removed_gpu, state.epoch, state.expected, asked) == (4, 1, 2, [])


def test_a_restart_whose_first_batches_were_missed() -> None:
    state, asked = run(100, 101, 3, 4)
    assert asked == [Replay(0, 2)]
    assert (state.removed_gpu, state.epoch) == (4, 1)


def test_a_restart_gives_up_the_gaps_before_it() -> None:
    state, _ = run(0, 5, 0)
    assert (state.lost_batches, state.missing, state.removed_gpu) == (4, (), 3)


def test_a_restart_into_an_open_gap_is_not_taken_for_its_late_batch() -> None:
    state, asked = run(0, 9, 3)
    assert (state.epoch, asked) == (1, [Replay(1, 8), Replay(0, 2)])


def test_a_replay_by_a_publisher_that_restarted_meanwhile_fills_nothing() -> None:
    state, _ = run(0, 9)
    newer = refill(state, 3, one(99.0))
    assert newer == state


def test_back_to_zero_in_the_same_clock_tick_is_a_restart_but_a_repeated_first_batch_is_none() -> None:
    assert run(7, 0, ts=5.0)[0].epoch == 1
    state, _ = run(0, 0, ts=5.0)
    assert (state.epoch, state.duplicates, state.removed_gpu) == (0, 1, 1)


def test_after_a_reconnection_the_clock_may_have_gone_back() -> None:
    state, _ = step(KvState(), 50, one(1000.0))
    state, gap = step(reconnect(state), 2, one(10.0))
    assert (state.epoch, gap, state.newest_ts) == (1, Replay(0, 1), 10.0)
    plain, _ = step(KvState(), 50, one(1000.0))
    assert step(plain, 2, one(10.0))[0].duplicates == 1
    onward, _ = step(reconnect(plain), 51, one(1001.0))
    assert step(onward, 2, one(10.0))[0].duplicates == 1


def test_an_unreadable_batch_keeps_its_place_and_is_lost() -> None:
    state, _ = step(KvState(), 0, KvBatch(faults=1))
    state, gap = step(state, 1, one(1.0))
    assert (gap, state.faults, state.lost_batches, state.batches) == (None, 1, 1, 2)


@pytest.mark.parametrize("seq", [-1, 1 << 63])
def test_a_number_that_is_none_is_a_fault(seq: int) -> None:
    state, gap = step(KvState(), seq, one())
    assert (state, gap) == (KvState(faults=1), None)


def test_the_memory_of_gaps_is_bounded() -> None:
    state, _ = run(*range(0, 4 * MAX_GAPS, 2))
    assert len(state.missing) == MAX_GAPS
    assert state.lost_batches + len(state.missing) == state.gaps


@given(st.lists(st.sampled_from(["ok", "drop", "twice"]), max_size=60), st.randoms())
def test_with_a_full_replay_every_batch_counts_once(fates: list[str], random: Any) -> None:
    state = KvState()
    for seq, fate in enumerate(["ok", *fates, "ok"]):
        for _ in range({"ok": 1, "drop": 0, "twice": 2}[fate]):
            state, _ = step(state, seq, one(float(seq)))
    replayed = list(range(len(fates) + 2))
    random.shuffle(replayed)
    for seq in replayed:
        state = refill(state, seq, one(float(seq)))
    assert (state.removed_gpu, state.missing, state.lost_batches) == (len(fates) + 2, (), 0)
