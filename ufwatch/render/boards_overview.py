"""The board to open first: is anything wrong, where, and which board answers the next question. Floor 2: pure."""

from __future__ import annotations

from ufwatch.render.board import (
    PLAIN,
    Board,
    BoardSettings,
    Link,
    Panel,
    PanelKind,
    Query,
    Row,
    Step,
    over,
    under,
)
from ufwatch.render.board_parts import STATE_WORDS, alerts_firing, believable, engine_states, following, variables
from ufwatch.render.board_query import (
    ON_ENGINE,
    ON_TARGET,
    best,
    by,
    labels_of,
    rate,
    select,
)
from ufwatch.render.boards_agent import the_agent

_ENGINE = ("job", "instance", "target", "model_name", "engine")


def overview(settings: BoardSettings) -> Board:
    """The seven signals at their worst, the objectives, the states, the load, and the agent itself."""
    return Board(
        name="overview",
        title="ufwatch / Overview",
        description="Is anything wrong, and where? Each panel leads to the board that answers the next question.",
        rows=(
            Row("The seven signals, at the worst of what is chosen", _signals(settings)),
            Row("What is wrong", (_states(), alerts_firing(settings, width=8, height=9), _budget(settings))),
            Row("Engine by engine", (_engines(settings),)),
            Row("Load", _load(settings)),
            believable(settings),
            the_agent(),
        ),
        variables=variables(settings),
        settings=settings,
    )


def _signals(settings: BoardSettings) -> tuple[Panel, ...]:
    limits = settings.thresholds
    plain = (Step(None, PLAIN),)
    jitter, miss = following(settings, "streaming", "Streaming"), following(settings, "memory", "Memory & KV")
    cards = following(settings, "gpu", "GPU & ageing")
    graphs = f"sum {by(labels_of('graph_compile_last_start_seconds', 'phase', 'cache'))} "
    graphs += f"({best('graph_compile_last_start_seconds')})"
    return (
        _worst(
            "Token jitter",
            f"max ({select('token_jitter_seconds')})",
            "s",
            over(limits.jitter),
            jitter,
            "Largest standard deviation of the time between tokens, of the engines chosen. Red where the alert "
            "would count it; the alert wants five minutes of it.",
        ),
        _worst(
            "Page-table misses",
            f"max ({select('page_table_miss_ratio', unit='token')})",
            "percentunit",
            plain,
            miss,
            "Largest share of prompt tokens that were not in the prefix cache. New prompts miss by nature, so "
            "there is no limit here: Memory & KV compares with what is usual.",
        ),
        _worst(
            "Graph compile, newest start",
            f"max ({graphs})",
            "s",
            plain,
            cards,
            "Longest time that the newest start of a target spent compiling and capturing graphs.",
            optional="only with an exporter inside the server",
        ),
        _worst(
            "Pinned allocations",
            f"min ({select('pinned_alloc_success_ratio')})",
            "percentunit",
            under(limits.pinned_success),
            miss,
            "Smallest share of page-locked allocations that succeeded.",
            optional="only with an exporter inside the server",
        ),
        _worst(
            "Prefill/decode by time",
            f"max ({select('prefill_decode_ratio', by='time')})",
            "none",
            over(limits.prefill_decode),
            jitter,
            "Largest ratio of request time in prefill to request time in decode, of requests that finished.",
        ),
        _worst(
            "KV evictions",
            f"sum (max {by(labels_of('kv_evictions_per_second'))} ({select('kv_evictions_per_second')}))",
            "cps",
            plain,
            miss,
            "Cached blocks taken for new data, of all engines chosen. A busy cache evicts all the time: Memory & KV "
            "shows whether work is redone.",
            optional="only where evictions are reported",
        ),
        _worst(
            "SM utilization",
            f"min ({select('sm_utilization_ratio')})",
            "percentunit",
            plain,
            cards,
            "Smallest share of streaming multiprocessors with work, of all cards. An idle card is no fault.",
            optional="only where the card reports it",
        ),
        _worst(
            "Signals without a value",
            f"sum (1 - {select('signal_available')})",
            "none",
            plain,
            None,
            "How many signals of the targets chosen have no value now. The table below says why.",
        ),
    )


