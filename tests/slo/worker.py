"""A process that counts what a file says has happened, and saves as fast as it can, until it is killed.

``python -m tests.slo.worker STATE_DIRECTORY FILE``: the file holds the numbers of good and of bad requests so far.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from pathlib import Path

from tests.core.test_counting import EDGES
from tests.pages import Feed, engine_page
from ufwatch.clock import SystemClock
from ufwatch.config import DEFAULT_OBJECTIVES
from ufwatch.slo.desk import Desk
from ufwatch.slo.store import Store

COUNTS = struct.Struct("=qq")


def page(good: int, bad: int) -> bytes:
    """An engine that served ``good`` requests in 0.1 s and ``bad`` ones in 5 s."""
    name, labels = "vllm:time_to_first_token_seconds", 'engine="0",model_name="m"'
    lines = [f'{name}_bucket{{{labels},le="{edge}"}} {good}' for edge in EDGES]
    lines += [f'{name}_bucket{{{labels},le="+Inf"}} {good + bad}', f"{name}_count{{{labels}}} {good + bad}"]
    more = "\n".join([*lines, f"{name}_sum{{{labels}}} {0.1 * good + 5 * bad}"])
    return engine_page(generation=good + bad, start=50.0, more=more)


async def work(state: Path, counts: Path) -> None:
    clock = SystemClock()
    desk = Desk(DEFAULT_OBJECTIVES, clock=clock, interval_seconds=5.0, store=Store(state))
    await desk.start()
    book, feed = desk.open("t"), Feed(whole_run=False, began=clock.monotonic())
    print("up", flush=True)
    while True:
        good, bad = COUNTS.unpack(counts.read_bytes())
        at = clock.monotonic()
        book.scraped(feed.page(at, page(good, bad)), None, at)
        await desk.save()


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), Path(sys.argv[2])))
