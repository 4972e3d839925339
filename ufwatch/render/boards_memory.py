"""The board of memory: is the cache working, is it full, is work redone for want of it. Floor 2: pure."""

from __future__ import annotations

from ufwatch.render.board import (
    BAD,
    CLEAR,
    GOOD,
    WARN,
    Board,
    BoardSettings,
    Panel,
    PanelKind,
    Query,
    Row,
    Step,
    Word,
    under,
)
from ufwatch.render.board_parts import alerts_firing, believable, following, variables
from ufwatch.render.board_query import ON_CARD, ON_ENGINE, ON_TARGET, best, by, labels_of, rate, select

_EXPORTER = "only with an exporter inside the server"
_EVICTIONS = "only where evictions are reported"


def memory(settings: BoardSettings) -> Board:
    """Misses against what is usual, the cache's use and turnover, preemptions, pinned memory, and the breaker."""
    return Board(
        name="memory",
        title="ufwatch / Memory & KV",
        description="Is memory short, and does it hurt: are blocks evicted that are needed, is work redone, do "
        "requests wait?",
        rows=(
            Row("The page table of the KV cache", _table(settings)),
            Row("How full, and does it hurt", _pressure(settings)),
            Row("Page-locked host memory", _pinned(settings)),
            Row("The card and the breaker", _breaker(settings)),
            believable(settings),
        ),
        variables=variables(settings),
        settings=settings,
    )


def _table(settings: BoardSettings) -> tuple[Panel, ...]:
    limits = settings.thresholds
    usual = best("page_table_miss_baseline_ratio")
    unknown = "only once what is usual has been learned or configured"
    return (
        Panel(
            title="Misses by token, against what is usual",
            description="Share of prompt tokens that had to be computed. New prompts miss by nature, so the alert "
            f"compares with the same hour of the last week (dashed) and fires {limits.miss * 100:g} points above it "
            "(dashed too), and only while first tokens are late.",
            unit="percentunit",
            queries=(
                Query(expr=best("page_table_miss_ratio", unit="token"), legend=ON_ENGINE),
                Query(expr=usual, legend=ON_TARGET + " usual", optional=unknown),
                Query(expr=f"{usual} + {limits.miss:g}", legend=ON_TARGET + " limit", optional=unknown),
            ),
            low=0.0,
            high=1.0,
            dashed=("usual", "limit"),
            absent="no look-ups",
        ),
        Panel(
            title="Misses by block and by probe",
            description="unit block: a running sequence needed a block that was gone, so work was redone; the alert's "
            "limit is drawn for it. unit probe: look-ups of new prompts, shown and never alerted on.",
            unit="percentunit",
            queries=(
                Query(
                    expr=best("page_table_miss_ratio", 'unit!="token"'),
                    legend=ON_ENGINE + " {{unit}}",
                    optional=_EXPORTER,
                ),
            ),
            steps=(Step(None, CLEAR), Step(limits.miss, BAD)),
            low=0.0,
            high=1.0,
            absent=_EXPORTER,
        ),
        Panel(
            title="Look-ups and misses per second",
            description="What the shares are made of: tokens, or blocks, looked up and missed.",
            unit="cps",
            queries=(
                Query(expr=rate("page_table_lookups_total"), legend=ON_ENGINE + " {{unit}} look-ups"),
                Query(expr=rate("page_table_misses_total"), legend=ON_ENGINE + " {{unit}} misses"),
            ),
            low=0.0,
            absent="no look-ups",
        ),
        Panel(
            title="Evictions per second",
            description="Cached blocks taken for new data. No fault by itself: a busy prefix cache always evicts.",
            unit="cps",
            queries=(
                Query(expr=best("kv_evictions_per_second"), legend=ON_ENGINE, optional=_EVICTIONS),
                Query(expr=rate("kv_evictions_total"), legend=ON_ENGINE + " counted", optional=_EVICTIONS),
            ),
            low=0.0,
            dashed=("counted",),
            absent=_EVICTIONS,
        ),
        Panel(
            title="Turnover of the cache per minute",
            description="Evictions per minute over the number of blocks: 1 replaces the whole cache every minute. The "
            "alert also wants preemptions, or a full cache with requests waiting.",
            unit="none",
            queries=(Query(expr=best("kv_turnover_per_minute"), legend=ON_ENGINE, optional=_EVICTIONS),),
            steps=(Step(None, CLEAR), Step(limits.turnover, BAD)),
            low=0.0,
            absent=_EVICTIONS,
        ),
        alerts_firing(settings, width=8),
    )


