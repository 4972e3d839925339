"""How a target's series come, vanish and return, and what state it is in."""

from __future__ import annotations

import pytest

from tests.pages import Feed, engine_page, reading
from ufwatch.core.export import availability, target_samples
from ufwatch.core.target import TargetReport
from ufwatch.model import EngineState, Quality, Reason

BUCKETS = {"0.01": 0.0, "0.05": 0.0, "0.1": 0.0, "+Inf": 0.0}


def _value(report: TargetReport, metric: str, **labels: str) -> float | None:
    found = [s.value for s in target_samples(report) if s.metric == metric and labels.items() <= dict(s.labels).items()]
    assert len(found) < 2, found
    return found[0] if found else None


def _decoded(report: TargetReport) -> float | None:
    return _value(report, "decode_tokens_total")


def test_counters_start_at_zero_and_grow_by_deltas() -> None:
    target = Feed(whole_run=False)
    assert _decoded(target.page(0.0, engine_page(generation=500))) == 0
    assert _decoded(target.page(5.0, engine_page(generation=520))) == 20


def test_gauges_vanish_at_the_first_failure_and_counters_after_three_intervals() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page(generation=500, running=1))
    target.page(5.0, engine_page(generation=520, running=1))
    seen = []
    for n in range(4):
        report = target.fail(10.0 + 5 * n)
        seen.append((_value(report, "requests_running"), _decoded(report)))
    assert seen == [(None, 20), (None, 20), (None, None), (None, None)]


def test_after_a_gap_counters_return_at_the_value_they_had_and_the_growth_follows() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page(generation=500))
    target.page(5.0, engine_page(generation=520))
    for n in range(5):
        target.fail(10.0 + 5 * n)
    assert _decoded(target.page(40.0, engine_page(generation=900))) == 20
    assert _decoded(target.page(45.0, engine_page(generation=910))) == 410


def test_after_one_missed_scrape_the_growth_over_it_is_counted_at_once() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page(generation=500))
    target.fail(5.0, Reason.TIMEOUT)
    assert _decoded(target.page(10.0, engine_page(generation=540))) == 40


def test_a_restart_in_the_gap_counts_from_zero() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page(generation=500, start=1))
    for n in range(4):
        target.fail(5.0 + 5 * n)
    assert _decoded(target.page(30.0, engine_page(generation=7, start=2))) == 0
    assert _decoded(target.page(35.0, engine_page(generation=9, start=2))) == 9


def test_rates_wait_for_a_full_window() -> None:
    target = Feed(whole_run=False)
    for n in range(13):
        report = target.page(5.0 * n, engine_page(generation=10.0 * n, running=1))
        rate = reading(report, "generation_tokens_rate")
        if n < 12:
            assert (rate.value, rate.reason) == (None, Reason.WARMING_UP)
    assert rate.value == pytest.approx(2.0)


def test_a_late_scrape_still_fills_the_window() -> None:
    target = Feed(whole_run=False)
    for n in range(13):
        late = 0.4 if n == 0 else 0.0
        report = target.page(5.0 * n + late, engine_page(generation=10.0 * n, running=1))
    assert reading(report, "generation_tokens_rate").value == pytest.approx(120 / 59.6)


def test_never_answered_is_starting_until_its_grace_is_over() -> None:
    target = Feed(whole_run=False)
    assert target.fail(1.0).state is EngineState.STARTING
    assert target.fail(599.0).state is EngineState.STARTING
    assert target.fail(601.0).state is EngineState.DOWN


def test_served_and_gone_is_down_at_once_when_refused() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page())
    assert target.fail(5.0).state is EngineState.DOWN


def test_a_new_process_without_work_is_starting_then_idle_and_never_serving() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page(generation=500, start=1))
    target.fail(5.0)
    states = [target.page(10.0 + 5 * n, engine_page(start=2)).state for n in range(3)]
    assert states == [EngineState.STARTING, EngineState.IDLE, EngineState.IDLE]
    assert target.page(25.0, engine_page(start=3, running=1)).state is EngineState.SERVING


def test_served_and_silent_keeps_its_state_for_two_scrapes() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page(running=1, generation=1))
    states = [target.fail(5.0 + 5 * n, Reason.TIMEOUT).state for n in range(3)]
    assert states == [EngineState.SERVING, EngineState.SERVING, EngineState.DOWN]


