"""One target's cycle over real text files and hand-written pages: the best source wins, and its loss is survived."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tests.pages import engine_page
from ufwatch.clock import ManualClock
from ufwatch.config import TargetConfig
from ufwatch.decode.layout import Layouts
from ufwatch.metrics import WANTED_SAMPLES
from ufwatch.model import UP, Health, Quality, Reading, Reason, Sample
from ufwatch.pipeline import Target
from ufwatch.sources.fetch import Fetched
from ufwatch.sources.textfile import TextfileSource

INTERVAL, WINDOW = 5.0, 10.0
NO_SM = Reading("sm_utilization", (), None, reason=Reason.NO_SOURCE)


class Engine:
    """A page and a text file of one engine that yields 200 intervals a look: of 10 and of 30 ms, in turn."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.health = UP
        self.target = Target(
            TargetConfig(name="a", url="http://a", textfile=folder),
            page=self,
            clock=self.clock,
            layouts=Layouts(WANTED_SAMPLES),
            interval_seconds=INTERVAL,
            texts=TextfileSource(folder, self.clock, self.clock.wall()),
            window_seconds=WINDOW,
        )
        self._folder = folder
        self._looks = 0
        self._born = self.clock.wall()

    async def poll(self, deadline_seconds: float) -> Fetched:
        del deadline_seconds
        n = 100.0 * self._looks
        buckets = {"0.005": 0, "0.015": n, "0.025": n, "0.035": 2 * n, "+Inf": 2 * n}
        page = engine_page(generation=2 * n, running=1, buckets=buckets, interval_sum=n * 0.04)
        body = page if self.health.up else None
        return Fetched(at_seconds=self.clock.monotonic(), health=self.health, body=body, seconds=0, wire_bytes=0)

    def born(self) -> None:
        """A new writer begins now; its counts begin with the first look all the same."""
        self._born = self.clock.wall()

    def write(self) -> None:
        """The exporter's heartbeat, with the counts of all looks so far."""
        n = 100.0 * self._looks
        text = (
            f"# ufwatch {self.clock.wall()} {self._born}\n"
            f'ufwatch_token_intervals_total{{engine="0",unit="token"}} {2 * n}\n'
            f'ufwatch_token_interval_seconds_total{{engine="0",unit="token"}} {n * 0.04}\n'
            f'ufwatch_token_interval_squared_total{{engine="0",unit="token"}} {n * (0.01**2 + 0.03**2)}\n'
            f'ufwatch_kv_evictions_total{{engine="0"}} {3 * self._looks}\n'
            f"ufwatch_pinned_alloc_attempts_total {4 * self._looks}\n"
            f'ufwatch_pinned_alloc_failures_total{{code="out_of_memory"}} {self._looks}\n'
        )
        beside = self._folder / "worker.new"
        beside.write_text(text)
        beside.replace(self._folder / "worker-1.prom")

    def look(self, *, exporter: bool = True) -> None:
        self.clock.advance(INTERVAL)
        self._looks += 1
        if exporter:
            self.write()
        asyncio.run(self.target.cycle(1.0))

    def reading(self, signal: str) -> Reading:
        (found,) = (reading for reading in self.target.readings() if reading.signal == signal)
        return found

    def shown(self, metric: str) -> dict[str, float]:
        """The metric's value by source."""
        return {dict(s.labels)["source"]: s.value for s in self.samples() if s.metric == metric}

    def samples(self) -> list[Sample]:
        return list(self.target.samples(NO_SM))


@pytest.fixture
def engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Engine:
    caplog.set_level(logging.INFO, "ufwatch.target")
    return Engine(tmp_path)