def _worst(
    title: str,
    expr: str,
    unit: str,
    steps: tuple[Step, ...],
    link: Link | None,
    description: str,
    optional: str = "",
) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        kind=PanelKind.NUMBER,
        queries=(Query(expr=expr, legend=title, optional=optional),),
        steps=steps,
        absent="no value",
        width=3,
        height=5,
        links=(link,) if link is not None else (),
    )


def _states() -> Panel:
    return Panel(
        title="State of each engine",
        description="What each engine is doing: stalled has work and moves nothing, starting has not answered yet, "
        "down has served and is gone. A gap: it cannot be told.",
        unit="short",
        kind=PanelKind.STATES,
        queries=(Query(expr=engine_states(), legend=ON_ENGINE),),
        words=STATE_WORDS,
        absent="no engine seen",
        width=8,
        height=9,
    )


def _budget(settings: BoardSettings) -> Panel:
    return Panel(
        title="Error budget left, at least",
        description="Share of each objective's error budget that is left in its own window, counting everything that "
        "may have been bad. Under 0 it is overspent.",
        unit="percentunit",
        queries=(
            Query(
                expr=best("slo_error_budget_remaining_ratio", bound="low"),
                legend=ON_TARGET + " {{slo}}",
                optional="only once events were counted",
            ),
        ),
        steps=under(0.0),
        low=-1.0,
        high=1.0,
        absent="no events yet",
        width=8,
        height=9,
        links=(following(settings, "slo", "SLO"),),
    )


def _engines(settings: BoardSettings) -> Panel:
    def together(name: str, **equal: str) -> str:
        return f"max {by(_ENGINE)} ({select(name, **equal)})"

    target = f"{settings.to('streaming')}?${{datasource:queryparam}}&${{job:queryparam}}&${{instance:queryparam}}"
    target += "&${model:queryparam}&var-target=${__data.fields.target}&${__url_time_range}"
    return Panel(
        title="Engines",
        description="One line for each engine. A target's name leads to its Streaming board. An empty cell has no "
        "value; the table on freshness says why.",
        unit="none",
        kind=PanelKind.TABLE,
        queries=(
            Query(expr=engine_states(), legend="state"),
            Query(expr=together("requests_running"), legend="running", unit="none"),
            Query(expr=together("requests_waiting"), legend="waiting", unit="none"),
            Query(expr=together("kv_cache_usage_ratio"), legend="KV in use", unit="percentunit"),
            Query(expr=together("token_jitter_seconds"), legend="jitter", unit="s"),
            Query(expr=together("ttft_mean_seconds"), legend="TTFT, mean", unit="s"),
            Query(expr=together("tpot_mean_seconds"), legend="TPOT, mean", unit="s"),
            Query(expr=together("page_table_miss_ratio", unit="token"), legend="misses", unit="percentunit"),
            Query(expr=f"time() - {together('engine_start_time_seconds')}", legend="running for", unit="dtdurations"),
        ),
        columns=("instance", "target", "model_name", "engine"),
        words=STATE_WORDS,
        width=24,
        height=8,
        links=(Link("Streaming board of this target", target, "target"),),
    )


def _load(settings: BoardSettings) -> tuple[Panel, ...]:
    return (
        Panel(
            title="Requests running and waiting",
            description="Requests of all engines chosen, at the last scrape. Waiting that grows is the first sign of "
            "saturation.",
            unit="none",
            queries=(
                Query(expr=f"sum ({best('requests_running')})", legend="running"),
                Query(expr=f"sum ({best('requests_waiting')})", legend="waiting"),
            ),
            low=0.0,
            links=(following(settings, "memory", "Memory & KV"),),
        ),
        Panel(
            title="Tokens per second",
            description="Prompt tokens computed (those found in the cache are not counted where the server tells them "
            "apart) and tokens generated, of all engines chosen.",
            unit="cps",
            queries=(
                Query(expr=f"sum ({rate('prefill_tokens_total')})", legend="prefill"),
                Query(expr=f"sum ({rate('decode_tokens_total')})", legend="decode"),
            ),
            low=0.0,
            links=(following(settings, "streaming", "Streaming"),),
        ),
        Panel(
            title="Time to first token, mean",
            description="Mean over the last 60 s, engine by engine. The Streaming board adds the bounds of the 99th "
            "percentile.",
            unit="s",
            queries=(Query(expr=best("ttft_mean_seconds"), legend=ON_ENGINE),),
            low=0.0,
            links=(following(settings, "streaming", "Streaming"),),
        ),
    )
