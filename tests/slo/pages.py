"""A desk over a store, with one engine whose pages the test writes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from tests.core.test_counting import histogram
from tests.pages import Feed, engine_page
from ufwatch.clock import ManualClock
from ufwatch.config import DEFAULT_OBJECTIVES, Objective
from ufwatch.slo.desk import Desk
from ufwatch.slo.store import Store
from ufwatch.sources.health import Probe


def done(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


class Running:
    """One life of an agent: its desk, and one target named ``t`` that is looked at every five seconds."""

    def __init__(
        self,
        directory: Path | None,
        clock: ManualClock,
        objectives: Sequence[Objective] = DEFAULT_OBJECTIVES,
        name: str = "t",
    ) -> None:
        self.clock = clock
        store = Store(directory) if directory is not None else None
        self.desk = Desk(objectives, clock=clock, interval_seconds=5.0, store=store)
        self._feed = Feed(whole_run=False, began=clock.monotonic())
        done(self.desk.start())
        self.book = self.desk.open(name)

    def look(self, observations: Sequence[float], *, start: float = 50.0) -> None:
        self.clock.advance(5.0)
        at = self.clock.monotonic()
        more = histogram(observations)
        page = engine_page(generation=len(observations), running=1, usage=at % 1, start=start, more=more)
        self.book.scraped(self._feed.page(at, page), None, at)

    def probe(self, status: int | None = 200) -> None:
        self.book.probed(Probe(status))

    def save(self) -> None:
        done(self.desk.save())

    def end(self) -> None:
        done(self.desk.finish())

    def killed(self) -> None:
        """Nothing more is written; the lock falls with the process."""
        assert self.desk._store is not None
        self.desk._store.close()

    def healthy(self) -> tuple[bool, ...]:
        """Whether the store took the last save."""
        return (self.desk._life.health.up,)

    def slo(self, name: str) -> dict[str, Any]:
        (target,) = self.desk.report()["targets"]
        (found,) = (slo for slo in target["slos"] if slo["slo"] == name)
        result: dict[str, Any] = found
        return result

    def counter(self, name: str) -> tuple[float, float, float]:
        """Events, low and high of the Prometheus counters."""
        values = {
            (metric, dict(labels).get("bound")): value
            for metric, labels, value in self.book.samples("m")
            if dict(labels)["slo"] == name
        }
        bad = "slo_bad_events_total"
        return values["slo_events_total", None], values[bad, "low"], values[bad, "high"]
