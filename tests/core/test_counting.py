"""Good and bad events from pages, against the observations themselves."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pages import Feed, engine_page
from ufwatch.config import Objective
from ufwatch.core import counting
from ufwatch.core.counting import Exact, Mixed, Tally
from ufwatch.model import EngineState
from ufwatch.slo.book import Book

EDGES = (0.5, 0.75, 1.0, 2.5)


def histogram(observations: Sequence[float], edges: Sequence[float] = EDGES, name: str = "time_to_first_token") -> str:
    """The lines of one histogram that has seen these."""
    full = f"vllm:{name}_seconds"
    labels = 'engine="0",model_name="m"'
    counts = [sum(o <= edge for o in observations) for edge in edges]
    lines = [f'{full}_bucket{{{labels},le="{edge}"}} {count}' for edge, count in zip(edges, counts, strict=True)]
    n = len(observations)
    lines += [f'{full}_bucket{{{labels},le="+Inf"}} {n}', f"{full}_count{{{labels}}} {n}"]
    return "\n".join([*lines, f"{full}_sum{{{labels}}} {sum(observations)}"])


def ttft(limit: float, ratio: float = 0.95, name: str = "ttft") -> Objective:
    return Objective(id=name, metric="ttft", threshold_seconds=limit, ratio=ratio)


class Watched:
    """An engine that is scraped every five seconds, and the book that is kept of it."""

    def __init__(self, *objectives: Objective, start: float = 50.0) -> None:
        self.feed, self.at, self.start = Feed(whole_run=False), 0.0, start
        self.now = 1_800_000_000.0
        self.book = Book("t", objectives, 5.0, lambda: self.now + self.at)

    def look(self, observations: Sequence[float], edges: Sequence[float] = EDGES) -> None:
        self.at += 5.0
        page = engine_page(generation=len(observations), start=self.start, more=histogram(observations, edges))
        self.book.scraped(self.feed.page(self.at, page), None, self.at)

    def fail(self) -> None:
        self.at += 5.0
        self.book.scraped(self.feed.fail(self.at), None, self.at)


@pytest.mark.parametrize(
    ("limit", "low", "high"),
    [(0.8, 2, 3), (1.0, 2, 2), (0.1, 4, 5), (0.5, 4, 4), (2.5, 1, 1), (9.0, 0, 1), (0.75, 3, 3)],
)
def test_a_limit_between_edges_has_two_counts(limit: float, low: int, high: int) -> None:
    seen = Watched(ttft(limit))
    seen.look([])
    seen.look([0.2, 0.7, 0.9, 1.2, 7.0])
    assert seen.book.totals == [Tally(5, low, high)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.3, 0.75, 0.8, 1.0, 2.3, 4.0]))
def test_every_observation_is_counted_once_through_restarts_and_gaps(seed: int, limit: float) -> None:
    """The oracle is the list of what happened after the first look."""
    chance = random.Random(seed)
    seen = Watched(ttft(limit))
    told: list[float] = [chance.random() * 3 for _ in range(chance.randrange(5))]
    seen.look(told)
    happened: list[float] = []
    for _ in range(12):
        new = [chance.choice((0.1, 0.6, 0.8, 0.9, 2.0, 2.4, 5.0)) for _ in range(chance.randrange(4))]
        what = chance.randrange(6)
        if what == 0:  # a restart between two looks: what the old process did since the last one, nobody can know
            seen.start = 50.0 + seen.at
            told = list(new)
            seen.look(told)  # believed at the second look, and then counted whole
        else:
            told = told + new
        happened += new
        if what == 1:
            for _ in range(chance.randrange(1, 5)):
                seen.fail()
            seen.look(told)  # what a gap held back is counted one look later
        seen.look(told)
    bad = sum(o > limit for o in happened)
    (total,) = seen.book.totals
    assert total.events == len(happened)
    assert total.low <= bad <= total.high
    if limit in EDGES:
        assert total.low == total.high
    assert seen.book.accounts[0].hours.total == total


def test_other_edges_of_a_new_process_go_on_counting() -> None:
    seen = Watched(ttft(0.8))
    seen.look([0.1])
    seen.look([0.1, 3.0])
    seen.start = 70.0
    seen.look([3.0], (0.2, 0.8, 5.0))
    seen.look([3.0, 0.3, 0.9], (0.2, 0.8, 5.0))
    assert seen.book.totals == [Tally(4, 3, 3)]


def test_an_exact_source_counts_each_event_once() -> None:
    held, first = counting.mixed(None, Tally(3, 1, 2), Exact(10, 4))
    assert (held, first) == (Mixed(Exact(10, 4)), Tally(3, 1, 2))  # its first look is only a baseline
    held, second = counting.mixed(held, Tally(5, 1, 4), Exact(14, 6))
    assert second == Tally(4, 2, 2)
    gone, rest = counting.mixed(held, Tally(2, 0, 2), None)
    assert gone is None
    assert rest == Tally(3, 0, 3)  # 7 on the page, 4 told exactly; of the rest up to three are bad


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=30), st.integers(0, 2))
def test_events_of_two_sources_are_never_lost(steps: list[tuple[int, int, bool]], lag: int) -> None:
    """The page sees good and bad requests at once; the exact source ``lag`` looks later."""
    good, bad = [0, 0, 0], [0, 0, 0]
    held: Mixed | None = None
    total = Tally()
    born = True
    for g, b, alive in [*steps, (0, 0, False)]:
        good, bad = [*good, good[-1] + g], [*bad, bad[-1] + b]
        page = Tally(g + b, 0, g + b)
        exact = Exact(good[-1 - lag] + bad[-1 - lag], bad[-1 - lag]) if alive else None
        appearing = held is None and alive
        held, tally = counting.mixed(held, page, exact)
        total = total.plus(tally)
        born = born and not appearing
    assert total.events >= good[-1] + bad[-1]
    assert total.low <= bad[-1] + 8 * lag * len(steps)
    if lag == 0:
        assert total.events == good[-1] + bad[-1]
        assert total.low <= bad[-1] <= total.high


def intervals(times: Sequence[float], edges: Sequence[float]) -> dict[str, float]:
    counts = [float(sum(t <= edge for t in times)) for edge in edges]
    return {**dict(zip(map(str, edges), counts, strict=True)), "+Inf": float(len(times))}


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ([0.02] * 40, Tally(1, 0, 0)),
        ([0.02, 0.6] * 20, Tally(1, 1, 1)),
        ([0.06, 0.18] * 20, Tally(unknown=1)),  # the edges cannot tell 60 ms from more than 80
        ([], Tally()),
        ([0.02], Tally()),  # one interval has no spread
    ],
)
def test_a_slice_is_good_bad_unknown_or_nothing(times: list[float], verdict: Tally) -> None:
    feed = Feed(whole_run=False)
    book = Book(
        "t", [Objective(id="smoothness", metric="jitter", threshold_seconds=0.08, ratio=0.99)], 5.0, lambda: 0.0
    )
    edges = (0.01, 0.025, 0.2, 0.5, 0.75)
    for at, seen in ((5.0, []), (10.0, times), (15.0, times)):
        page = engine_page(buckets=intervals(seen, edges), interval_sum=sum(seen), start=1.0, generation=len(seen))
        book.scraped(feed.page(at, page), None, at)
    assert book.totals == [verdict]


def test_slices_over_a_gap_are_unknown_and_a_long_interval_has_none() -> None:
    objective = Objective(id="smoothness", metric="jitter", threshold_seconds=0.08, ratio=0.99)
    for interval, unknown in ((5.0, 4.0), (10.0, 0.0)):
        feed = Feed(whole_run=False)
        book = Book("t", [objective], interval, lambda: 0.0)
        for at, n in ((5.0, 0.0), (45.0, 100.0)):
            page = engine_page(buckets={"0.1": n, "+Inf": n}, interval_sum=0.05 * n, start=1.0, generation=n)
            book.scraped(feed.page(at, page), None, at)
        assert book.totals == [Tally(unknown=unknown)]


@pytest.mark.parametrize(
    ("status", "ours", "state", "verdict"),
    [
        (200, False, EngineState.SERVING, Tally(1, 0, 0)),
        (200, False, EngineState.ASLEEP, Tally(1, 0, 0)),
        (200, False, None, Tally(1, 0, 0)),
        (200, False, EngineState.STALLED, Tally(1, 1, 1)),
        (503, False, EngineState.SERVING, Tally(1, 1, 1)),
        (None, False, EngineState.SERVING, Tally(1, 1, 1)),
        (None, False, EngineState.DOWN, Tally(1, 1, 1)),
        (None, False, EngineState.STARTING, Tally(unknown=1)),
        (200, False, EngineState.STARTING, Tally(unknown=1)),
        (404, False, EngineState.SERVING, Tally(unknown=1)),
        (None, True, EngineState.SERVING, Tally(unknown=1)),
    ],
)
def test_a_probe_is_good_bad_or_unknown(
    status: int | None, ours: bool, state: EngineState | None, verdict: Tally
) -> None:
    assert counting.probed(status, ours, state) == verdict


def test_counts_up_to_every_edge_are_what_the_oracle_counts() -> None:
    chance = random.Random(1)
    for _ in range(200):
        seen = [chance.random() * 4 for _ in range(chance.randrange(30))]
        limit = chance.random() * 4
        below, above = counting.neighbours((*EDGES, float("inf")), limit)
        cumulative = [sum(o <= edge for o in seen) for edge in (*EDGES, float("inf"))]
        tally = counting.between(len(seen), 0.0 if below is None else cumulative[below], cumulative[above])
        assert tally.low <= sum(o > limit for o in seen) <= tally.high
