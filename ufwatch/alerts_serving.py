"""Alerts 1–7: what a server does to its requests. Floor 1: pure."""

from __future__ import annotations

from ufwatch import recordings as rec
from ufwatch.alert_words import SHOWN_TARGET, WHO, burning, ms, percent, preempted
from ufwatch.rule_forms import (
    ENGINE,
    ON_TARGET,
    SOURCE,
    TARGET,
    Alert,
    RuleOptions,
    both,
    by,
    either,
    highest,
    number,
    summed,
)


def jitter(options: RuleOptions) -> Alert:
    limit = options.thresholds.jitter
    return Alert(
        name="UfwatchTokenJitterHigh",
        severity="critical",
        expression=f"{rec.JITTER} > {number(limit)}",
        # Strong jitter shows in the window until it has left it, so that a longer window asks for a longer hold.
        hold=240 + options.jitter_window_seconds,
        keep=120,
        board="ufwatch-streaming",
        labels=SHOWN_TARGET,
        summary=f"Tokens of {WHO} arrive unevenly: {{{{ $value | humanizeDuration }}}} of jitter.",
        description=f"The standard deviation of the time between tokens has been over {ms(limit)} for five minutes; "
        "it is {{ $value | humanizeDuration }} now, of the worst engine. Readers see text stutter.",
        when=f"deviation of the token intervals over {ms(limit)} for 5 minutes, at 100 intervals a minute or more",
    )


def miss(options: RuleOptions) -> Alert:
    limit = options.thresholds.miss
    baseline = highest(TARGET, options.over("max_over_time", "page_table_miss_baseline_ratio", options.gauge_window))
    token = both(
        TARGET,
        f'{rec.MISS}{{unit="token"}} - on ({by(TARGET)}) group_left () {baseline} > {number(limit)}',
        burning(options, "ttft"),
    )
    return Alert(
        name="UfwatchPageTableMissHigh",
        severity="critical",
        expression=either(f'{rec.MISS}{{unit="block"}} > {number(limit)}', token),
        hold=300,
        keep=300,
        board="ufwatch-memory",
        labels=SHOWN_TARGET,
        summary='{{ if eq $labels.unit "block" }}Running requests of '
        + WHO
        + " lose their KV blocks.{{ else }}The prefix cache of "
        + WHO
        + " misses far more than usual.{{ end }}",
        description='{{ if eq $labels.unit "block" }}{{ $value | humanizePercentage }} of the block look-ups of '
        "running requests found no block over 5 minutes, so work is done twice."
        "{{ else }}The share of prompt tokens not found in the cache is {{ $value | humanizePercentage }} of all "
        "look-ups above what is usual for this hour, and first tokens are late.{{ end }}",
        when=f"block look-ups missing over {percent(limit)}, or prompt tokens missing {number(100 * limit)} points "
        "over the target's baseline while the ttft SLO burns, for 5 minutes and over 1,000 look-ups",
    )


def thrashing(options: RuleOptions) -> Alert:
    t, window = options.thresholds, options.gauge_window
    usage = highest(ENGINE, options.over("min_over_time", "kv_cache_usage_ratio", window))
    waiting = highest(ENGINE, options.over("min_over_time", "requests_waiting", window))
    full, queue = f"{usage} > {number(t.kv_usage)}", f"{waiting} > 0"
    redone = either(preempted(options, ENGINE), both(ENGINE, full, queue))
    return Alert(
        name="UfwatchKvThrashing",
        severity="warning",
        expression=highest(TARGET, both(ENGINE, f"{rec.TURNOVER} > {number(t.turnover)}", redone)),
        hold=600,
        keep=300,
        board="ufwatch-memory",
        labels=SHOWN_TARGET,
        summary=f"The KV cache of {WHO} is replaced faster than it is used.",
        description="The cache has been turned over more than "
        f'{number(t.turnover)} times a minute for ten minutes ({{{{ printf "%.1f" $value }}}} now), and requests are '
        "preempted or wait beside a full cache: work is done again and again.",
        when=f"evictions of more than {number(t.turnover)} cache a minute for 10 minutes, with preemptions or with "
        f"requests waiting beside a cache over {percent(t.kv_usage)}",
    )


