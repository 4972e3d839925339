"""The recording rules: the alerts' signals per target, and burn rates per SLO. Floor 1: pure data from the catalogue.

Every denominator is ``> 0`` and every result ``>= 0``, so that an idle target has no series and no NaN is stored.
Signals with an engine and a source are computed for each pair, then the highest is taken: two engines pooled would
show a deviation that neither has, and two sources would count a thing twice.
"""

from __future__ import annotations

from ufwatch import catalogue
from ufwatch.catalogue import MIN_INTERVALS, Provider, Signal
from ufwatch.rule_forms import (
    AGENT,
    ENGINE,
    ON_TARGET,
    SOURCE,
    TARGET,
    Recording,
    RecordingGroup,
    RuleOptions,
    both,
    by,
    duration,
    either,
    highest,
    number,
    of_signal,
    summed,
)

JITTER = "target:ufwatch_token_jitter:stddev"
MISS = "target:ufwatch_page_table_miss:ratio_rate5m"
TURNOVER = "engine:ufwatch_kv_turnover:rate5m"
PINNED = "target:ufwatch_pinned_alloc_success:ratio_rate10m"
PREFILL_DECODE = "target:ufwatch_prefill_decode:ratio_rate10m"
SM = "target:ufwatch_sm_utilization:max4m"
OBJECTIVE = "slo:ufwatch_slo_objective:ratio"
BURNING = "target_slo:ufwatch_slo_burning:rate1h"

FAST_WINDOWS = ("5m", "30m", "1h")
SLOW_WINDOWS = ("2h", "6h", "1d", "3d")
EVIDENCE = 10
"""Bad events that a burn rate must rest on."""
SLO = (*TARGET, "slo")
_LOW = 'bound="low"'
LONGEST_EVALUATION_SECONDS = 60.0
"""The longest time between two evaluations of the rules that they are made for; Prometheus' own default."""
SURVIVES_A_MISS = 3.2
"""A window of so many scrapes holds two samples at any phase although one is missing, which is what a rate needs."""


def burn(window: str) -> str:
    """The name of the burn rate over a window."""
    return f"target_slo:ufwatch_slo_burn:rate{window}"


def bad_events(window: str) -> str:
    """The name of the count of bad events over a window."""
    return f"target_slo:ufwatch_slo_bad_events:increase{window}"


def groups(options: RuleOptions) -> tuple[RecordingGroup, ...]:
    """Every recording rule. The windows of hours and days move slowly and are evaluated once a minute."""
    return (
        RecordingGroup(name="ufwatch-signals", rules=_signals(options)),
        RecordingGroup(name="ufwatch-slo", rules=_fast(options)),
        RecordingGroup(name="ufwatch-slo-slow", rules=_slow(options), interval="1m"),
    )


def _signals(options: RuleOptions) -> tuple[Recording, ...]:
    window = duration(options.jitter_window_seconds)
    return (
        *(
            Recording(name=_jitter_of(p), expression=_jitter(p, options, window))
            for p in catalogue.TOKEN_JITTER.providers
        ),
        Recording(name=JITTER, expression=_jitter_bridged(options, window)),
        Recording(name=MISS, expression=_miss(options)),
        Recording(name=TURNOVER, expression=_turnover(options)),
        Recording(
            name=PINNED,
            expression=of_signal(_only(catalogue.PINNED_ALLOC_SUCCESS).formula, options, "10m", (*TARGET, "source")),
        ),
        Recording(name=PREFILL_DECODE, expression=_prefill_decode(options)),
        Recording(name=SM, expression=_sm(options)),
    )


def _only(signal: Signal) -> Provider:
    """The one way to a signal that has a single source."""
    (provider,) = signal.providers
    return provider


def _jitter_of(provider: Provider) -> str:
    return f"engine:ufwatch_token_jitter_{provider.source}:stddev"


def _jitter(provider: Provider, options: RuleOptions, window: str) -> str:
    """The deviation of each engine, where there are enough intervals a minute to speak of one."""
    source = f'source="{provider.source}"'
    intervals = summed(SOURCE, options.over("rate", "token_intervals_total", window, source))
    return both(
        SOURCE,
        of_signal(provider.formula, options, window, SOURCE, source),
        f"60 * {intervals} >= {MIN_INTERVALS}",
    )


