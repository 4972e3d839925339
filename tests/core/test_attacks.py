"""Pages that once made the agent say something false, each the smallest that did."""

from __future__ import annotations

import json
import math

import pytest

from tests.pages import Feed, engine_page, reading
from ufwatch.core.export import availability
from ufwatch.core.target import TargetReport
from ufwatch.core.track import COLUMN
from ufwatch.model import EngineState, Quality, Reason
from ufwatch.render.readings import reading_json

QUEUE = (
    'vllm:request_queue_time_seconds_sum{engine="0",model_name="m"} %s\n'
    'vllm:request_queue_time_seconds_count{engine="0",model_name="m"} %d'
)


def total(report: TargetReport, name: str, engine: str = "0") -> float:
    tracks = [e.track for e in report.engines if e.engine == engine and e.track is not None]
    return tracks[0].totals[COLUMN[name]]


def test_a_counter_that_leaves_the_page_is_no_restart() -> None:
    target = Feed(whole_run=False)
    for n in range(20):
        preemptions = 7.0 if n < 15 else None
        body = engine_page(generation=1_000_000 + 100 * n, running=1, start=5.0, preemptions=preemptions)
        report = target.page(5.0 * n, body)
    assert total(report, "decode_tokens_total") == 1900
    assert reading(report, "generation_tokens_rate").value == pytest.approx(20)


def test_a_counter_that_returns_goes_on_from_where_it_was() -> None:
    target = Feed(whole_run=False)
    for n, preemptions in enumerate((7.0, 9.0, None, None, 12.0)):
        report = target.page(5.0 * n, engine_page(generation=9, start=5.0, preemptions=preemptions))
    assert total(report, "preemptions_total") == 5


def test_a_sum_that_falls_is_no_restart_of_the_same_process() -> None:
    target = Feed(whole_run=False)
    for n in range(18):
        more = QUEUE % (0.4 if n < 14 else 0.1, n)
        report = target.page(5.0 * n, engine_page(generation=1_000_000 + 100 * n, start=5.0, running=1, more=more))
    assert total(report, "decode_tokens_total") == 1700


@pytest.mark.parametrize("start", [100.0, 600.0])
def test_another_server_behind_the_address_is_not_counted_from_zero(start: float) -> None:
    target = Feed(whole_run=False, wall=100_000.0)
    for n in range(14):
        target.page(5.0 * n, engine_page(generation=1000 + 100 * n, running=1, start=500.0))
    for n in range(14, 17):
        report = target.page(5.0 * n, engine_page(generation=50_000_000 + 100 * n, running=1, start=start))
    assert total(report, "decode_tokens_total") == 1300 + 100
    assert reading(report, "generation_tokens_rate").reason is Reason.WARMING_UP


def test_a_histogram_that_comes_back_is_not_counted_from_zero() -> None:
    target = Feed(whole_run=False)
    for n in range(18):
        buckets = {"0.01": 0.0, "0.025": 900_000.0 + 60 * n, "0.05": 1e6 + 100 * n, "+Inf": 1e6 + 100 * n}
        body = engine_page(
            generation=1e6 + 100 * n,
            running=1,
            start=5.0,
            buckets=None if n == 14 else buckets,
            interval_sum=25_000 + 2.5 * n,
        )
        report = target.page(5.0 * n, body)
    assert total(report, "token_intervals_total") == 1700


def test_a_family_first_seen_on_a_busy_engine_is_a_baseline() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page(generation=100, start=5.0))
    report = target.page(5.0, engine_page(generation=200, start=5.0, preemptions=9000))
    assert total(report, "preemptions_total") == 0


def test_two_workers_with_like_counts_in_turn_give_no_false_rate() -> None:
    target = Feed(whole_run=False)
    for n in range(40):
        tokens = (10_000 if n % 2 == 0 else 9_000) + 10 * n
        rate = reading(
            target.page(5.0 * n, engine_page(generation=tokens, prompt=tokens, running=1)), "generation_tokens_rate"
        )
        assert rate.value is None or rate.value <= 4.0
    assert rate.reason is Reason.INCONSISTENT


