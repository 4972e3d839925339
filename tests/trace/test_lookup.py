"""The system's look-up is stamped in its own thread, and one that hangs is given up."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from aiohttp.abc import ResolveResult

from tests.sources.loopback import looped
from ufwatch.trace.lookup import TimedSystemResolver, system_look_up
from ufwatch.trace.phases import Mark, Moment
from ufwatch.trace.recorder import Recorder, current


def moments(marks: list[Mark]) -> list[Moment]:
    return [mark.moment for mark in marks]


@looped
async def test_a_look_up_takes_what_it_takes_and_not_what_the_loop_was_late() -> None:
    recorder = Recorder(time.monotonic)
    current.set(recorder)

    def slow(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        time.sleep(0.02)
        return system_look_up(host, port, family)

    task = asyncio.create_task(TimedSystemResolver(slow).resolve("127.0.0.1", 80))
    await asyncio.sleep(0)
    time.sleep(0.3)  # the loop is blocked when the answer is there
    found = await task
    assert [entry["host"] for entry in found] == ["127.0.0.1"]
    assert moments(recorder.marks) == [Moment.DNS_START, Moment.DNS_END]
    assert 0.02 <= recorder.marks[1].at - recorder.marks[0].at < 0.25


@looped
async def test_a_name_that_does_not_exist_ends_too() -> None:
    recorder = Recorder(time.monotonic)
    current.set(recorder)
    with pytest.raises(OSError):
        await TimedSystemResolver().resolve("no-such-name.invalid")
    assert moments(recorder.marks) == [Moment.DNS_START, Moment.DNS_END]


@looped
async def test_one_that_hangs_is_given_up_and_has_no_end() -> None:
    recorder = Recorder(time.monotonic)
    current.set(recorder)
    begun, released = threading.Event(), threading.Event()

    def hangs(*_: object) -> list[ResolveResult]:
        begun.set()
        released.wait(20)
        return []

    task = asyncio.create_task(TimedSystemResolver(hangs).resolve("a.test"))
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    released.set()
    assert moments(recorder.marks) == [Moment.DNS_START]


@looped
async def test_without_a_request_nothing_is_stamped() -> None:
    assert current.get() is None
    assert await TimedSystemResolver(lambda *_: []).resolve("a.test") == []


def test_an_address_is_found_as_it_is_written() -> None:
    assert [entry["host"] for entry in system_look_up("127.0.0.1", 80, socket.AF_UNSPEC)] == ["127.0.0.1"]