def pinned(options: RuleOptions) -> Alert:
    limit = options.thresholds.pinned_success
    failed = summed(TARGET, options.over("increase", "pinned_alloc_failures_total", "10m"))
    return Alert(
        name="UfwatchPinnedAllocFailing",
        severity="warning",
        expression=both(TARGET, f"min by ({by(TARGET)}) ({rec.PINNED}) < {number(limit)}", f"{failed} >= 3"),
        hold=60,
        keep=300,
        board="ufwatch-memory",
        labels=SHOWN_TARGET,
        summary=f"Page-locked memory is refused to {WHO}.",
        description="Only {{ $value | humanizePercentage }} of the page-locked allocations of the last ten minutes "
        "succeeded; transfers fall back to pageable memory, or fail.",
        when=f"under {percent(limit)} of page-locked allocations succeed over 10 minutes, with 3 failures or more",
    )


def graph_compile(options: RuleOptions) -> Alert:
    limit = options.thresholds.compile
    spent = summed(TARGET, options.over("increase", "graph_compile_seconds_total", "30m"))
    started = highest(TARGET, options.over("max_over_time", "engine_start_time_seconds", "30m"))
    return Alert(
        name="UfwatchGraphCompileSlow",
        severity="warning",
        expression=both(TARGET, f"{spent} > {number(limit)}", f"time() - {started} > 3600"),
        hold=60,
        keep=600,
        board="ufwatch-gpu",
        labels=SHOWN_TARGET,
        summary=f"{WHO} compiles graphs long after its start.",
        description="{{ $value | humanizeDuration }} of the last half hour went into compiling or capturing graphs, on "
        "an engine that started more than an hour ago; requests wait meanwhile.",
        when=f"over {number(limit)} s of compile or capture within 30 minutes on an engine older than an hour",
    )


def stalled(options: RuleOptions) -> Alert:
    limit = options.thresholds.sm_utilization
    stalled = highest(TARGET, options.over("min_over_time", "engine_state", options.gauge_window, 'state="stalled"'))
    now = summed(SOURCE, options.over("rate", "decode_tokens_total", "5m"))
    usual = summed(SOURCE, options.over("rate", "decode_tokens_total", "1h", offset="5m"))
    slower = f"{now} < 0.5 * {usual}"
    waits = f"{highest(ENGINE, options.over('min_over_time', 'requests_waiting', '4m'))} > 0"
    idle = both(ON_TARGET, both(ENGINE, waits, slower), f"{rec.SM} < {number(limit)}")
    return Alert(
        name="UfwatchEngineStalled",
        severity="critical",
        expression=either(
            f"{stalled} == 1",
            f"0 * {highest(TARGET, idle)} + 1",
        ),
        hold=60,
        keep=60,
        board="ufwatch-overview",
        labels=SHOWN_TARGET,
        summary=f"{WHO} has work and does none.",
        description="Requests are present, but for a minute no token was made and no KV block moved; or they wait "
        f"while every card of the target has been under {percent(limit)} SM utilization for five minutes and tokens "
        "come at less than half of their usual rate.",
        when="an engine stalled for 1 minute, or all cards of a target under "
        f"{percent(limit)} for 5 minutes with requests waiting and tokens at under half of their rate",
    )


def imbalance(options: RuleOptions) -> Alert:
    limit = options.thresholds.prefill_decode
    return Alert(
        name="UfwatchPrefillDecodeImbalance",
        severity="warning",
        expression=both(TARGET, f"{rec.PREFILL_DECODE} > {number(limit)}", burning(options, "ttft", "tpot")),
        hold=900,
        keep=300,
        board="ufwatch-streaming",
        labels=SHOWN_TARGET,
        summary=f"Prefill crowds out decode on {WHO}.",
        description='Requests spent {{ printf "%.1f" $value }} times as long in prefill as in decode over ten minutes, '
        "for a quarter of an hour, and an SLO of latency burns.",
        when=f"prefill time over {number(limit)} times decode time for 15 minutes while the ttft or tpot SLO burns",
    )