def test_no_rate_is_drawn_across_a_time_of_inconsistency() -> None:
    target, tokens, known = Feed(whole_run=False), 1_000_000, 0
    for n in range(160):
        tokens += 500
        of_another = 14 <= n < 134 and n % 2 == 0
        body = engine_page(generation=1000 + n if of_another else tokens, prompt=1000, running=1)
        rate = reading(target.page(5.0 * n, body), "generation_tokens_rate")
        if n >= 134 and rate.value is not None:
            assert rate.value == pytest.approx(100)
            known += 1
    assert known > 5


def test_a_router_is_not_an_engine() -> None:
    body = (
        b'vllm:num_requests_running{server="http://10.0.0.1:8000"} 3.0\n'
        b'vllm:num_requests_running{server="http://10.0.0.2:8000"} 2.0\n'
        b'vllm:current_qps{server="http://10.0.0.1:8000"} 1.5\n'
    )
    target = Feed(whole_run=False)
    for n in range(10):
        report = target.page(5.0 * n, body)
    assert (report.reason, report.state) == (Reason.NOT_AN_ENGINE, None)


def test_without_a_token_counter_nothing_can_be_called_stalled() -> None:
    target = Feed(whole_run=False)
    for n in range(10):
        report = target.page(5.0 * n, b'vllm:num_requests_running{engine="0",model_name="m"} 1\n')
    assert report.state is EngineState.SERVING


def test_fewer_engines_after_a_redeploy_are_not_down_for_ever() -> None:
    def page(engines: int, start: float, tokens: float) -> bytes:
        return b"".join(
            engine_page(
                generation=tokens,
                running=1,
                waiting=3,
                usage=0.99,
                start=start if engine == 0 else None,
                engine=str(engine),
            )
            for engine in range(engines)
        )

    target = Feed(whole_run=False)
    for n in range(14):
        target.page(5.0 * n, page(4, 500.0, 1000 + n * 100))
    for n in range(14, 24):
        report = target.page(5.0 * n, page(2, 900.0, n * 100))
    assert [engine.engine for engine in report.engines] == ["0", "1"]
    assert report.state is EngineState.SERVING
    assert report.kv_breaker.open


def test_one_nan_takes_only_its_family_away() -> None:
    target = Feed(whole_run=False)
    for n in range(14):
        more = QUEUE % ("NaN" if n > 3 else "1", n)
        report = target.page(5.0 * n, engine_page(generation=100 * n, start=5.0, running=1, more=more))
    assert report.state is EngineState.SERVING
    assert reading(report, "generation_tokens_rate").value == pytest.approx(20)
    assert reading(report, "queue_mean").value is None


@pytest.mark.parametrize(
    "more",
    [
        b'vllm:generation_tokens_total{engine="0",model_name="b"} +Inf\n'
        b'vllm:generation_tokens_total{engine="0",model_name="c"} -Inf\n',
        b'vllm:generation_tokens_total{engine="0",model_name="b"} 1.7e308\n'
        b'vllm:generation_tokens_total{engine="0",model_name="c"} 1.7e308\n',
        engine_page(engine="9" * 5000),
        engine_page(engine="\x1b]0;pwned\x07"),
    ],
)
def test_no_page_raises_or_makes_an_engine_of_anything(more: bytes) -> None:
    target = Feed()
    for at in (0.0, 5.0):
        report = target.page(at, engine_page(generation=5, running=1) + more)
    assert [engine.engine for engine in report.engines] == ["0"]
    assert report.state is EngineState.SERVING


def test_huge_edges_do_not_run_over() -> None:
    target = Feed()
    target.page(0.0, engine_page(buckets={"1e200": 0.0, "1e201": 0.0, "+Inf": 0.0}))
    buckets = {"1e200": 100.0, "1e201": 500.0, "+Inf": 500.0}
    report = target.page(5.0, engine_page(generation=500, buckets=buckets, interval_sum=5e202))
    for engine in report.engines:
        for r in engine.readings:
            json.dumps(reading_json(r), allow_nan=False)
            assert r.value is None or math.isfinite(r.value)