def _changes(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    fields = [vars(r)["fields"] for r in caplog.records if r.getMessage() == "source changed"]
    return [(f["signal"], f["from"], f["to"]) for f in fields]


def test_counters_from_inside_the_process_win_and_are_exact(engine: Engine) -> None:
    for _ in range(4):
        engine.look()
    jitter = engine.reading("token_jitter")
    assert (jitter.source, jitter.quality) == ("plugin", Quality.EXACT)
    assert jitter.value == pytest.approx(0.01)
    evictions = engine.reading("kv_evictions")
    assert evictions.source == "plugin"
    assert evictions.value == pytest.approx(3 / INTERVAL)
    assert engine.shown("token_jitter_seconds") == {"plugin": pytest.approx(0.01)}
    assert list(engine.shown("token_intervals_total")) == ["plugin"]
    pinned = engine.reading("pinned_alloc_success")
    assert (pinned.source, pinned.quality, pinned.value) == ("textfile", Quality.EXACT, 0.75)


def test_when_the_files_expire_the_histogram_takes_over_and_it_is_said_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        engine.look(exporter=False)
    assert engine.reading("token_jitter").source == "histogram"
    assert _changes(caplog) == []
    for _ in range(4):
        engine.look()
    assert _changes(caplog) == [("token_jitter", "histogram", "plugin")]
    sources = []
    for _ in range(6):
        engine.look(exporter=False)
        sources.append(engine.reading("token_jitter").source)
    # Three heartbeats long the file may be late; then its writer is taken for dead.
    assert sources == ["plugin"] * 3 + ["histogram"] * 3
    assert _changes(caplog)[1:] == [("token_jitter", "plugin", "histogram")]
    jitter = engine.reading("token_jitter")
    assert jitter.quality is Quality.BOUNDED
    assert jitter.low is not None
    assert jitter.high is not None
    assert jitter.low <= 0.01 <= jitter.high
    assert list(engine.shown("token_jitter_seconds")) == ["histogram"]
    assert list(engine.shown("token_intervals_total")) == ["histogram"]
    evictions = engine.reading("kv_evictions")
    assert (evictions.value, evictions.reason) == (None, Reason.NO_SOURCE)


def test_a_source_is_down_and_up_once_in_the_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    for writes in (False, False, True, True, False, False, False, False, False, True):
        engine.look(exporter=writes)
    told = [
        (r.getMessage(), vars(r)["fields"]["source"], vars(r)["fields"].get("reason"))
        for r in caplog.records
        if r.getMessage().startswith("source ") and r.getMessage() != "source changed"
    ]
    assert told == [
        ("source up", "vllm", None),
        ("source down", "textfile", "no_source"),
        ("source up", "textfile", None),
        ("source down", "textfile", "stale"),
        ("source up", "textfile", None),
    ]


def test_process_counters_outlive_three_looks_and_come_back_at_the_value_they_had(engine: Engine) -> None:
    for _ in range(4):
        engine.look()
    # The first file is the baseline, since its writer is no younger than the agent.
    assert engine.shown("pinned_alloc_attempts_total") == {"textfile": 12}
    # The file stays where it is, so that its writer may be late by three heartbeats before three looks are missed.
    shown = []
    for _ in range(7):
        engine.look(exporter=False)
        shown.append(engine.shown("pinned_alloc_attempts_total").get("textfile"))
    assert shown == [12] * 5 + [None] * 2
    assert engine.shown("pinned_alloc_success_ratio") == {}
    engine.look()
    assert engine.shown("pinned_alloc_attempts_total") == {"textfile": 12}
    assert engine.shown("token_intervals_total") == {"plugin": 600}
    engine.look()
    assert engine.shown("pinned_alloc_attempts_total") == {"textfile": 48}
    assert engine.shown("token_intervals_total") == {"plugin": 2400}


def test_the_first_file_of_a_writer_younger_than_the_agent_counts_from_zero(engine: Engine) -> None:
    for _ in range(4):
        engine.look(exporter=False)
    engine.born()
    shown = []
    for _ in range(2):
        engine.look()
        shown.append(engine.shown("pinned_alloc_attempts_total")["textfile"])
    assert shown == [0, 24]


def test_a_page_that_fails_leaves_what_the_process_tells(engine: Engine) -> None:
    for _ in range(4):
        engine.look()
    engine.health = Health(up=False, reason=Reason.CONNECT)
    engine.look()
    assert engine.reading("token_jitter").value == pytest.approx(0.01)
    assert engine.reading("running").value is None
    assert engine.shown("pinned_alloc_success_ratio") == {"textfile": 0.75}
    up = {dict(s.labels)["source"]: s.value for s in engine.samples() if s.metric == "source_up"}
    assert up == {"vllm": 0.0, "textfile": 1.0}
