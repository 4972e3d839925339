"""Scenes of alerts 1–7: what a server does to its requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.alerts.series import AGENT, CARD, ENGINE, TARGET, Page, series
from tests.alerts.stage import LATE, Scene, Stage


def jitter(step: float) -> Iterator[Scene]:
    alert = "UfwatchTokenJitterHigh"
    s = Stage(step, 16)
    begin = 180.0
    window = max(60.0, 2.5 * step)
    bad = s.page() | s.tokens(lambda t: 0.062 if t > begin else 0.02)
    yield Scene(
        "five minutes of jitter",
        bad,
        step,
        alert,
        begin + 240 + window,
        begin + 255 + 2 * window + step,
        miss_at=begin + 120,
    )
    strong = s.page() | s.tokens(lambda t: 0.2 if begin < t <= begin + 225 else 0.02)
    yield Scene("strong jitter for under four minutes", strong, step)
    dips = s.page() | s.tokens(
        lambda t: 0.02 if any(m < t <= m + max(60, 2 * step) for m in (120, 300, 480, 660, 840)) else 0.062
    )
    yield Scene("jitter with a calm minute", dips, step)
    trickle = s.page() | s.tokens(lambda _: 0.2, per_second=1.5)
    yield Scene("jitter of a trickle of tokens", trickle, step)
    spike = s.page() | s.tokens(lambda t: 2.0 if begin < t <= begin + max(20, step) else 0.02)
    yield Scene("one spike", spike, step)
    other = ENGINE.replace('"0"', '"1"')
    two = s.page() | s.tokens(lambda _: 0.02) | s.tokens(lambda t: 0.07 if t > begin else 0.02, 20.0, other)
    yield Scene("one bad engine of two", two, step, alert, begin + 240 + window, begin + 255 + 2 * window + step)
    burst = s.page() | s.tokens(lambda _: 0.2, per_second=50.0)
    for values in burst.values():
        values[round(180 / step) :] = [values[round(180 / step)]] * (len(values) - round(180 / step))
    if step <= 30:
        yield Scene("three minutes of jitter and then nothing", burst, step)


def _lookups(s: Stage, unit: str, source: str, per_second: float, share: float) -> Page:
    labels = {"unit": unit, "source": source}
    return {
        series("page_table_lookups_total", **labels): s.count(per_second),
        series("page_table_misses_total", **labels): s.count(per_second * share),
    }


def miss(step: float) -> Iterator[Scene]:
    alert = "UfwatchPageTableMissHigh"
    s = Stage(step, 12)
    block = s.page() | _lookups(s, "block", "engine", 100, 0.5)
    yield Scene("blocks of running requests missing", block, step, alert, 285, 345 + step, miss_at=240)
    yield Scene("few block look-ups", s.page() | _lookups(s, "block", "engine", 2, 0.5), step)
    yield Scene("block misses under the limit", s.page() | _lookups(s, "block", "engine", 100, 0.1), step)
    token, probe = _lookups(s, "token", "prefix_cache", 500, 0.75), _lookups(s, "probe", "plugin", 500, 0.9995)
    usual = {series("page_table_miss_baseline_ratio", TARGET): s.level(0.5)}
    high = {series("page_table_miss_baseline_ratio", TARGET): s.level(0.7)}
    slow = s.burning("ttft", 0.95, 0.1, 1.0)
    yield Scene(
        "tokens missing over the baseline",
        s.page() | token | usual | slow,
        step,
        alert,
        285,
        420 + step,
        miss_at=240,
        companions=LATE,
    )
    yield Scene("tokens missing as usual", s.page() | token | high | slow, step, companions=LATE)
    yield Scene("tokens missing and nothing late", s.page() | token | usual | s.burning("ttft", 0.95, 0.01), step)
    yield Scene(
        "unique prompts, no baseline",
        s.page() | _lookups(s, "token", "prefix_cache", 500, 0.9995) | slow,
        step,
        companions=LATE,
    )
    yield Scene("probes", s.page() | probe | usual | slow, step, companions=LATE)


def _cache(s: Stage, evictions: float, preemptions: float, usage: float = 0.5, waiting: float = 0.0) -> Page:
    return {
        series("kv_evictions_total", source="recycles"): s.count(evictions),
        series("kv_blocks", source="vllm"): s.level(1000.0),
        series("kv_cache_usage_ratio", source="vllm"): s.level(usage),
        series("requests_waiting"): s.level(waiting),
        series("preemptions_total"): s.count(preemptions),
    }


def thrashing(step: float) -> Iterator[Scene]:
    alert = "UfwatchKvThrashing"
    s = Stage(step, 16)
    yield Scene("preemptions", s.page() | _cache(s, 50, 0.125), step, alert, 660, 720 + step, miss_at=400)
    yield Scene(
        "a full cache with a queue", s.page() | _cache(s, 50, 0, 0.96, 5), step, alert, 660, 720 + step, miss_at=400
    )
    yield Scene("a busy prefix cache", s.page() | _cache(s, 1500, 0, 0.9, 0), step)
    yield Scene("a full cache that is not replaced", s.page() | _cache(s, 5, 0.125, 0.99, 20), step)


def _allocations(s: Stage, attempts: float, failures: float | Callable[[float], float]) -> Page:
    return {
        series("pinned_alloc_attempts_total", TARGET, source="textfile"): s.count(attempts),
        series("pinned_alloc_failures_total", TARGET, code="memory", source="textfile"): s.count(failures),
        series("pinned_alloc_failures_total", TARGET, code="other", source="textfile"): s.count(0.0),
    }


def pinned(step: float) -> Iterator[Scene]:
    alert = "UfwatchPinnedAllocFailing"
    s = Stage(step, 14)
    failing = s.page() | _allocations(s, 1, lambda t: 0.125 if t > 240 else 0)
    yield Scene("allocations refused", failing, step, alert, 240, 450 + step, miss_at=330)
    two = s.page() | _allocations(s, 0.125, lambda t: 1.0 / step if t in (5 * step, 7 * step) else 0)
    yield Scene("two of few allocations refused", two, step)
    yield Scene("few of many refused", s.page() | _allocations(s, 100, 0.125), step)


def _graphs(s: Stage, started: float, per_second: float | Callable[[float], float]) -> Page:
    return {
        series("graph_compile_seconds_total", TARGET, phase="compile", cache="cold", source="textfile"): s.count(
            per_second
        ),
        series("engine_start_time_seconds"): s.level(started),
    }


def compile(step: float) -> Iterator[Scene]:
    alert = "UfwatchGraphCompileSlow"
    s = Stage(step, 34)
    old = s.page() | _graphs(s, -7200, lambda t: 0.5 if 600 < t <= 900 else 0)
    yield Scene("compiling long after the start", old, step, alert, 780, 960 + step, miss_at=870)
    yield Scene("compiling a little", s.page() | _graphs(s, -7200, lambda t: 0.5 if 600 < t <= 780 else 0), step)
    start = s.page() | _graphs(s, 0, lambda t: 0.5 if 1500 < t <= 2000 else 0)
    yield Scene("a start that compiles at minute 25", start, step)


def engine_state(s: Stage, state: str, on: Callable[[float], bool]) -> Page:
    found = {
        series("engine_state", state=name): s.level(0.0)
        for name in ("starting", "serving", "stalled", "asleep", "down")
    }
    found[series("engine_state", state="idle")] = s.switched(lambda t: not on(t))
    found[series("engine_state", state=state)] = s.switched(on)
    return found


def _cards(s: Stage, busy: dict[str, float], mapped: tuple[str, ...]) -> Page:
    found: Page = {}
    for uuid in mapped:
        found[series("target_gpu_info", f'{AGENT},target="chat",gpu="0",uuid="{uuid}"', mig="")] = s.level(1.0)
    for uuid, value in busy.items():
        found[series("sm_utilization_ratio", CARD.replace("GPU-1", uuid), source="gpm")] = s.level(value)
    return found


def stalled(step: float) -> Iterator[Scene]:
    alert = "UfwatchEngineStalled"
    s = Stage(step, 10)
    stuck = s.page() | engine_state(s, "stalled", lambda t: t >= 240)
    yield Scene("an engine stands still", stuck, step, alert, 285, 330 + 3.5 * step, miss_at=270)
    yield Scene("a moment of standing still", s.page() | engine_state(s, "stalled", lambda t: t == 240), step)
    s = Stage(step, 40)
    slow = {
        series("requests_waiting"): s.level(8.0),
        series("decode_tokens_total", source="prompt_tokens"): s.count(lambda t: 1000 if t <= 1200 else 20),
    }
    fast = {**slow, series("decode_tokens_total", source="prompt_tokens"): s.count(1000)}
    two = ("GPU-1", "GPU-2")
    idle = _cards(s, {"GPU-1": 0.02, "GPU-2": 0.03}, two)
    yield Scene("idle cards beside a queue", s.page() | slow | idle, step, alert, 1290, 1650, miss_at=1500)
    yield Scene("one busy card of two", s.page() | slow | _cards(s, {"GPU-1": 0.02, "GPU-2": 0.8}, two), step)
    yield Scene("one card of two not measured", s.page() | slow | _cards(s, {"GPU-1": 0.02}, two), step)
    yield Scene("a sensor at 0 under load", s.page() | fast | idle, step)
    nobody = {**slow, series("requests_waiting"): s.level(0.0)}
    yield Scene("idle cards and nobody waits", s.page() | nobody | idle, step)


def imbalance(step: float) -> Iterator[Scene]:
    alert = "UfwatchPrefillDecodeImbalance"
    s = Stage(step, 24)
    prefill = {
        series("prefill_seconds_total", source="request_seconds"): s.count(4.0),
        series("decode_seconds_total", source="request_seconds"): s.count(1.0),
    }
    late = s.burning("ttft", 0.95, 0.1, 1.0)
    yield Scene(
        "long prefill and late tokens",
        s.page() | prefill | late,
        step,
        alert,
        885,
        1080 + step,
        miss_at=600,
        companions=LATE,
    )
    yield Scene("long prompts alone", s.page() | prefill | s.burning("ttft", 0.95, 0.01), step)
    yield Scene("late tokens of another cause", s.page() | late, step, companions=LATE)
