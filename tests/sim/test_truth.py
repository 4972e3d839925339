"""What the page says and what is true, for every scenario and version; and both against figures worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.sim.pages import VERSIONS, Samples, buckets, samples, value
from ufwatch.model import EngineState
from ufwatch.sim.engine import ServerDownError, SimEngine
from ufwatch.sim.journal import Truth
from ufwatch.sim.scenario import SCENARIOS, Scenario
from ufwatch.sim.schedule import Jittery, Steady, WithStalls

LOADED = ("steady", "jittery", "prefix_thrashing", "preempting", "two_api_servers", "spec_decode")
MEANS: dict[str, Callable[[Truth], tuple[float, ...]]] = {
    "vllm:time_to_first_token_seconds": lambda truth: truth.ttft_seconds,
    "vllm:e2e_request_latency_seconds": lambda truth: truth.e2e_seconds,
    "vllm:request_queue_time_seconds": lambda truth: truth.queue_seconds,
}


def engine_at(scenario: Scenario | str, at: float) -> SimEngine:
    engine = SimEngine(SCENARIOS[scenario] if isinstance(scenario, str) else scenario)
    engine.advance(at)
    return engine


def read(engine: SimEngine, version: str = "0.32.0") -> Samples:
    return samples(engine.page(version).decode())


def check_histograms(page: Samples, truth: Truth, itl: str) -> None:
    assert value(page, f"{itl}_count") == truth.interval_count
    assert value(page, f"{itl}_sum") == pytest.approx(truth.interval_sum, rel=1e-9)
    for family, pick in MEANS.items():
        values = pick(truth)
        assert value(page, f"{family}_count") == len(values)
        assert value(page, f"{family}_sum") == pytest.approx(math.fsum(values), rel=1e-9, abs=1e-12)
        for edge, counted in buckets(page, family):
            assert counted == sum(1 for observed in values if observed <= edge)
    assert value(page, "vllm:request_prefill_time_seconds_sum") == pytest.approx(truth.prefill_seconds, rel=1e-9)
    assert value(page, "vllm:request_decode_time_seconds_sum") == pytest.approx(truth.decode_seconds, rel=1e-9)


@pytest.mark.parametrize("name", LOADED)
@pytest.mark.parametrize("version", VERSIONS)
def test_page_counts_what_happened(name: str, version: str) -> None:
    engine = engine_at(name, 40.0)
    page, truth = read(engine, version), engine.truth(0.0, 40.0)
    known = {sample for sample, _ in page}
    assert truth.interval_count > 500
    itl = "vllm:inter_token_latency_seconds"
    check_histograms(page, truth, itl if f"{itl}_count" in known else "vllm:time_per_output_token_seconds")
    assert value(page, "vllm:generation_tokens_total") == truth.decode_tokens
    assert value(page, "vllm:request_success_total") == truth.requests_finished
    prompt = truth.prefill_tokens_computed + truth.prefill_tokens_cached
    if version != "0.8.5":
        assert value(page, "vllm:prompt_tokens_total") == prompt
        assert value(page, "vllm:num_preemptions_total") == truth.preemptions
    if "vllm:prompt_tokens_by_source_total" in known:
        by_source = "vllm:prompt_tokens_by_source_total"
        assert value(page, by_source, source="local_compute") == truth.prefill_tokens_computed
        assert value(page, by_source, source="local_cache_hit") == truth.prefill_tokens_cached
    if version in ("0.28.0", "0.32.0"):
        assert value(page, "vllm:prefix_cache_queries_total") == truth.lookup_tokens
        hits = value(page, "vllm:prefix_cache_hits_total")
        assert truth.lookup_tokens - hits == truth.miss_tokens
    if "vllm:kv_block_lifetime_seconds_count" in known:
        assert value(page, "vllm:kv_block_lifetime_seconds_count") == truth.recycles


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"restarting", "no_stats"}))
def test_any_window_is_a_difference_of_pages(name: str) -> None:
    engine = engine_at(name, 7.3)
    before = read(engine)
    engine.advance(21.9)
    after, truth = read(engine), engine.truth(7.3, 21.9)

    def delta(sample: str) -> float:
        return value(after, sample) - value(before, sample)

    assert delta("vllm:inter_token_latency_seconds_count") == truth.interval_count
    assert delta("vllm:inter_token_latency_seconds_sum") == pytest.approx(truth.interval_sum, abs=1e-9)
    assert delta("vllm:generation_tokens_total") == truth.decode_tokens
    assert delta("vllm:num_preemptions_total") == truth.preemptions
    assert delta("vllm:prefix_cache_queries_total") == truth.lookup_tokens
    assert delta("vllm:time_to_first_token_seconds_count") == len(truth.ttft_seconds)


def test_one_request_by_hand() -> None:
    engine = SimEngine(Scenario(name="by_hand", schedule=Steady(0.125), prefill_seconds_per_token=0.0625))
    engine.advance(1.0)
    heard: list[tuple[float, int]] = []
    engine.submit(["a", "b", "c", "d"], 5, lambda at, count: heard.append((at, count)))
    assert engine.next_step_end == 1.375
    engine.advance(10.0)
    # The first step takes 0.125 s and 4 x 0.0625 s for the prompt; the four after it 0.125 s each.
    assert heard == [(1.375, 1), (1.5, 1), (1.625, 1), (1.75, 1), (1.875, 1)]
    truth = engine.truth(1.0, 10.0)
    assert (truth.interval_count, truth.interval_sum, truth.interval_square_sum) == (4, 0.5, 0.0625)
    assert truth.interval_stddev == 0.0
    assert (truth.prefill_tokens_computed, truth.decode_tokens, truth.requests_finished) == (4, 5, 1)
    assert (truth.ttft_seconds, truth.e2e_seconds, truth.queue_seconds) == ((0.375,), (0.875,), (0.0,))
    assert (truth.prefill_seconds, truth.decode_seconds) == (0.375, 0.5)
    assert (truth.lookup_tokens, truth.miss_tokens, truth.evictions, truth.recycles) == (4, 4, 0, 0)
    assert truth.state is EngineState.IDLE
    assert engine.truth(1.0, 1.6).state is EngineState.SERVING
    # A window is open at its start and closed at its end.
    assert engine.truth(1.5, 1.625).interval_count == 1
    assert engine.truth(1.625, 1.625).interval_count == 0
    page = read(engine)
    assert dict(buckets(page, "vllm:inter_token_latency_seconds"))[0.15] == 4
    assert dict(buckets(page, "vllm:inter_token_latency_seconds"))[0.1] == 0
    assert value(page, "vllm:iteration_tokens_total_sum") == 9
    assert value(page, "vllm:iteration_tokens_total_count") == 5


def test_two_requests_share_steps_and_a_prompt() -> None:
    engine = SimEngine(Scenario(name="by_hand", schedule=Steady(0.25), prefill_seconds_per_token=0.0, block_size=4))
    words = [str(number) for number in range(10)]
    engine.submit(words, 3, lambda *_: None)
    engine.advance(0.3)
    engine.submit([*words, "tail"], 2, lambda *_: None)
    engine.advance(5.0)
    truth = engine.truth(0.0, 5.0)
    # The second waits for the step under way (to 0.5 s), finds two full blocks of four, and computes three tokens.
    assert (truth.lookup_tokens, truth.miss_tokens) == (21, 13)
    assert (truth.prefill_tokens_computed, truth.prefill_tokens_cached) == (13, 8)
    assert truth.queue_seconds == pytest.approx((0.0, 0.2))
    assert truth.ttft_seconds == pytest.approx((0.25, 0.45))
    assert (truth.interval_count, truth.interval_sum) == (3, 0.75)


def test_stddev_is_that_of_the_pooled_intervals() -> None:
    engine = engine_at("jittery", 60.0)
    truth = engine.truth(20.0, 60.0)
    mean = truth.interval_sum / truth.interval_count
    variance = truth.interval_square_sum / truth.interval_count - mean * mean
    assert truth.interval_stddev == pytest.approx(math.sqrt(variance), rel=1e-6)
    assert truth.itl_mean == pytest.approx(mean)


def test_intervals_are_tokens_less_first_tokens_unless_speculating() -> None:
    truth = engine_at("preempting", 30.0).truth(0.0, 30.0)
    assert truth.interval_count == truth.decode_tokens - len(truth.ttft_seconds)
    speculated = engine_at("spec_decode", 30.0).truth(0.0, 30.0)
    assert speculated.interval_count < 0.6 * (speculated.decode_tokens - len(speculated.ttft_seconds))


def test_speculation_counts_add_up() -> None:
    engine = engine_at("spec_decode", 30.0)
    page, truth = read(engine), engine.truth(0.0, 30.0)
    drafts = value(page, "vllm:spec_decode_num_drafts_total")
    accepted = value(page, "vllm:spec_decode_num_accepted_tokens_total")
    assert drafts == truth.interval_count
    assert accepted == truth.decode_tokens - truth.interval_count - len(truth.ttft_seconds)
    assert accepted == value(page, "vllm:spec_decode_num_accepted_tokens_per_pos_total")
    assert value(page, "vllm:spec_decode_num_draft_tokens_total") == 3 * drafts


def test_retries_inflate_prefix_counters_before_0_27_1_only() -> None:
    engine = engine_at("preempting", 60.0)
    truth = engine.truth(0.0, 60.0)
    assert truth.preemptions > 20
    queries = {version: value(read(engine, version), "vllm:prefix_cache_queries_total") for version in VERSIONS[1:]}
    assert queries["0.28.0"] == queries["0.32.0"] == truth.lookup_tokens
    assert queries["0.11.2"] == queries["0.24.0"] > 4 * truth.lookup_tokens
    assert queries["0.10.2"] == queries["0.9.2"] > 2 * queries["0.11.2"]


def test_v0_counts_recomputed_prompts() -> None:
    engine = engine_at("preempting", 60.0)
    counted = value(read(engine, "0.8.5"), "vllm:prompt_tokens_total")
    assert counted > 1.5 * engine.truth(0.0, 60.0).lookup_tokens


def test_thrashing_evicts_and_recycles() -> None:
    truth = engine_at("prefix_thrashing", 60.0).truth(30.0, 60.0)
    assert truth.miss_ratio == 1.0
    assert truth.recycles >= truth.evictions > 1000
    assert truth.preemptions == 0
    assert truth.evictions_per_second == truth.evictions / 30


def test_preempting_recomputes_and_fills_the_cache() -> None:
    engine = engine_at("preempting", 60.0)
    truth = engine.truth(0.0, 60.0)
    assert truth.prefill_tokens_recomputed > 1000
    page = read(engine)
    assert value(page, "vllm:kv_cache_usage_perc") > 0.8
    assert value(page, "vllm:num_requests_waiting") > 0
    assert truth.kv_blocks == 401


def test_restart_resets_counters_and_moves_the_start_time() -> None:
    scenario = replace(SCENARIOS["restarting"], restart_every_seconds=10.0, restart_down_seconds=2.0)
    engine = engine_at(scenario, 9.9)
    before = read(engine)
    engine.advance(11.0)
    assert not engine.up
    assert engine.state() is EngineState.DOWN
    with pytest.raises(ServerDownError):
        engine.page("0.32.0")
    with pytest.raises(ServerDownError):
        engine.submit(["a"], 1, lambda *_: None)
    engine.advance(12.0)
    after = read(engine)
    assert value(after, "vllm:generation_tokens_total") == 0 < value(before, "vllm:generation_tokens_total")
    started = "process_start_time_seconds"
    assert value(after, started) - value(before, started) == pytest.approx(12.0)
    assert value(after, "vllm:generation_tokens_created") > value(before, "vllm:generation_tokens_created")
    engine.advance(19.0)
    # Truth runs on across the restart, the page does not.
    assert engine.truth(0.0, 19.0).decode_tokens == value(before, "vllm:generation_tokens_total") + sum(
        engine.truth(start, stop).decode_tokens for start, stop in ((9.9, 11.0), (11.0, 19.0))
    )
    assert engine.truth(12.0, 19.0).decode_tokens == value(read(engine), "vllm:generation_tokens_total")


def test_restart_tells_those_who_listen() -> None:
    engine = engine_at("idle", 1.0)
    heard: list[int] = []
    engine.submit(["a"], 1000, lambda _, count: heard.append(count))
    engine.advance(2.0)
    engine.restart(0.0)
    assert engine.up
    assert heard[-1] == 0
    engine.advance(3.0)
    assert heard[-1] == 0
    assert engine.truth(2.0, 3.0).decode_tokens == 0


def test_a_stalled_engine_keeps_its_gauges_and_counts_nothing() -> None:
    engine = engine_at("stalled", 25.0)
    first = engine.page("0.32.0")
    engine.advance(80.0)
    moving = b"process_cpu_seconds_total "
    assert [line for line in engine.page("0.32.0").splitlines() if not line.startswith(moving)] == [
        line for line in first.splitlines() if not line.startswith(moving)
    ]
    assert value(read(engine), "vllm:num_requests_running") > 0
    assert engine.truth(19.0, 80.0).decode_tokens > 0
    assert engine.truth(20.0, 80.0).decode_tokens == 0
    assert engine.state() is EngineState.STALLED
    assert engine.truth(0.0, 19.0).state is EngineState.SERVING
    assert engine.next_step_end == math.inf


def test_an_engine_drains_and_sleeps() -> None:
    engine = engine_at("asleep", 60.0)
    page = read(engine)
    assert engine.asleep
    assert engine.state() is EngineState.ASLEEP
    assert value(page, "vllm:engine_sleep_state", sleep_state="awake") == 0
    assert value(page, "vllm:engine_sleep_state", sleep_state="weights_offloaded") == 1
    assert value(page, "vllm:num_requests_running") == 0
    assert engine.truth(0.0, 20.0).state is EngineState.SERVING


def test_engines_count_apart_and_add_up() -> None:
    engine = engine_at("two_engines", 30.0)
    page = read(engine)
    parts = [engine.truth(0.0, 30.0, engine=index) for index in (0, 1)]
    for index, part in enumerate(parts):
        assert value(page, "vllm:generation_tokens_total", engine=str(index)) == part.decode_tokens > 0
        assert value(page, "vllm:inter_token_latency_seconds_count", engine=str(index)) == part.interval_count
    assert engine.truth(0.0, 30.0).decode_tokens == sum(part.decode_tokens for part in parts)


def test_an_aborted_request_leaves_no_trace_in_the_histograms() -> None:
    engine = engine_at("idle", 1.0)
    request = engine.submit(["a"] * 20, 100, lambda *_: None)
    engine.advance(2.0)
    engine.abort(request)
    engine.abort(request)
    engine.advance(3.0)
    page, truth = read(engine), engine.truth(1.0, 3.0)
    assert truth.requests_aborted == 1
    assert truth.requests_finished == 0
    assert value(page, "vllm:generation_tokens_total") == truth.decode_tokens > 10
    assert value(page, "vllm:prompt_tokens_total") == 20
    assert value(page, "vllm:request_prompt_tokens_count") == 0
    assert value(page, "vllm:num_requests_running") == 0
    assert value(page, "vllm:kv_cache_usage_perc") == 0


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_same_seed_gives_the_same_page_however_time_is_cut(name: str) -> None:
    at_once = engine_at(name, 33.0)
    in_pieces = SimEngine(SCENARIOS[name])
    for tenth in range(0, 330, 7):
        in_pieces.advance(tenth / 10)
    in_pieces.advance(33.0)
    assert at_once.page("0.32.0") == in_pieces.page("0.32.0")
    assert at_once.truth(5.0, 33.0) == in_pieces.truth(5.0, 33.0)


def test_another_seed_gives_another_page() -> None:
    other = replace(SCENARIOS["jittery"], seed=99)
    assert engine_at(other, 20.0).truth(0.0, 20.0) != engine_at("jittery", 20.0).truth(0.0, 20.0)


def test_memory_is_bounded_and_forgotten_windows_are_refused() -> None:
    scenario = replace(SCENARIOS["preempting"], retention_seconds=20.0)
    engine = engine_at(scenario, 400.0)
    truth = engine.truth(390.0, 400.0)
    assert truth.interval_count > 1000
    with pytest.raises(ValueError, match="retention"):
        engine.truth(300.0, 400.0)
    with pytest.raises(ValueError, match="happened"):
        engine.truth(390.0, 401.0)
    with pytest.raises(ValueError, match="forwards"):
        engine.truth(400.0, 390.0)


def test_time_runs_forwards() -> None:
    with pytest.raises(ValueError, match="forwards"):
        engine_at("idle", 2.0).advance(1.0)


def test_schedules_have_the_moments_they_promise() -> None:
    from random import Random

    random = Random(3)
    drawn = [Jittery(0.05, 0.02).draw(random) for _ in range(20_000)]
    mean = math.fsum(drawn) / len(drawn)
    assert mean == pytest.approx(0.05, rel=0.02)
    assert math.sqrt(math.fsum((x - mean) ** 2 for x in drawn) / len(drawn)) == pytest.approx(0.02, rel=0.05)
    stalls = [WithStalls(Steady(0.1), every=10, stall_seconds=1.0).draw(random) for _ in range(20_000)]
    assert {round(value, 6) for value in stalls} == {0.1, 1.1}
    assert sum(value > 1 for value in stalls) / len(stalls) == pytest.approx(0.1, rel=0.1)
    with pytest.raises(ValueError, match="positive"):
        Steady(0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engines": 0}, "at least one engine"),
        ({"arrivals_per_second": -1.0}, "not negative"),
        ({"concurrency": 2}, "exclude"),
        ({"prompt_tokens": (5, 3)}, "range"),
        ({"output_tokens": (0, 3)}, "range"),
        ({"max_model_len": 100}, "longest request"),
        ({"num_gpu_blocks": 10}, "cannot hold"),
        ({"restart_every_seconds": 1.0}, "never be up"),
    ],
)
def test_impossible_scenarios_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SCENARIOS["steady"], **change)  # type: ignore[arg-type]
