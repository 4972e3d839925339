"""vLLM's KV events: one published batch as counts, and the order of batches of one publisher.

A batch is msgpack ``[ts, [event, …], dp_rank]``. An event is an array with its tag first up to vLLM 0.20.2
(``["BlockRemoved", [hashes], medium]``) and a map from 0.24 (``{"type": "BlockRemoved", "block_hashes": …}``).
BlockStored carries the prompt's token ids: they are never decoded. They stay undecoded bytes of the payload and are
gone with it; nothing returned from here holds any of it.

Floor 2: pure. msgspec is imported when the first batch is decoded, since it comes with an extra.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ufwatch.errors import SourceError

if TYPE_CHECKING:
    import msgspec

MISSING_EXTRA = "KV events need pyzmq and msgspec: pip install 'ufwatch[kv-events]'"
MAX_GAPS = 256
"""Gaps kept for a replay; the oldest beyond are given up."""
_SEQ_LIMIT = 1 << 63
"""Sequence numbers are signed on the wire (the end of a replay is −1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBatch:
    """What one batch says, in blocks (not events: one event may name many)."""

    ts: float = 0.0
    """Unix seconds of the publisher's clock."""
    removed_gpu: int = 0
    removed_other: int = 0
    """Removed from another tier (CPU, storage): no eviction from the GPU's cache."""
    stored: int = 0
    """Stored on the GPU."""
    cleared: int = 0
    """AllBlocksCleared events: each clears a number of blocks nobody tells (a reset, new weights)."""
    dp_rank: int | None = None
    unknown: int = 0
    """Events of a kind not known here."""
    faults: int = 0
    """Events, or the batch as a whole, that could not be decoded: then the counts are lower bounds."""


class _Codec(NamedTuple):
    raws: Callable[[Any], list[Any]]
    fields: Callable[[Any], dict[str, Any]]
    number: Callable[[Any], float]
    optional_int: Callable[[Any], int | None]
    text: Callable[[Any], str]
    optional_text: Callable[[Any], str | None]
    errors: tuple[type[Exception], ...]


@functools.cache
def _codec() -> _Codec:
    try:
        from msgspec import MsgspecError, Raw
        from msgspec.msgpack import Decoder
    except ImportError as error:
        raise SourceError(MISSING_EXTRA) from error
    return _Codec(
        raws=Decoder(list[Raw]).decode,
        fields=Decoder(dict[str, Raw]).decode,
        number=Decoder(float).decode,
        optional_int=Decoder(int | None).decode,
        text=Decoder(str).decode,
        optional_text=Decoder(str | None).decode,
        # ValueError: text that is no UTF-8. RecursionError: nesting made to exhaust the stack. LookupError: too short.
        errors=(MsgspecError, ValueError, RecursionError, LookupError),
    )


def decode_batch(payload: bytes) -> KvBatch:
    """Counts one payload. Never raises for its content: what cannot be read is counted in ``faults``.

    Raises SourceError when msgspec is not installed.
    """
    codec = _codec()
    try:
        parts = codec.raws(payload)
        ts, events = codec.number(parts[0]), codec.raws(parts[1])
        dp_rank = codec.optional_int(parts[2]) if len(parts) > 2 else None
    except codec.errors:
        return KvBatch(faults=1)
    counts = {"removed_gpu": 0, "removed_other": 0, "stored": 0, "cleared": 0, "unknown": 0, "faults": 0}
    for event in events:
        try:
            what, blocks = _event(event, codec)
        except codec.errors:
            what, blocks = "faults", 1
        if what:
            counts[what] += blocks
    return KvBatch(ts=ts, dp_rank=dp_rank, **counts)


_MEDIUM_AT: Mapping[str, int] = {"BlockRemoved": 2, "BlockStored": 6}
"""Where an event written as an array carries its medium."""


def _event(event: msgspec.Raw, codec: _Codec) -> tuple[str, int]:
    """The count one event adds to, and how much; an empty name for none."""
    first = memoryview(event)[0]
    medium: str | None = None
    if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF):
        named = codec.fields(event)
        tag = codec.text(named["type"])
        if tag in _MEDIUM_AT:
            hashes = named["block_hashes"]
            medium = codec.optional_text(named["medium"]) if "medium" in named else None
    else:
        listed = codec.raws(event)
        tag = codec.text(listed[0])
        if tag in _MEDIUM_AT:
            hashes = listed[1]
            at = _MEDIUM_AT[tag]
            medium = codec.optional_text(listed[at]) if len(listed) > at else None
    if tag == "AllBlocksCleared":
        return "cleared", 1
    if tag not in _MEDIUM_AT:
        return "unknown", 1
    blocks = len(codec.raws(hashes))
    # No medium is the GPU: the first publishers had no such field and no other tier, and every tier that came later
    # names itself.
    on_gpu = medium is None or medium.upper() == "GPU"
    if tag == "BlockRemoved":
        return ("removed_gpu" if on_gpu else "removed_other"), blocks
    return ("stored" if on_gpu else ""), blocks


