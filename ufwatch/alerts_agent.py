"""Alerts 8–12: budgets, the agent's own sight, memory and cards. Floor 1: pure."""

from __future__ import annotations

from ufwatch import recordings as rec
from ufwatch.alert_words import SHOWN_TARGET, WHO, burning, percent, preempted
from ufwatch.recordings import EVIDENCE, SLO
from ufwatch.rule_forms import (
    AGENT,
    CARD,
    ON_TARGET,
    TARGET,
    Alert,
    RuleOptions,
    both,
    by,
    duration,
    either,
    highest,
    number,
)

FAST_LONG_SHARE = 6 / 14.4
SLOW_LONG_SHARE = 1 / 3
"""The factor of a pair of long windows over that of its short pair."""
MAIN_SOURCE = "vllm"
"""The source whose silence means that the target itself is gone."""


def burn_factors(options: RuleOptions) -> dict[str, tuple[tuple[str, str, float], ...]]:
    """By threshold, the pairs of windows (short, long) and the factor that both must be over."""
    fast, slow = options.thresholds.burn_fast, options.thresholds.burn_slow
    return {
        "burn_fast": (("5m", "1h", fast), ("30m", "6h", fast * FAST_LONG_SHARE)),
        "burn_slow": (("2h", "1d", slow), ("6h", "3d", slow * SLOW_LONG_SHARE)),
    }


def _held_for(seconds: float, selector: str, options: RuleOptions) -> str:
    """A gauge of 0 and 1 that was 1 throughout the last ``seconds``, and was there already at their beginning.

    The window is one scrape longer, so that its samples lie ``seconds`` apart at least at any phase.
    """
    every = options.interval_seconds
    window = duration(max(seconds + every, 2.5 * every))
    begun = f"{selector}[{options.gauge_window}] offset {duration(max(seconds - 1.5 * every, every))}"
    return f"min_over_time({selector}[{window}]) == 1 and max_over_time({begun}) == 1"


def _burn_pairs(options: RuleOptions, threshold: str, evidence: tuple[str, str]) -> str:
    pairs = burn_factors(options)[threshold]
    return either(
        *(
            both(
                SLO,
                f"{rec.burn(short)} > {number(factor)}",
                f"{rec.burn(long)} > {number(factor)}",
                f"{rec.bad_events(window)} >= {EVIDENCE}",
            )
            for (short, long, factor), window in zip(pairs, evidence, strict=True)
        )
    )


def burn_fast(options: RuleOptions) -> Alert:
    factor = options.thresholds.burn_fast
    return Alert(
        name="UfwatchSloBurnFast",
        severity="critical",
        expression=_burn_pairs(options, "burn_fast", ("1h", "6h")),
        hold=0,
        keep=120,
        board="ufwatch-slo",
        labels=(*SHOWN_TARGET, "slo"),
        summary=f'The {{{{ $labels.slo }}}} SLO of {WHO} burns {{{{ printf "%.1f" $value }}}} times too fast.',
        description='Events that miss the objective come {{ printf "%.1f" $value }} times as fast as it allows, in '
        "the short window and in the long one: a budget of 30 days would be gone within days.",
        when=f"burn over {number(factor)} in 5 m and 1 h, or over {number(factor * FAST_LONG_SHARE)} in 30 m and 6 h, "
        f"with {EVIDENCE} bad events proved in the longer window",
    )


def burn_slow(options: RuleOptions) -> Alert:
    factor = options.thresholds.burn_slow
    return Alert(
        name="UfwatchSloBurnSlow",
        severity="warning",
        expression=_burn_pairs(options, "burn_slow", ("3d", "3d")),
        hold=300,
        keep=900,
        board="ufwatch-slo",
        labels=(*SHOWN_TARGET, "slo"),
        summary=f"The {{{{ $labels.slo }}}} SLO of {WHO} will not last its month.",
        description='The error budget has been spent {{ printf "%.1f" $value }} times as fast as it is given, for '
        "hours; unless that ends it runs out before the window does.",
        when=f"burn over {number(factor)} in 2 h and 1 d, or over {number(factor * SLOW_LONG_SHARE)} in 6 h and 3 d, "
        f"with {EVIDENCE} bad events proved in 3 d",
    )


