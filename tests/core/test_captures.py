"""Every recorded page gives the values written down here, taken from the pages by hand or from what a client saw."""

from __future__ import annotations

import pytest

from tests.pages import CASES, GPU, VLLM, Feed, capture, feed, reading
from ufwatch.decode.vllm import PageKind
from ufwatch.model import EngineState, Quality, Reason

LOAD = [(0.0, "vllm-0.24.0-h200-load-before"), (20.0, "vllm-0.24.0-h200-load-after")]


def _h200(*pages: tuple[float, str]) -> list[tuple[float, bytes]]:
    return [(at, capture(name)) for at, name in pages]


def test_jitter_of_the_h200_under_load_contains_what_the_client_saw() -> None:
    jitter = reading(feed(_h200(*LOAD)), "token_jitter")
    assert jitter.low is not None
    assert jitter.high is not None
    assert jitter.value is not None
    assert jitter.low <= 0.003164949309065358 <= jitter.high
    assert jitter.low == pytest.approx(0.00207, abs=1e-5)
    assert jitter.high == pytest.approx(0.00785, abs=1e-5)
    assert jitter.value == pytest.approx((jitter.low * jitter.high) ** 0.5)
    assert jitter.quality is Quality.BOUNDED


def test_jitter_of_a_single_stream_lies_in_one_bucket_and_is_not_claimed() -> None:
    pages = _h200((0.0, "vllm-0.24.0-h200-load-after"), (20.0, "vllm-0.24.0-h200-single-after"))
    jitter = reading(feed(pages), "token_jitter")
    assert (jitter.value, jitter.reason) == (None, Reason.ONE_BUCKET)
    assert jitter.high is not None
    assert jitter.high > 0.00042, "a client saw 0.42 ms"


def test_h200_under_load_other_signals() -> None:
    report = feed(_h200(*LOAD))
    assert reading(report, "page_table_miss", unit="token").value == pytest.approx(833682 / 834082)
    ratio = reading(report, "prefill_decode", by="tokens")
    assert ratio.value == pytest.approx(833682 / 149398)
    assert ratio.quality is Quality.EXACT
    evictions = reading(report, "kv_evictions")
    assert evictions.value == pytest.approx(1441 / 20)
    assert (evictions.source, evictions.quality) == ("recycles", Quality.PROXY)
    assert reading(report, "itl_mean").value == pytest.approx(573.3467051250313 / 147852)
    assert reading(report, "tpot_p99").reason is Reason.FIRST_BUCKET
    ttft = reading(report, "ttft_p99")
    assert (ttft.value, ttft.low, ttft.high, ttft.reason) == (None, 0.1, 0.25, Reason.EDGES_ONLY)
    assert report.state is EngineState.SERVING


def test_h200_preempting() -> None:
    pages = _h200((0.0, "vllm-0.24.0-h200-preempt-before"), (12.0, "vllm-0.24.0-h200-preempt-after"))
    report = feed(pages)
    assert reading(report, "preemptions_rate").value == pytest.approx(191 / 12)
    assert reading(report, "kv_evictions").value == pytest.approx(31619 / 12), "recycles, the page's own count"
    assert reading(report, "prefill_decode", by="tokens").quality is Quality.ESTIMATE, "redone work is on no counter"


# version: generation tokens at idle, after `load` (12 requests of 20) and after `preempt` (24 more of 150)
@pytest.mark.parametrize("version", ["0.8.5", "0.10.2", "0.11.2", "0.13.0", "0.16.0", "0.20.2", "0.24.0", "0.28.0"])
def test_each_version_shows_the_load_it_had(version: str) -> None:
    pages = [(60.0 * n, capture(f"metrics-{version}-{load}")) for n, load in enumerate(("idle", "load", "preempt"))]
    report = feed(pages)
    assert reading(report, "generation_tokens_rate").value == pytest.approx(3840 / 120)
    assert report.engines[0].track is not None
    intervals = report.engines[0].track.bucket_increase
    span = report.engines[0].track.span()
    assert span is not None
    grown = intervals(span, 1)
    assert grown is not None
    # One interval per token but the first of each of the 36 requests; V0 also leaves out the one after a preemption.
    assert grown[1][-1] == 3840 - 36 - (117 if version == "0.8.5" else 0)
    jitter = reading(report, "token_jitter")
    assert jitter.value is not None
    assert jitter.low is not None
    assert jitter.high is not None
    assert 0 < jitter.low <= jitter.value <= jitter.high