def test_when_the_agent_runs_out_of_sockets_the_engine_is_not_called_down() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page(running=1, generation=1))
    states = {target.fail(5.0 + 5 * n, Reason.RESOURCES).state for n in range(9)}
    assert states == {EngineState.SERVING}


def test_idle_serving_and_asleep() -> None:
    target = Feed(whole_run=False)
    assert target.page(0.0, engine_page()).state is EngineState.IDLE
    assert target.page(5.0, engine_page(running=1)).state is EngineState.SERVING
    asleep = 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0.0'
    report = target.page(10.0, engine_page(more=asleep))
    assert report.state is EngineState.ASLEEP
    assert reading(report, "generation_tokens_rate").reason is Reason.ASLEEP


def test_a_long_prompt_is_not_stalled_while_its_blocks_move() -> None:
    target = Feed(whole_run=False)
    for n in range(12):
        report = target.page(5.0 * n, engine_page(running=1, usage=0.05 * n))
    assert report.state is EngineState.SERVING


def test_work_that_stands_still_for_thirty_seconds_is_stalled_and_recovers() -> None:
    target = Feed(whole_run=False)
    states = [target.page(5.0 * n, engine_page(waiting=4, generation=9)).state for n in range(8)]
    assert states == [EngineState.SERVING] * 6 + [EngineState.STALLED] * 2
    assert target.page(40.0, engine_page(waiting=3, generation=12)).state is EngineState.SERVING


def test_an_idle_server_is_never_stalled_and_a_new_request_is_given_its_thirty_seconds() -> None:
    target = Feed(whole_run=False)
    for n in range(100):
        report = target.page(5.0 * n, engine_page(generation=9))
    assert report.state is EngineState.IDLE
    assert target.page(500.0, engine_page(generation=9, running=1)).state is EngineState.SERVING


def test_changed_bucket_edges_drop_one_delta_and_nothing_else() -> None:
    target = Feed()
    target.page(0.0, engine_page(generation=0, buckets=BUCKETS))
    one = {**BUCKETS, "0.05": 100.0, "0.1": 150.0, "+Inf": 150.0}
    target.page(5.0, engine_page(generation=151, buckets=one, interval_sum=7.0))
    other = {"0.02": 0.0, "0.06": 100.0, "+Inf": 200.0}
    report = target.page(10.0, engine_page(generation=202, buckets=other, interval_sum=9.0))
    assert _decoded(report) == 202
    assert _value(report, "token_intervals_total") == 150, "the delta over the change is dropped"
    assert reading(report, "itl_p99").reason is Reason.BUCKETS_CHANGED
    more = {"0.02": 0.0, "0.06": 130.0, "+Inf": 230.0}
    report = target.page(15.0, engine_page(generation=232, buckets=more, interval_sum=10.0))
    assert _value(report, "token_intervals_total") == 180


def _old_page(*, prompt: float, queries: float, hits: float, waiting: float = 0.0) -> bytes:
    labels = '{engine="0",model_name="m"}'
    lines = (f"vllm:prefix_cache_queries_total{labels} {queries}", f"vllm:prefix_cache_hits_total{labels} {hits}")
    return engine_page(prompt=prompt, waiting=waiting, more="\n".join(lines))


def test_look_ups_that_may_hold_retries_are_left_out_and_the_rest_is_the_ratio() -> None:
    target = Feed()
    target.page(0.0, _old_page(prompt=0, queries=0, hits=0))
    # Nobody waits at either scrape, but 300 look-ups for 100 prompt tokens cannot have been made once each.
    report = target.page(5.0, _old_page(prompt=100, queries=300, hits=0))
    miss = reading(report, "page_table_miss", unit="token")
    assert (miss.value, miss.reason) == (None, Reason.RETRIES_COUNTED)
    assert _value(report, "page_table_lookups_total") == 0
    report = target.page(10.0, _old_page(prompt=200, queries=400, hits=25))
    miss = reading(report, "page_table_miss", unit="token")
    assert miss.value == pytest.approx(0.75)
    assert miss.quality is Quality.ESTIMATE
    report = target.page(15.0, _old_page(prompt=300, queries=500, hits=25, waiting=2))
    assert _value(report, "page_table_lookups_total") == 100