def _pressure(settings: BoardSettings) -> tuple[Panel, ...]:
    return (
        Panel(
            title="KV cache in use",
            description="Share of blocks in use, at the last scrape. Full is normal under saturation; full with "
            "requests waiting opens the breaker.",
            unit="percentunit",
            queries=(Query(expr=best("kv_cache_usage_ratio"), legend=ON_ENGINE),),
            steps=(Step(None, CLEAR), Step(settings.thresholds.kv_usage, BAD)),
            low=0.0,
            high=1.0,
            absent="not reported",
            width=6,
        ),
        Panel(
            title="Requests running and waiting",
            description="Engine by engine, at the last scrape.",
            unit="none",
            queries=(
                Query(expr=best("requests_running"), legend=ON_ENGINE + " running"),
                Query(expr=best("requests_waiting"), legend=ON_ENGINE + " waiting"),
            ),
            low=0.0,
            width=6,
            links=(following(settings, "streaming", "Streaming"),),
        ),
        Panel(
            title="Preemptions and refusals per second",
            description="Requests put back for want of blocks: their prompts are computed again. Requests refused at "
            "admission, where the server counts them.",
            unit="cps",
            queries=(
                Query(expr=rate("preemptions_total"), legend=ON_ENGINE + " preempted"),
                Query(
                    expr=rate("admission_rejections_total"),
                    legend=ON_ENGINE + " refused",
                    optional="only where the server counts refusals",
                ),
            ),
            low=0.0,
            width=6,
        ),
        Panel(
            title="Blocks of the cache",
            description="How many KV blocks each engine has. A change is a restart with another configuration.",
            unit="none",
            queries=(Query(expr=best("kv_blocks"), legend=ON_ENGINE),),
            low=0.0,
            absent="not reported",
            width=6,
        ),
    )


def _pinned(settings: BoardSettings) -> tuple[Panel, ...]:
    return (
        Panel(
            title="Pinned allocations that succeeded",
            description="Over the life of the processes now running. The alert compares the last ten minutes and wants "
            "three failures.",
            unit="percentunit",
            queries=(Query(expr=best("pinned_alloc_success_ratio"), legend=ON_TARGET, optional=_EXPORTER),),
            steps=under(settings.thresholds.pinned_success),
            high=1.0,
            absent="nothing attempted, or no exporter",
            width=6,
        ),
        Panel(
            title="Failed pinned allocations per second",
            description="By error code, beside all attempts.",
            unit="cps",
            queries=(
                Query(expr=rate("pinned_alloc_failures_total"), legend=ON_TARGET + " {{code}}", optional=_EXPORTER),
                Query(expr=rate("pinned_alloc_attempts_total"), legend=ON_TARGET + " attempts", optional=_EXPORTER),
            ),
            low=0.0,
            dashed=("attempts",),
            absent=_EXPORTER,
            width=6,
        ),
        Panel(
            title="Pinned memory asked for",
            description="Bytes asked for in page-locked allocations, per second.",
            unit="binBps",
            queries=(Query(expr=rate("pinned_alloc_bytes_total"), legend=ON_TARGET, optional=_EXPORTER),),
            low=0.0,
            absent=_EXPORTER,
            width=6,
        ),
        Panel(
            title="Time spent allocating pinned memory",
            description="Share of time: at 100 % one thread does nothing else, and copies to the card wait for it.",
            unit="percentunit",
            queries=(Query(expr=rate("pinned_alloc_seconds_total"), legend=ON_TARGET, optional=_EXPORTER),),
            low=0.0,
            absent=_EXPORTER,
            width=6,
        ),
    )


def _breaker(settings: BoardSettings) -> tuple[Panel, ...]:
    card = labels_of("gpu_memory_bytes", "kind")
    used, total = (f"max {by(card)} ({select('gpu_memory_bytes', kind=kind)})" for kind in ("used", "total"))
    return (
        Panel(
            title="Memory breaker",
            description="Open while memory has been over the limit for 5 s. kv: the cache, with requests waiting. "
            "device: the card of a server that does not preallocate it. Not drawn: not decided. Nothing is refused.",
            unit="short",
            kind=PanelKind.STATES,
            queries=(Query(expr=best("memory_breaker_open"), legend=ON_TARGET + " {{kind}}"),),
            words=(Word(0, "closed", GOOD), Word(1, "open", BAD)),
            absent="not decided",
        ),
        Panel(
            title="Trips of the breaker in 10 minutes",
            description=f"{settings.thresholds.breaker_trips:g} trips in ten minutes are one of the ways to the alert.",
            unit="none",
            queries=(
                Query(
                    expr=f"max {by(labels_of('memory_breaker_trips_total'))} "
                    f"(increase({select('memory_breaker_trips_total')}[10m]))",
                    legend=ON_TARGET + " {{kind}}",
                ),
            ),
            steps=(Step(None, CLEAR), Step(settings.thresholds.breaker_trips, WARN)),
            low=0.0,
            absent="not decided",
            fixed_windows="the alert counts over ten minutes",
        ),
        Panel(
            title="Memory of the cards in use",
            description="Used over total, of every card the agent reads. A server that preallocates (vLLM does) fills "
            "the card by design, so the limit counts only for one that does not.",
            unit="percentunit",
            queries=(Query(expr=f"{used} / {total}", legend=ON_CARD, optional="only where a card is read"),),
            steps=(Step(None, CLEAR), Step(settings.thresholds.kv_usage, WARN)),
            low=0.0,
            high=1.0,
            absent="no card is read",
            links=(following(settings, "gpu", "GPU & ageing"),),
        ),
    )