# 3412 prompt tokens went in, 352 of them from the cache, whatever the version; only V0 counts recomputed ones as well.
@pytest.mark.parametrize("version", ["0.16.0", "0.20.2", "0.24.0", "0.28.0"])
def test_miss_rate_since_0_16_is_the_truth(version: str) -> None:
    pages = [(60.0 * n, capture(f"metrics-{version}-{load}")) for n, load in enumerate(("idle", "load", "preempt"))]
    miss = reading(feed(pages), "page_table_miss", unit="token")
    assert miss.value == pytest.approx(3060 / 3412)
    assert miss.quality is Quality.EXACT
    assert miss.source == "prompt_tokens_by_source"


@pytest.mark.parametrize("version", ["0.10.2", "0.11.2", "0.13.0"])
def test_miss_rate_before_0_16_is_refused_where_retries_were_counted(version: str) -> None:
    pages = [(60.0 * n, capture(f"metrics-{version}-{load}")) for n, load in enumerate(("load", "preempt"))]
    miss = reading(feed(pages), "page_table_miss", unit="token")
    assert (miss.value, miss.reason, miss.source) == (None, Reason.RETRIES_COUNTED, "prefix_cache")


def test_v0_has_no_prefix_counters() -> None:
    report = feed([(0.0, capture("metrics-0.8.5-idle")), (60.0, capture("metrics-0.8.5-load"))])
    assert reading(report, "page_table_miss", unit="token").reason is Reason.NO_SOURCE
    assert reading(report, "generation_tokens_rate").value == pytest.approx(240 / 60), "children made on first use"


def test_v0_idle_page_of_one_family_is_an_idle_engine() -> None:
    report = feed([(0.0, capture("metrics-0.8.5-idle")), (5.0, capture("metrics-0.8.5-idle"))])
    assert report.state is EngineState.IDLE
    assert all(r.value is None for r in report.engines[0].readings)


def test_latest_version_after_its_second_load() -> None:
    report = feed([(0.0, capture("metrics-0.32.0-preempt")), (60.0, capture("metrics-0.32.0-load"))])
    assert reading(report, "generation_tokens_rate").value == pytest.approx((5940 - 4500) / 60)
    jitter = reading(report, "token_jitter")
    assert jitter.low is not None
    assert jitter.high is not None
    assert jitter.low <= 0.0326 <= jitter.high, "the exact value of a stat logger in the same run"
    assert reading(report, "kv_evictions").value == pytest.approx((418 - 321) / 60)


def test_exact_jitter_of_the_preempting_run_lies_within() -> None:
    jitter = reading(
        feed([(0.0, capture("metrics-0.32.0-idle")), (60.0, capture("metrics-0.32.0-preempt"))]), "token_jitter"
    )
    assert jitter.low is not None
    assert jitter.high is not None
    assert jitter.low <= 0.1116 <= jitter.high
    assert jitter.low == pytest.approx(0.0830, abs=1e-4)
    assert jitter.high == pytest.approx(0.1738, abs=1e-4)


def test_data_parallel_engines_stay_apart() -> None:
    target = Feed()
    report = target.page(0.0, capture("metrics-0.32.0-load-dp2"))
    assert [engine.engine for engine in report.engines] == ["0", "1"]
    assert {engine.model_name for engine in report.engines} == {"tiny"}


def test_two_api_servers_have_no_identity_and_finer_buckets() -> None:
    page = Feed().decode(capture("metrics-0.32.0-load-apiservers2"))
    (engine,) = page.engines
    assert page.process_start is None
    assert engine.gauge("created") is None
    assert engine.counter("generation_tokens") == 1440
    itl = engine.shape.buckets[1]
    assert itl is not None
    assert len(itl.edges) == 30


def test_speculative_decoding_counts_steps() -> None:
    report = feed([(0.0, capture("metrics-0.32.0-load-specdecode"))])
    track = report.engines[0].track
    assert track is not None
    assert track.step_unit
    assert track.shape.has("draft_tokens")


def test_statistics_switched_off_is_up_without_signals() -> None:
    report = feed([(at, capture("metrics-0.32.0-load-nostats")) for at in (0.0, 5.0)])
    assert (report.up, report.state, report.reason) == (True, None, Reason.STATS_DISABLED)
    assert {r.reason for e in report.engines for r in e.readings} == {Reason.STATS_DISABLED}