def test_exact_counters_of_a_plugin_win_over_the_histogram() -> None:
    target = Feed()
    plugin = {
        "0": {"token_intervals_total": 0.0, "token_interval_seconds_total": 0.0, "token_interval_squared_total": 0.0}
    }
    target.page(0.0, engine_page(buckets=BUCKETS), {"plugin": plugin})
    # 100 intervals of 30 ms and 100 of 50 ms: mean 40 ms, standard deviation 10 ms.
    counted = {
        "token_intervals_total": 200.0,
        "token_interval_seconds_total": 8.0,
        "token_interval_squared_total": 0.34,
    }
    buckets = {**BUCKETS, "0.05": 200.0, "0.1": 200.0, "+Inf": 200.0}
    report = target.page(5.0, engine_page(buckets=buckets, interval_sum=8.0), {"plugin": {"0": counted}})
    jitter = reading(report, "token_jitter")
    assert jitter.value == pytest.approx(0.010)
    assert (jitter.quality, jitter.source) == (Quality.EXACT, "plugin")
    assert {dict(s.labels)["source"] for s in target_samples(report) if s.metric.startswith("token_")} == {"plugin"}


def test_evictions_from_events_work_without_statistics() -> None:
    target = Feed()
    nostats = b"# TYPE http_requests_total counter\nhttp_requests_total 1\n"
    target.page(0.0, nostats, {"kv_events": {"0": {"kv_evictions_total": 0.0}}})
    report = target.page(10.0, nostats, {"kv_events": {"0": {"kv_evictions_total": 45.0}}})
    evictions = reading(report, "kv_evictions")
    assert evictions.value == pytest.approx(4.5)
    assert (evictions.source, evictions.quality) == ("kv_events", Quality.EXACT)
    assert _value(report, "kv_evictions_total", source="kv_events") == 45
    assert reading(report, "token_jitter").reason is Reason.STATS_DISABLED


def test_lost_event_batches_make_a_lower_bound() -> None:
    target = Feed()
    target.page(0.0, engine_page(), {"kv_events": {"0": {"kv_evictions_total": 0.0, "kv_event_batches_lost": 0.0}}})
    report = target.page(
        10.0, engine_page(), {"kv_events": {"0": {"kv_evictions_total": 40.0, "kv_event_batches_lost": 1.0}}}
    )
    evictions = reading(report, "kv_evictions")
    assert (evictions.value, evictions.low, evictions.high, evictions.quality) == (4.0, 4.0, None, Quality.BOUNDED)


def test_kv_breaker_opens_after_five_seconds_with_requests_waiting_and_not_without() -> None:
    target = Feed(whole_run=False)

    def full(generation: float, waiting: float) -> bytes:
        return engine_page(generation=generation, waiting=waiting, usage=0.95, running=8)

    opened = []
    for n in range(4):
        report = target.page(5.0 * n, full(n, 3))
        opened.append(_value(report, "memory_breaker_open", kind="kv"))
    assert opened == [0, 1, 1, 1]
    assert _value(report, "memory_breaker_trips_total", kind="kv") == 1
    assert _value(target.page(20.0, full(9, 0)), "memory_breaker_open", kind="kv") == 0
    assert _value(report, "memory_breaker_open", kind="device") is None, "never decided, so not shown as closed"


def test_breaker_of_a_dead_engine_is_not_decided() -> None:
    target = Feed(whole_run=False)
    for n in range(9):
        report = target.page(5.0 * n, engine_page(generation=1, waiting=3, usage=0.99))
    assert report.state is EngineState.STALLED
    assert _value(report, "memory_breaker_open", kind="kv") == 0
    assert not report.kv_breaker.decided


def test_state_and_availability_never_vanish_and_keep_the_model_name() -> None:
    target = Feed(whole_run=False)
    target.page(0.0, engine_page())
    for n in range(10):
        report = target.fail(5.0 + 5 * n)
    assert _value(report, "engine_state", state="down", model_name="m") == 1
    available = {dict(s.labels)["signal"]: s for s in availability(report, {})}
    assert len(available) == 9
    assert dict(available["token_jitter"].labels)["reason"] == Reason.CONNECT


def test_at_most_two_hundred_series_per_engine() -> None:
    from tests.pages import capture, feed

    report = feed([(0.0, capture("vllm-0.24.0-h200-load-before")), (20.0, capture("vllm-0.24.0-h200-load-after"))])
    assert len(target_samples(report)) + len(availability(report, {})) <= 200