class Replay(NamedTuple):
    """Batches ``first`` to ``last`` (both included) were not received: ask for them."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvState:
    """One publisher's stream. All counts only grow, over restarts of the publisher too; blocks unless said."""

    expected: int | None = None
    """The sequence number that comes next; None before the first batch."""
    newest_ts: float = 0.0
    missing: tuple[Replay, ...] = ()
    """Gaps still open, in order."""
    epoch: int = 0
    """Goes up with each restart of the publisher: numbers of different epochs are not of one series."""
    reconnected: bool = False
    removed_gpu: int = 0
    removed_other: int = 0
    stored: int = 0
    cleared: int = 0
    unknown: int = 0
    faults: int = 0
    batches: int = 0
    duplicates: int = 0
    gaps: int = 0
    lost_batches: int = 0
    """Batches gone for good, or not wholly readable: the counts are lower bounds from then on."""


def step(state: KvState, seq: int, batch: KvBatch) -> tuple[KvState, Replay | None]:
    """Takes a live batch and says which batches to ask for again.

    The first batch ever seen is where counting begins: what was published before it is not ours. A number that was
    counted already is a duplicate unless the publisher restarted, which its clock tells: a batch sent again is no
    newer than the newest.
    """
    if not 0 <= seq < _SEQ_LIMIT:
        return replace(state, faults=state.faults + 1), None
    if state.expected is None:
        return _count(_ahead(state, seq, batch), batch), None
    if seq < state.expected:
        # Back to 0 in the same clock tick is still a restart, unless 0 is all there was.
        back_to_zero = seq == 0 and state.expected > 1 and batch.ts >= state.newest_ts
        if not (batch.ts > state.newest_ts or back_to_zero or state.reconnected):
            if is_missing(state, seq):
                return refill(state, seq, batch), None
            return replace(state, duplicates=state.duplicates + 1), None
        lost = sum(gap.last - gap.first + 1 for gap in state.missing)
        state = replace(
            state,
            expected=0,
            newest_ts=0.0,
            missing=(),
            epoch=state.epoch + 1,
            lost_batches=state.lost_batches + lost,
        )
    gap = Replay(state.expected or 0, seq - 1) if seq > (state.expected or 0) else None
    state = _count(_ahead(state, seq, batch), batch)
    return (state, None) if gap is None else (_open_gap(state, gap), gap)


def refill(state: KvState, seq: int, batch: KvBatch) -> KvState:
    """Takes a replayed (or late) batch: counted when it was missing, left when not.

    One newer than the newest live batch is of a publisher that restarted meanwhile: another batch by the same number.
    """
    if not is_missing(state, seq) or batch.ts > state.newest_ts:
        return state
    missing: list[Replay] = []
    for gap in state.missing:
        if gap.first <= seq <= gap.last:
            if gap.first < seq:
                missing.append(Replay(gap.first, seq - 1))
            if seq < gap.last:
                missing.append(Replay(seq + 1, gap.last))
        else:
            missing.append(gap)
    return _count(replace(state, missing=tuple(missing)), batch)


def give_up(state: KvState, last: int) -> KvState:
    """Counts every batch up to ``last`` that is still missing as lost."""
    lost = 0
    missing: list[Replay] = []
    for gap in state.missing:
        lost += max(0, min(gap.last, last) - gap.first + 1)
        if gap.last > last:
            missing.append(Replay(max(gap.first, last + 1), gap.last))
    return replace(state, missing=tuple(missing), lost_batches=state.lost_batches + lost)


def reconnect(state: KvState) -> KvState:
    """Notes a new connection: a number that goes back on it is a restart whatever the publisher's clock says."""
    return replace(state, reconnected=state.expected is not None)


def is_missing(state: KvState, seq: int) -> bool:
    """Whether a batch lies in a gap that is still open."""
    return any(gap.first <= seq <= gap.last for gap in state.missing)


def _ahead(state: KvState, seq: int, batch: KvBatch) -> KvState:
    return replace(state, expected=seq + 1, newest_ts=max(state.newest_ts, batch.ts), reconnected=False)


def _open_gap(state: KvState, gap: Replay) -> KvState:
    state = replace(state, missing=(*state.missing, gap), gaps=state.gaps + 1)
    return give_up(state, state.missing[0].last) if len(state.missing) > MAX_GAPS else state


def _count(state: KvState, batch: KvBatch) -> KvState:
    return replace(
        state,
        removed_gpu=state.removed_gpu + batch.removed_gpu,
        removed_other=state.removed_other + batch.removed_other,
        stored=state.stored + batch.stored,
        cleared=state.cleared + batch.cleared,
        unknown=state.unknown + batch.unknown,
        faults=state.faults + batch.faults,
        lost_batches=state.lost_batches + bool(batch.faults),
        batches=state.batches + 1,
    )
