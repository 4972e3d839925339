"""Requests of our own count where the page is silent, and nowhere else: each request once."""

from __future__ import annotations

import pytest

from tests.core.test_counting import Watched, ttft
from ufwatch.config import Objective
from ufwatch.core import counting
from ufwatch.core.counting import Asked, Tally
from ufwatch.model import EngineState

TTFT = ttft(0.8)
E2E = Objective(id="e2e", metric="e2e", threshold_seconds=30.0, ratio=0.95)
TPOT = Objective(id="tpot", metric="tpot", threshold_seconds=0.1, ratio=0.95)
JITTER = Objective(id="smoothness", metric="jitter", threshold_seconds=0.08, ratio=0.99)
ALL = (TTFT, E2E, TPOT, JITTER)
GOOD = Asked({"ttft": 0.8, "e2e": 30.0, "tpot": 0.1})
SLOW = Asked({"ttft": 0.81, "e2e": 30.1, "tpot": 0.11})
SILENT = b"process_start_time_seconds 50\n"


class Silent(Watched):
    """A server whose page holds no histogram, as with --disable-log-stats."""

    def silent(self) -> None:
        self.at += 5.0
        self.book.scraped(self.feed.page(self.at, SILENT), None, self.at)


def test_where_the_page_answers_it_has_counted_the_request_already() -> None:
    seen = Silent(*ALL)
    seen.look([])
    seen.look([3.0])
    seen.book.asked(SLOW)
    assert seen.book.totals[0] == Tally(1, 1, 1), "the page's own, once"
    # This page has no other histogram, so the others are ours to count.
    assert seen.book.totals[1:] == [Tally(1, 1, 1), Tally(1, 1, 1), Tally()]


def test_where_the_page_is_silent_the_very_limit_is_counted() -> None:
    seen = Silent(*ALL)
    seen.silent()
    seen.book.asked(GOOD)
    assert seen.book.totals == [Tally(1, 0, 0)] * 3 + [Tally()]
    seen.book.asked(SLOW)
    assert seen.book.totals == [Tally(2, 1, 1)] * 3 + [Tally()]


def test_a_failed_request_is_bad_only_where_it_could_have_been_good() -> None:
    seen = Silent(*ALL)
    seen.silent()
    seen.book.asked(Asked({}, failed=True))
    assert seen.book.totals == [Tally(1, 1, 1), Tally(1, 1, 1), Tally(), Tally()]
    seen.book.asked(Asked({"ttft": 0.1}, failed=True))
    assert seen.book.totals[:2] == [Tally(2, 1, 1), Tally(2, 2, 2)], "cut behind its first token"


def test_nothing_is_counted_before_a_page_was_read() -> None:
    seen = Silent(*ALL)
    seen.book.asked(SLOW)
    seen.fail()
    seen.book.asked(Asked({}, failed=True))
    assert seen.book.totals == [Tally()] * 4
    seen.silent()
    seen.book.new_process()
    seen.book.asked(SLOW)
    assert seen.book.totals == [Tally()] * 4


def test_a_failed_scrape_changes_nothing_of_who_answers() -> None:
    seen = Silent(TTFT)
    seen.look([])
    seen.fail()
    seen.book.asked(Asked({}, failed=True))
    assert seen.book.totals == [Tally()]


def test_a_server_that_is_started_anew_without_statistics_is_ours_from_then_on() -> None:
    seen = Silent(TTFT)
    seen.look([])
    seen.look([3.0])
    seen.book.asked(SLOW)
    seen.silent()
    seen.book.asked(SLOW)
    assert seen.book.totals == [Tally(2, 2, 2)], "one of the page's and one of ours"
    seen.look([3.0])
    seen.book.asked(SLOW)
    assert seen.book.totals == [Tally(2, 2, 2)]


@pytest.mark.parametrize("request_", [SLOW, Asked({}, failed=True)])
def test_the_verdict_is_unknown_while_it_starts_and_where_the_fault_is_ours(request_: Asked) -> None:
    assert counting.asked(request_, TTFT, EngineState.STARTING) == Tally(unknown=1.0)
    assert counting.asked(request_._replace(ours=True), TTFT, EngineState.SERVING) == Tally(unknown=1.0)
    assert counting.asked(request_, TTFT, None) == Tally(1, 1, 1)


def test_a_budget_shows_what_only_probes_saw() -> None:
    seen = Silent(TTFT)
    seen.silent()
    seen.book.asked(SLOW)
    values = {(s.metric, dict(s.labels).get("bound")): s.value for s in seen.book.samples("m")}
    assert values["slo_events_total", None] == 1.0
    assert values["slo_error_budget_remaining_ratio", "low"] < 0
    assert seen.book.dirty