def _jitter_bridged(options: RuleOptions, window: str) -> str:
    """The worst engine of the target, standing through one missed scrape.

    Where the window is short of three scrapes a missed one can leave it a single sample. Then, and not when tokens
    merely stopped, the last value known stands until the next scrape.
    """
    names = [_jitter_of(provider) for provider in catalogue.TOKEN_JITTER.providers]
    worst = highest(TARGET, either(*names))
    if options.jitter_window_seconds >= SURVIVES_A_MISS * options.interval_seconds:
        return worst
    # Two evaluations must be in sight, and Prometheus evaluates once a minute unless told otherwise.
    lasting = max(options.interval_seconds, LONGEST_EVALUATION_SECONDS)
    gap = max(0.0, 3 * options.interval_seconds - options.jitter_window_seconds) + lasting
    held = highest(TARGET, either(*(f"last_over_time({name}[{duration(gap)}])" for name in names)))
    missed = f"min_over_time(up{{{options.where}}}[{window}]) == 0"
    return f"({worst})\nor\n(({held}) and on ({by(AGENT)}) ({missed}))"


def _miss(options: RuleOptions) -> str:
    """Misses over look-ups by tokens and by blocks; never by probes. Over a thousand look-ups, or nothing."""
    labels = (*TARGET, "unit", "source")
    real = 'unit=~"token|block"'
    lookups = summed(labels, options.over("increase", "page_table_lookups_total", "5m", real))
    ratio = of_signal(catalogue.PAGE_TABLE_MISS.providers[0].formula, options, "5m", labels, real)
    return highest((*TARGET, "unit"), both(labels, ratio, f"{lookups} > 1000"))


def _turnover(options: RuleOptions) -> str:
    """Evictions per minute over the engine's blocks, by engine, of its worst source."""
    evictions = of_signal(catalogue.KV_EVICTIONS.providers[0].formula, options, "5m", SOURCE)
    blocks = highest(ENGINE, options.over("max_over_time", "kv_blocks", options.gauge_window))
    return highest(ENGINE, f"60 * ({evictions})\n/ on ({by(ENGINE)}) group_left ()\n({blocks} > 0)")


def _prefill_decode(options: RuleOptions) -> str:
    return highest(TARGET, of_signal(_only(catalogue.PREFILL_DECODE_TIME).formula, options, "10m", (*TARGET, "source")))


def _sm(options: RuleOptions) -> str:
    """The busiest card of each target over four minutes, and only where every card mapped to it is measured."""
    info = options.over("max_over_time", "target_gpu_info", options.gauge_window)
    card = (*AGENT, "uuid", "mig")
    joined = (
        f"{info} * on ({by(card)}) group_left () "
        f"{highest(card, options.over('max_over_time', 'sm_utilization_ratio', '4m'))}"
    )
    return both(
        ON_TARGET,
        highest(ON_TARGET, joined),
        f"count by ({by(ON_TARGET)}) ({joined}) == count by ({by(ON_TARGET)}) ({info})",
    )


def _objective(options: RuleOptions) -> Recording:
    held = options.over("max_over_time", "slo_objective_ratio", "5m")
    return Recording(name=OBJECTIVE, expression=f"{highest((*AGENT, 'slo'), held)} < 1")


def _burn(options: RuleOptions, window: str) -> Recording:
    """Proved bad events over all events, in parts of what the objective allows."""
    bad = summed(SLO, options.over("rate", "slo_bad_events_total", window, _LOW))
    events = summed(SLO, options.over("rate", "slo_events_total", window))
    allowed = f"on ({by((*AGENT, 'slo'))}) group_left () (1 - {OBJECTIVE})"
    return Recording(name=burn(window), expression=f"({bad} / ({events} > 0)\n/ {allowed}) >= 0")


def _bad(options: RuleOptions, window: str) -> Recording:
    grown = options.over("increase", "slo_bad_events_total", window, _LOW)
    return Recording(name=bad_events(window), expression=f"{summed(SLO, grown)} >= 0")


def _fast(options: RuleOptions) -> tuple[Recording, ...]:
    burning = both(SLO, f"{burn('1h')} > 1", f"{burn('5m')} > 1", f"{bad_events('1h')} >= {number(EVIDENCE)}")
    return (
        _objective(options),
        *(_burn(options, window) for window in FAST_WINDOWS),
        _bad(options, "1h"),
        Recording(name=BURNING, expression=burning),
    )


def _slow(options: RuleOptions) -> tuple[Recording, ...]:
    return (*(_burn(options, window) for window in SLOW_WINDOWS), *(_bad(options, window) for window in ("6h", "3d")))
