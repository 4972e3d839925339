"""The plugin's exact counts through real text files: low equals high, and its loss loses no event."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.core.test_counting import histogram
from tests.pages import engine_page
from ufwatch.clock import ManualClock
from ufwatch.config import DEFAULT_OBJECTIVES, TargetConfig
from ufwatch.core.counting import Tally
from ufwatch.decode.layout import Layouts
from ufwatch.metrics import WANTED_SAMPLES
from ufwatch.model import UP, Reading, Reason
from ufwatch.pipeline import Target
from ufwatch.slo.book import Book
from ufwatch.sources.fetch import Fetched
from ufwatch.sources.textfile import TextfileSource

NO_SM = Reading("sm_utilization", (), None, reason=Reason.NO_SOURCE)
PLACE = {each.id: place for place, each in enumerate(DEFAULT_OBJECTIVES)}


class Served:
    """An engine with the plugin inside; ``requests`` are the times to first token so far."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.folder = ManualClock(), folder
        self.requests: list[float] = []
        self.slices = (0, 0)
        self.book = Book("a", DEFAULT_OBJECTIVES, 5.0, self.clock.wall)
        self.target = Target(
            TargetConfig(name="a", url="http://a", textfile=folder),
            page=self,
            clock=self.clock,
            layouts=Layouts(WANTED_SAMPLES),
            interval_seconds=5.0,
            texts=TextfileSource(folder, self.clock, self.clock.wall()),
            judges=(self.book,),
        )
        self._born = self.clock.wall()

    async def poll(self, deadline_seconds: float) -> Fetched:
        del deadline_seconds
        n = len(self.requests)
        page = engine_page(generation=n, running=1, start=50.0, more=histogram(self.requests))
        return Fetched(at_seconds=self.clock.monotonic(), health=UP, body=page, seconds=0, wire_bytes=0)

    def look(self, *more: float, plugin: bool = True) -> None:
        self.clock.advance(5.0)
        self.requests += more
        if plugin:
            late = [(0.8, sum(r > 0.8 for r in self.requests)), (2.3, sum(r > 2.3 for r in self.requests))]
            lines = [
                f"# ufwatch {self.clock.wall()} {self._born}",
                f'ufwatch_ttft_requests_total{{engine="0"}} {len(self.requests)}',
                *(f'ufwatch_ttft_over_total{{engine="0",threshold_seconds="{limit}"}} {n}' for limit, n in late),
                f'ufwatch_jitter_slices_total{{engine="0"}} {self.slices[0]}',
                f'ufwatch_jitter_slices_over_total{{engine="0",threshold_seconds="0.08"}} {self.slices[1]}',
            ]
            (self.folder / "vllm.new").write_text("\n".join(lines) + "\n")
            (self.folder / "vllm.new").replace(self.folder / "vllm-1.prom")
        asyncio.run(self.target.cycle(1.0))

    def total(self, slo: str) -> Tally:
        return self.book.totals[PLACE[slo]]


def test_the_plugin_counts_the_very_limit(tmp_path: Path) -> None:
    engine = Served(tmp_path)
    engine.look(0.9)
    engine.slices = (4, 1)
    engine.look(0.79, 0.81, 2.4, 2.2)  # the page only knows edges at 0.75, 1.0 and 2.5
    assert engine.total("ttft") == Tally(4, 3, 3)
    assert engine.total("patience") == Tally(4, 1, 1)
    assert engine.total("smoothness") == Tally(4, 1, 1)


def test_without_the_plugin_the_page_goes_on_and_nothing_is_lost(tmp_path: Path) -> None:
    engine = Served(tmp_path)
    engine.look()
    engine.look(0.81, 0.1)
    for _ in range(4):  # its heartbeat is trusted for 15 s
        engine.look(plugin=False)
    engine.look(0.81, 5.0, plugin=False)
    assert engine.total("ttft") == Tally(4, 2, 3)
    engine.look(0.81)  # back: the first look is a baseline, the page still counts
    engine.look(0.81)
    assert engine.total("ttft") == Tally(6, 3, 5)


def test_every_series_begins_at_0_and_budgets_wait_for_an_event(tmp_path: Path) -> None:
    engine = Served(tmp_path)
    engine.look()
    samples = [s for s in engine.target.samples(NO_SM) if s.metric.startswith("slo_")]
    assert len(samples) == 3 * len(DEFAULT_OBJECTIVES)
    assert {s.value for s in samples} == {0.0}
    assert {s.metric for s in samples} == {"slo_events_total", "slo_bad_events_total"}
    engine.look(0.1)
    budgets = [s for s in engine.target.samples(NO_SM) if s.metric == "slo_error_budget_remaining_ratio"]
    assert [(dict(s.labels)["slo"], dict(s.labels)["bound"], s.value) for s in budgets] == [
        *(("ttft", "low", 1.0), ("ttft", "high", 1.0), ("patience", "low", 1.0), ("patience", "high", 1.0))
    ]