def test_probes_do_not_make_the_signal_available() -> None:
    target = Feed(whole_run=False)
    for n in range(14):
        more = "\n".join(
            f'vllm:prefix_cache_{name}_total{{engine="0",model_name="m"}} {value}'
            for name, value in (("queries", 1000 + 1000 * n), ("hits", 500 + 500 * n))
        )
        probes = {"page_table_lookups_total": 10.0 * n, "page_table_misses_total": 9.0 * n}
        body = engine_page(prompt=100 * n, generation=100 * n, running=4, waiting=9, more=more)
        report = target.page(5.0 * n, body, {"plugin": {"0": probes}})
    (series,) = [s for s in availability(report, {}) if dict(s.labels)["signal"] == "page_table_miss"]
    assert series.value == 0
    assert dict(series.labels)["reason"] == Reason.RETRIES_COUNTED


def test_missing_event_batches_are_a_lower_bound_until_they_are_replayed() -> None:
    target = Feed()
    for at, missing in ((0.0, 0.0), (10.0, 6.0)):
        totals = {"kv_evictions_total": 4.0 * at, "kv_event_batches_lost": 0.0, "kv_event_batches_missing": missing}
        report = target.page(at, engine_page(), {"kv_events": {"0": totals}})
    assert reading(report, "kv_evictions").quality is Quality.BOUNDED


def test_a_window_over_a_restart_is_an_estimate() -> None:
    target = Feed(whole_run=False)
    for n in range(14):
        target.page(5.0 * n, engine_page(generation=1000 + 100 * n, start=5.0, running=1))
    for n in range(14, 17):
        report = target.page(5.0 * n, engine_page(generation=100 * (n - 13), start=900.0, running=1))
    assert reading(report, "generation_tokens_rate").quality is Quality.ESTIMATE


def test_a_server_without_statistics_that_is_gone_is_down() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, b'http_requests_total{handler="/metrics"} 5\n')
    assert target.fail(5.0).state is EngineState.DOWN


def test_a_restart_that_drops_a_family_loses_nothing_else() -> None:
    target = Feed(whole_run=False)
    for n in range(5):
        target.page(5.0 * n, engine_page(generation=1000 + 100 * n, start=5.0, running=1, preemptions=3))
    for n in range(5, 12):
        report = target.page(5.0 * n, engine_page(generation=100 * (n - 4), start=900.0, running=1))
    assert total(report, "decode_tokens_total") == 400 + 700


def test_impossible_gauges_are_out_of_range() -> None:
    report = Feed().page(0.0, engine_page(usage=37.5, running=-3))
    for signal in ("kv_usage", "running"):
        assert (reading(report, signal).value, reading(report, signal).reason) == (None, Reason.OUT_OF_RANGE)


def test_requests_that_finish_later_do_not_make_unmatched_tokens_negative() -> None:
    more = 'vllm:request_prompt_tokens_sum{engine="0",model_name="m"} %d'
    target = Feed()
    target.page(0.0, engine_page(prompt=500, more=more % 0))
    unmatched = reading(target.page(5.0, engine_page(prompt=500, more=more % 500)), "prompt_tokens_unmatched")
    assert (unmatched.value, unmatched.quality) == (0.0, Quality.ESTIMATE)


def test_a_source_back_after_a_long_absence_shows_what_it_had_and_then_its_growth() -> None:
    target = Feed(whole_run=False)

    def evictions(at: float, count: float | None) -> float | None:
        extra = {"kv_events": {"0": {"kv_evictions_total": count}}} if count is not None else {}
        report = target.page(at, engine_page(), extra)
        window = report.engines[0].given.extra.get("kv_events")
        return window.last("kv_evictions_total") if window is not None else None

    counts = [100.0, 130.0, None, None, None, None, 500.0, 510.0]
    assert [evictions(5.0 * n, count) for n, count in enumerate(counts)] == [100, 130, None, None, None, None, 130, 510]


def test_a_source_that_misses_one_look_keeps_its_window() -> None:
    target = Feed(whole_run=False)
    for n in range(16):
        extra = {"kv_events": {"0": {"kv_evictions_total": 10.0 * n}}} if n != 13 else {}
        report = target.page(5.0 * n, engine_page(), extra)
    assert reading(report, "kv_evictions").value == pytest.approx(2.0)


def test_two_looks_at_the_same_time_are_no_window() -> None:
    target = Feed()
    target.page(5.0, engine_page(generation=1))
    assert reading(target.page(5.0, engine_page(generation=9)), "generation_tokens_rate").reason is Reason.WARMING_UP
