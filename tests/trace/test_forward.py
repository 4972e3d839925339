"""Every span that is offered ends up delivered or in one counter, and who offers it never waits."""

from __future__ import annotations

import asyncio

import pytest

from tests.sources.loopback import looped
from tests.trace.otlp import Backend, Hanging, until
from ufwatch.trace.forward import Drop, Forwarder, Limits, Outcome, Verdict

GONE = Outcome(Verdict.RETRY, why="nobody there")
NO = Outcome(Verdict.REJECTED, why="no")


async def as_it_is(payload: bytes) -> bytes:
    return payload


class Times:
    """Time that moves only while somebody rests."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.rests: list[float] = []

    async def pause(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def forwarder(backend: Backend, times: Times, **limits: float) -> Forwarder:
    return Forwarder(
        backend,
        dress=as_it_is,
        now=lambda: times.now,
        random=lambda: 1.0,
        pause=times.pause,
        limits=Limits(**limits),  # type: ignore[arg-type]
    )


def settled(made: Forwarder) -> dict[str, int]:
    """What was counted, where it is not 0; checks that nothing is missing."""
    counts = made.counts
    assert counts.received == counts.delivered + counts.waiting + sum(counts.dropped.values())
    found = {str(reason): spans for reason, spans in counts.dropped.items() if spans}
    return {**found, "delivered": counts.delivered, "waiting": counts.waiting}


@looped
async def test_queued_requests_are_sent_together_and_byte_for_byte() -> None:
    backend, times = Backend(), Times()
    made = forwarder(backend, times)
    assert [made.offer(b"one", 1), made.offer(b"", 0), made.offer(b"two", 2)] == [0, 0, 0]
    made.start()
    await made.close()
    assert backend.payloads == [b"onetwo"]
    assert settled(made) == {"delivered": 3, "waiting": 0}
    assert backend.closed


@looped
async def test_what_does_not_fit_is_dropped_at_once_and_counted() -> None:
    times = Times()
    made = forwarder(Hanging(), times, most_bytes=10, most_spans=5)
    assert made.offer(b"12345678", 2) == 0
    assert made.offer(b"123", 1) == 1
    assert made.offer(b"12", 4) == 4
    assert made.offer(b"12", 3) == 0
    assert settled(made) == {"queue_full": 5, "delivered": 0, "waiting": 5}
    await made.close(0.05)
    assert made.offer(b"1", 1) == 1
    assert settled(made) == {"queue_full": 5, "shutdown": 6, "delivered": 0, "waiting": 0}


@looped
async def test_what_is_being_sent_still_takes_its_room() -> None:
    backend, times = Hanging(), Times()
    made = forwarder(backend, times, most_spans=5)
    made.start()
    made.offer(b"a", 5)
    await backend.sent.wait()
    assert made.offer(b"b", 1) == 1
    await made.close(0.05)
    assert settled(made) == {"queue_full": 1, "shutdown": 5, "delivered": 0, "waiting": 0}


@looped
async def test_a_backend_that_is_away_is_tried_again_with_longer_pauses() -> None:
    backend, times = Backend([GONE, GONE, GONE, Outcome(Verdict.DELIVERED)]), Times()
    made = forwarder(backend, times, first_pause=1, longest_pause=3)
    made.start()
    made.offer(b"a", 2)
    await until(lambda: made.counts.delivered == 2)
    assert times.rests == [1, 2, 3]
    assert len(backend.payloads) == 4
    await made.close()
    assert settled(made) == {"delivered": 2, "waiting": 0}


@looped
async def test_a_backend_that_says_when_is_not_asked_before_but_not_obeyed_for_hours() -> None:
    answers = [Outcome(Verdict.RETRY, after=7), Outcome(Verdict.RETRY, after=86400), Outcome(Verdict.DELIVERED)]
    backend, times = Backend(answers), Times()
    made = forwarder(backend, times, longest_asked_pause=60)
    made.start()
    made.offer(b"a", 1)
    await until(lambda: made.counts.delivered == 1)
    assert times.rests == [7, 60]
    await made.close()


@looped
async def test_spans_that_nobody_took_for_too_long_are_given_up() -> None:
    backend, times = Backend([GONE]), Times()
    made = forwarder(backend, times, first_pause=10, longest_pause=10, most_seconds=35)
    made.start()
    made.offer(b"a", 3)
    await until(lambda: made.counts.dropped[Drop.EXPIRED] == 3)
    assert len(backend.payloads) == 5
    await made.close()
    assert settled(made) == {"expired": 3, "delivered": 0, "waiting": 0}
    assert made.counts.why == "nobody there"


@looped
async def test_what_came_later_is_tried_for_longer() -> None:
    backend, times = Backend([GONE]), Times()
    made = forwarder(backend, times, first_pause=10, longest_pause=10, most_seconds=35)
    made.offer(b"old", 1)
    times.now += 20
    made.offer(b"young", 2)
    made.start()
    await until(lambda: sum(made.counts.dropped.values()) == 3)
    assert [backend.payloads.count(payload) for payload in (b"oldyoung", b"young")] == [3, 3]
    await made.close()
    assert settled(made) == {"expired": 3, "delivered": 0, "waiting": 0}


@looped
async def test_one_bad_request_does_not_take_its_neighbours_with_it() -> None:
    backend = Backend([NO, Outcome(Verdict.DELIVERED), NO, Outcome(Verdict.TOO_LARGE), Outcome(Verdict.DELIVERED)])
    made = forwarder(backend, Times())
    for payload in (b"a", b"b", b"c", b"d"):
        made.offer(payload, 1)
    made.start()
    await made.close()
    assert backend.payloads == [b"abcd", b"a", b"b", b"c", b"d"]
    assert settled(made) == {"rejected": 1, "too_large": 1, "delivered": 2, "waiting": 0}


@looped
async def test_spans_that_the_backend_rejects_are_counted_and_never_more_than_were_sent() -> None:
    backend = Backend([Outcome(Verdict.DELIVERED, rejected=2), Outcome(Verdict.DELIVERED, rejected=99)])
    made = forwarder(backend, Times(), most_bytes_at_once=1)
    made.offer(b"a", 5)
    made.offer(b"b", 3)
    made.start()
    await made.close()
    assert settled(made) == {"rejected": 5, "delivered": 3, "waiting": 0}


@looped
async def test_a_transport_with_a_bug_stops_nothing() -> None:
    class Broken(Backend):
        async def send(self, payload: bytes) -> Outcome:
            self.payloads.append(payload)
            if len(self.payloads) == 1:
                raise KeyError("bug")
            return Outcome(Verdict.DELIVERED)

    made = forwarder(Broken(), Times(), most_bytes_at_once=1)
    made.offer(b"a", 1)
    made.offer(b"b", 1)
    made.start()
    await made.close()
    assert settled(made) == {"rejected": 1, "delivered": 1, "waiting": 0}


@looped
async def test_what_cannot_be_dressed_is_passed_on_as_it_came() -> None:
    async def bug(_: bytes) -> bytes:
        raise ValueError("bug")

    backend = Backend()
    made = Forwarder(backend, dress=bug, now=lambda: 0.0, random=lambda: 0.5)
    made.offer(b"a", 1)
    made.start()
    await made.close()
    assert backend.payloads == [b"a"]


@pytest.mark.parametrize("backend", [Hanging(), Backend([GONE])], ids=["hanging", "away"])
def test_the_end_is_bounded_whatever_the_backend_does(backend: Backend) -> None:
    @looped
    async def run() -> None:
        loop = asyncio.get_running_loop()
        made = Forwarder(backend, dress=as_it_is, now=loop.time, random=lambda: 1.0, limits=Limits(first_pause=60))
        made.start()
        for _ in range(100):
            made.offer(bytes(2**17), 10)
        await until(lambda: bool(backend.payloads))
        began = loop.time()
        await made.close(0.4)
        assert loop.time() - began < 2
        assert settled(made) == {"shutdown": 1000, "delivered": 0, "waiting": 0}

    run()