def test_dead_engine_is_stalled_after_thirty_seconds_and_shows_no_rates() -> None:
    a, b = capture("metrics-0.9.2-enginedead-a"), capture("metrics-0.9.2-enginedead-b")
    target = Feed()
    assert target.page(0.0, a).state is EngineState.SERVING
    assert target.page(10.0, b).state is EngineState.SERVING
    report = target.page(30.0, b)
    assert report.state is EngineState.STALLED
    assert reading(report, "running").value == 2
    assert reading(report, "waiting").value == 3
    for signal in ("token_jitter", "ttft_mean", "generation_tokens_rate", "preemptions_rate"):
        assert reading(report, signal).value is None
        assert reading(report, signal).reason is Reason.STALLED


@pytest.mark.parametrize("path", sorted([*VLLM.glob("*.prom"), *GPU.glob("*.prom")]), ids=lambda path: path.stem)
def test_a_repeated_page_invents_nothing(path: object) -> None:
    assert hasattr(path, "read_bytes")
    body: bytes = path.read_bytes()
    report = feed([(0.0, body), (5.0, body)])
    for engine in report.engines:
        for r in engine.readings:
            rate = r.signal.endswith("_rate") or r.signal in ("kv_evictions", "prompt_tokens_unmatched")
            assert r.value is None or r.value == 0.0 or not rate, r
            assert r.value is None or r.value >= 0.0


# Cases: small inputs whose right answers are written beside them.


def test_b10_old_and_new_names_give_the_same_signals() -> None:
    folder = CASES / "b10_renamed_metrics"
    answers = []
    for era in ("old", "new"):
        report = feed(
            [(0.0, (folder / f"{era}_t0.prom").read_bytes()), (30.0, (folder / f"{era}_t1.prom").read_bytes())]
        )
        assert reading(report, "kv_usage").value == pytest.approx(0.42)
        assert reading(report, "page_table_miss", unit="token").value == pytest.approx(0.75)
        assert reading(report, "tpot_mean").value == pytest.approx(0.025)
        answers.append([(r.signal, r.value, r.reason) for r in report.engines[0].readings])
    assert answers[0] == answers[1]


def test_b10_neither_name_is_absent_with_a_reason() -> None:
    body = (CASES / "b10_renamed_metrics" / "none_t0.prom").read_bytes()
    report = feed([(0.0, body), (30.0, body)])
    for r in (reading(report, "kv_usage"), reading(report, "page_table_miss", unit="token")):
        assert (r.value, r.reason) == (None, Reason.NO_SOURCE)


def test_b13_quantile_in_the_first_bucket_is_flagged() -> None:
    folder = CASES / "b13_first_bucket"
    report = feed([(0.0, (folder / "t0.prom").read_bytes()), (60.0, (folder / "t1.prom").read_bytes())])
    assert reading(report, "e2e_mean").value == pytest.approx(0.04)
    p99 = reading(report, "e2e_p99")
    assert (p99.value, p99.low, p99.high, p99.reason) == (None, 0.0, 0.3, Reason.FIRST_BUCKET)


def test_b17_aborted_requests_are_in_the_ratio_and_told_apart() -> None:
    folder = CASES / "b17_aborts"
    report = feed([(0.0, (folder / "t0.prom").read_bytes()), (20.0, (folder / "t1.prom").read_bytes())])
    assert reading(report, "prefill_decode", by="tokens").value == pytest.approx(200.0)
    assert reading(report, "prompt_tokens_unmatched").value == 2400


def test_d04_workers_in_turn_have_no_rate() -> None:
    pages = [(5.0 * n, (CASES / "d04_workers_in_turn" / f"scrape_{n}.prom").read_bytes()) for n in range(6)]
    rate = reading(feed(pages), "generation_tokens_rate")
    assert (rate.value, rate.reason) == (None, Reason.INCONSISTENT)
    target = Feed()
    for at, body in pages:
        report = target.page(at, body)
        track = report.engines[0].track
        assert track is not None
        assert track.totals[1] == 0.0, "not one token may be counted"


def test_a17_the_scrape_after_a_cut_one_continues() -> None:
    folder = CASES / "a17_cut_body"
    target = Feed(whole_run=True)
    target.page(0.0, (folder / "scrape_0.prom").read_bytes())
    failed = target.fail(10.0, Reason.TRUNCATED)
    assert (failed.up, failed.reason) == (False, Reason.TRUNCATED)
    report = target.page(20.0, (folder / "scrape_2.prom").read_bytes())
    track = report.engines[0].track
    assert track is not None
    assert track.totals[0] == 425
    assert track.totals[1] == 789


def test_stats_page_kind() -> None:
    assert Feed().decode(capture("metrics-0.32.0-load-nostats")).kind is PageKind.STATS_DISABLED
    assert Feed().decode(b"# TYPE x counter\nx_total 1\n").kind is PageKind.NOT_AN_ENGINE
