"""The board of what a reader of the stream feels: jitter, first tokens, pace, queues. Floor 2: pure."""

from __future__ import annotations

from ufwatch.catalogue import MIN_INTERVALS
from ufwatch.config import DEFAULT_OBJECTIVES
from ufwatch.render.board import BAD, CLEAR, GOOD, WARN, WORST, Board, BoardSettings, Panel, Query, Row, Step
from ufwatch.render.board_parts import alerts_firing, believable, following, variables
from ufwatch.render.board_query import ON_ENGINE, best, rate, select
from ufwatch.render.boards_probes import what_probes_see

LOWER, UPPER = "worst, at least", "worst, at most"


def streaming(settings: BoardSettings) -> Board:
    """Jitter between its bounds, then each latency as mean and as the two edges around its 99th percentile."""
    return Board(
        name="streaming",
        title="ufwatch / Streaming",
        description="Does the stream feel smooth and start soon, and if not, is it prefill, decode or the queue? "
        "A 99th percentile is drawn as the two bucket edges around it and never interpolated.",
        rows=(
            Row("Smoothness", (_jitter(settings), _evidence())),
            Row(
                "Latency: mean by engine, and the worst 99th percentile between its edges",
                (
                    _latency("ttft", "Time to first token", "Lines: the default objectives, quick and still patient."),
                    _latency("tpot", "Time per output token", "Of finished requests. Line: the default objective."),
                    _latency("e2e", "Whole request", "From arrival to the last token. Line: the default objective."),
                    _latency(
                        "itl",
                        "Time between tokens",
                        "Under speculative decoding one observation is an engine step and not a token.",
                    ),
                    _latency("queue", "Time in the queue", "Part of the time to the first token."),
                    _waiting(settings),
                ),
            ),
            Row("Prefill against decode", _phases(settings)),
            what_probes_see(),
            believable(settings),
        ),
        variables=variables(settings),
        settings=settings,
    )


def _jitter(settings: BoardSettings) -> Panel:
    bounded = "only where jitter is bounded and not counted"
    return Panel(
        title="Token jitter",
        description="Standard deviation of the time between tokens over the last 60 s, pooled over requests, so it "
        "includes the spread between them. Where a histogram is the source, the truth of the worst engine lies in the "
        "band, and the lines are the best guess. Limits: the alert's, and that of the smoothness objective.",
        unit="s",
        queries=(
            Query(expr=best("token_jitter_seconds"), legend=ON_ENGINE),
            Query(expr=f"max ({select('token_jitter_low_seconds')})", legend=LOWER, optional=bounded),
            Query(expr=f"max ({select('token_jitter_high_seconds')})", legend=UPPER, optional=bounded),
        ),
        steps=_alert_among(settings.thresholds.jitter, *_objectives("jitter")),
        low=0.0,
        between=(LOWER, UPPER),
        absent="no value: idle, warming up, or too few tokens",
        width=16,
        height=10,
    )


def _objectives(metric: str) -> tuple[float, ...]:
    """The limits of the default objectives on a metric, seconds; those of a site are on the SLO board."""
    return tuple(o.threshold_seconds for o in DEFAULT_OBJECTIVES if o.metric == metric and o.threshold_seconds)


def _limits(*limits: float) -> tuple[Step, ...]:
    """Warnings from the lowest limit on, bad from the highest; a single one is a warning."""
    ordered = sorted(set(limits))
    last = len(ordered) - 1
    steps = (Step(limit, BAD if 0 < place == last else WARN) for place, limit in enumerate(ordered))
    return (Step(None, CLEAR), *steps)


def _alert_among(alert: float, *objectives: float) -> tuple[Step, ...]:
    """Red from the alert's limit on, as everywhere else; an objective under it warns, and one over it is worse."""
    limits = sorted({alert, *objectives})
    colors = (WARN if limit < alert else BAD if limit == alert else WORST for limit in limits)
    return (Step(None, CLEAR), *map(Step, limits, colors))


def _evidence() -> Panel:
    return Panel(
        title="Token intervals counted in a minute",
        description=f"What the jitter is made of. Under {MIN_INTERVALS} in a minute there is no verdict and no value. "
        "With unit step one observation is an engine step.",
        unit="none",
        queries=(Query(expr=f"60 * {rate('token_intervals_total')}", legend=ON_ENGINE + " {{unit}}"),),
        steps=(Step(None, WARN), Step(MIN_INTERVALS, GOOD)),
        low=0.0,
        absent="no tokens",
        width=8,
        height=10,
    )


def _latency(name: str, title: str, more: str) -> Panel:
    edges = "only where requests came within the window and the quantile is inside the buckets"
    return Panel(
        title=title,
        description=f"{more} Means over the last 60 s. The 99th percentile of the worst engine lies in the band.",
        unit="s",
        queries=(
            Query(expr=best(f"{name}_mean_seconds"), legend=ON_ENGINE + " mean"),
            Query(expr=f"max ({select(f'{name}_p99_low_seconds')})", legend="p99 " + LOWER, optional=edges),
            Query(expr=f"max ({select(f'{name}_p99_high_seconds')})", legend="p99 " + UPPER, optional=edges),
        ),
        steps=_limits(*_objectives(name)),
        low=0.0,
        between=("p99 " + LOWER, "p99 " + UPPER),
        absent="no requests in the window",
        height=9,
    )


def _waiting(settings: BoardSettings) -> Panel:
    return Panel(
        title="Requests waiting",
        description="Requests that wait, engine by engine, at the last scrape. When they grow while KV usage is full, "
        "memory is what is short.",
        unit="none",
        queries=(Query(expr=best("requests_waiting"), legend=ON_ENGINE),),
        low=0.0,
        height=9,
        links=(following(settings, "memory", "Memory & KV"),),
    )


def _phases(settings: BoardSettings) -> tuple[Panel, ...]:
    limit = settings.thresholds.prefill_decode
    return (
        Panel(
            title="Prefill over decode, by time",
            description="Request time in prefill over request time in decode, of finished requests (a proxy: requests "
            "overlap). The alert also wants an objective to burn.",
            unit="none",
            queries=(Query(expr=best("prefill_decode_ratio", by="time"), legend=ON_ENGINE),),
            steps=(Step(None, CLEAR), Step(limit, BAD)),
            low=0.0,
            absent="no request finished",
            width=6,
        ),
        Panel(
            title="Prefill over decode, by tokens",
            description="Prompt tokens computed for each token generated: what kind of work is asked for.",
            unit="none",
            queries=(Query(expr=best("prefill_decode_ratio", by="tokens"), legend=ON_ENGINE),),
            low=0.0,
            absent="no tokens",
            width=6,
        ),
        Panel(
            title="Tokens per second",
            description="Prompt tokens computed and tokens generated, engine by engine.",
            unit="cps",
            queries=(
                Query(expr=rate("prefill_tokens_total"), legend=ON_ENGINE + " prefill"),
                Query(expr=rate("decode_tokens_total"), legend=ON_ENGINE + " decode"),
            ),
            low=0.0,
            absent="no tokens",
            width=6,
        ),
        alerts_firing(settings, width=6),
    )