def stale(options: RuleOptions) -> Alert:
    window = options.gauge_window
    labels = (*ON_TARGET, "source")
    age = highest(labels, options.over("max_over_time", "source_age_seconds", window))
    starting = options.over("max_over_time", "engine_state", window, 'state="starting"')
    silent = f"({age} > {number(options.stale_seconds)}) unless on ({by(ON_TARGET)}) ({starting} == 1)"
    up = f"up{{{options.where}}}"

    def because(reason: str, expression: str) -> str:
        return f'label_replace({expression}, "reason", "{reason}", "", "")'

    return Alert(
        name="UfwatchTelemetryStale",
        severity="critical",
        expression=either(
            because("agent_down", f"max by ({by(AGENT)}) (max_over_time({up}[{window}])) == 0"),
            because("agent_absent", f"absent_over_time({up}[{window}])"),
            f'label_replace({because("source_stale", silent)}, "reason", "target_down", "source", "{MAIN_SOURCE}")',
        ),
        hold=180,
        keep=60,
        board="ufwatch-overview",
        labels=(),
        optional=("target", "instance", "source"),
        summary='{{ if eq $labels.reason "target_down" }}{{ $labels.target }} does not answer.'
        '{{ else if eq $labels.reason "agent_down" }}The agent at {{ $labels.instance }} does not answer.'
        '{{ else if eq $labels.reason "agent_absent" }}Prometheus knows no agent of job {{ $labels.job }}.'
        "{{ else }}Source {{ $labels.source }}{{ with $labels.target }} of {{ . }}{{ end }} is silent.{{ end }}",
        description='{{ if or (eq $labels.reason "target_down") (eq $labels.reason "source_stale") }}Its last proof of '
        "life is {{ $value | humanizeDuration }} old, and it is not starting. "
        "{{ end }}What it would report is unknown until it is back; nothing here may be read as healthy.",
        when=f"no agent, or a source without proof of life for {number(options.stale_seconds)} s, for 3 minutes, and "
        "not while the engine starts",
    )


def breaker(options: RuleOptions) -> Alert:
    trips_limit = options.thresholds.breaker_trips
    labels = (*TARGET, "kind")

    def tripped(kind: str) -> str:
        opened = options.metric("memory_breaker_open", f'kind="{kind}"')
        trips = options.metric("memory_breaker_trips_total", f'kind="{kind}"')
        return highest(
            labels, either(_held_for(120, opened, options), f"increase({trips}[10m]) >= {number(trips_limit)}")
        )

    hurts = either(preempted(options, TARGET), burning(options, "ttft"))
    return Alert(
        name="UfwatchMemoryBreakerOpen",
        severity="critical",
        expression=either(tripped("device"), both(TARGET, tripped("kv"), hurts)),
        hold=0,
        keep=300,
        board="ufwatch-memory",
        labels=SHOWN_TARGET,
        summary='{{ if eq $labels.kind "kv" }}The KV cache{{ else }}A card{{ end }} of ' + WHO + " stays full.",
        description='{{ if eq $labels.kind "kv" }}The KV cache has been over 92 % with requests waiting, for two '
        "minutes or again and again, and requests are preempted or first tokens late."
        "{{ else }}The memory of a card has been over 92 % for two minutes or again and again, on a server that does "
        "not reserve it beforehand: the next allocation may fail.{{ end }}",
        when=f"a memory breaker open for 2 minutes, or {number(trips_limit)} trips in 10; of a KV cache only with "
        "preemptions or while the ttft SLO burns",
    )


def ageing(options: RuleOptions) -> Alert:
    limit = options.thresholds.ageing
    drift = options.metric("gpu_ageing_drift_ratio")
    ecc = options.metric("gpu_ecc_errors_total", 'type="uncorrected"')
    remap = options.metric("gpu_row_remap_pending")
    early = f"max_over_time({drift}[{options.at_least(600)}] offset 50m)"
    lasting = f"min_over_time({drift}[1h]) > {number(limit)} and {early} > {number(limit)}"

    def because(reason: str, expression: str) -> str:
        return f'label_replace({highest(CARD, expression)}, "reason", "{reason}", "", "")'

    return Alert(
        name="UfwatchGpuHardwareAgeing",
        severity="warning",
        expression=either(
            because("drift", lasting),
            because("ecc", f"increase({ecc}[1d]) > 0"),
            because("row_remap", f"min_over_time({remap}[{options.gauge_window}]) == 1"),
        ),
        hold=60,
        keep=900,
        board="ufwatch-gpu",
        labels=("gpu", "instance"),
        summary="GPU {{ $labels.gpu }} of {{ $labels.instance }} "
        '{{ if eq $labels.reason "drift" }}has become slower.{{ else if eq $labels.reason "ecc" }}had memory errors '
        "that ECC could not correct.{{ else }}needs a reset to replace a faulty memory row.{{ end }}",
        description='{{ if eq $labels.reason "drift" }}For an hour its engine steps have taken at least '
        "{{ $value | humanizePercentage }} longer than in the first week under the same load, clocks and temperature."
        '{{ else if eq $labels.reason "ecc" }}{{ printf "%.0f" $value }} uncorrected errors within a day; work that '
        "touched them was wrong or was killed.{{ else }}The card has set a row aside and maps it away at its next "
        "reset; until then it may fail again.{{ end }} The card is {{ $labels.uuid }}.",
        when=f"steps {percent(limit)} slower than in the card's first week for 1 hour, uncorrected ECC errors within "
        "a day, or a row remap pending",
    )
