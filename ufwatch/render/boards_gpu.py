"""The board of the cards: work, heat, power and clocks, faults, ageing, and the compiling of graphs. Floor 2: pure."""

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
    Variable,
    Word,
)
from ufwatch.render.board_parts import UP_OR_DOWN, alerts_firing, believable, variables
from ufwatch.render.board_query import ON_CARD, ON_TARGET, best, by, labels_of, rate, select
from ufwatch.spec import PREFIX

_CARD = 'gpu=~"$gpu"'
_READ = "only where a card is read"
_EXPORTER = "only with an exporter inside the server"


def gpu(settings: BoardSettings) -> Board:
    """Every card by itself; target and model narrow the graphs' row and the table of who uses which card."""
    return Board(
        name="gpu",
        title="ufwatch / GPU & ageing",
        description="Does the card work, is it held down, is it breaking or ageing, and who uses it?",
        rows=(
            Row("Work", _work(settings)),
            Row("Heat, power, clocks", _clocks()),
            Row("Faults and ageing", _faults(settings)),
            Row("Compiling and capturing graphs", _graphs(settings)),
            believable(settings),
        ),
        variables=(
            *variables(settings),
            Variable("gpu", "GPU", f'{PREFIX}gpu_up{{job=~"$job",instance=~"$instance"}}', "gpu"),
        ),
        settings=settings,
    )


def _lines(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    steps: tuple[Step, ...] = (Step(None, CLEAR),),
    high: float | None = None,
    dashed: tuple[str, ...] = (),
    absent: str = "not reported",
    width: int = 6,
    shaded: bool = True,
) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=queries,
        steps=steps,
        low=0.0,
        high=high,
        dashed=dashed,
        absent=absent,
        width=width,
        shaded=shaded,
    )


def _card(name: str, legend: str = "", optional: str = _READ, **equal: str) -> Query:
    return Query(expr=best(name, _CARD, **equal), legend=f"{ON_CARD}{legend}", optional=optional)


def _card_rate(name: str, legend: str = "", optional: str = _READ) -> Query:
    return Query(expr=rate(name, _CARD), legend=f"{ON_CARD}{legend}", optional=optional)


def _work(settings: BoardSettings) -> tuple[Panel, ...]:
    memory = "max {} ({})".format
    card = by(labels_of("gpu_memory_bytes", "kind"))
    share = " / ".join(memory(card, select("gpu_memory_bytes", _CARD, kind=kind)) for kind in ("used", "total"))
    return (
        _lines(
            "SM utilization",
            "Share of streaming multiprocessors with a warp resident. Low is a fault only while requests wait on every "
            f"card of their target: the alert's limit is {settings.thresholds.sm_utilization * 100:g} %.",
            "percentunit",
            _card("sm_utilization_ratio", optional="only where the card reports it"),
            steps=(Step(None, CLEAR), Step(settings.thresholds.sm_utilization, WARN)),
            shaded=False,
            high=1.0,
            absent="the card does not report it",
        ),
        _lines(
            "Share of time any kernel ran",
            "What nvidia-smi calls utilization: one small kernel makes it 100 %. Not SM utilization.",
            "percentunit",
            _card("gpu_busy_ratio"),
            high=1.0,
        ),
        _lines(
            "Memory in use",
            "Used over total. A server that preallocates fills the card by design.",
            "percentunit",
            Query(expr=share, legend=ON_CARD, optional=_READ),
            steps=(Step(None, CLEAR), Step(settings.thresholds.kv_usage, WARN)),
            high=1.0,
        ),
        _lines(
            "Memory in bytes",
            "Used, total, and what the driver keeps for itself, which is not part of used.",
            "bytes",
            _card("gpu_memory_bytes", " {{kind}}"),
        ),
        Panel(
            title="Cards that answer",
            description="Down: the card is lost, or the driver does not answer.",
            unit="short",
            kind=PanelKind.STATES,
            queries=(_card("gpu_up"),),
            words=UP_OR_DOWN,
            absent="no card is read",
            height=6,
        ),
        Panel(
            title="Who uses which card",
            description="The cards each target is configured to use. A card that is missing here belongs to no target, "
            "and its signals to none.",
            unit="short",
            kind=PanelKind.TABLE,
            queries=(Query(expr=best("target_gpu_info", _CARD), optional="only where a target names its cards"),),
            columns=("instance", "target", "gpu", "uuid", "mig"),
            absent="no target names its cards",
            height=6,
        ),
        alerts_firing(settings, width=8, height=6),
    )


def _clocks() -> tuple[Panel, ...]:
    return (
        _lines("Temperature", "Of the GPU.", "celsius", _card("gpu_temperature_celsius")),
        _lines(
            "Power and its limit",
            "Power drawn, and the limit in force (dashed).",
            "watt",
            _card("gpu_power_watts"),
            _card("gpu_power_limit_watts", " limit"),
            dashed=("limit",),
        ),
        _lines(
            "Mean power, from energy",
            "Growth of the energy counter: misses no peak between two readings.",
            "watt",
            _card_rate("gpu_energy_joules_total", optional="only where the card counts energy"),
        ),
        _lines(
            "PCIe traffic",
            "To the card (rx) and from it (tx).",
            "binBps",
            _card("gpu_pcie_bytes_per_second", " {{kind}}", optional="only where the card reports it"),
        ),
        _lines(
            "SM clock and its highest",
            "Clock of the streaming multiprocessors, and the highest it can have (dashed).",
            "hertz",
            _card("gpu_clock_hertz", kind="sm"),
            _card("gpu_clock_max_hertz", " highest", kind="sm"),
            dashed=("highest",),
        ),
        _lines(
            "Memory clock and its highest",
            "Clock of the memory, and the highest it can have (dashed).",
            "hertz",
            _card("gpu_clock_hertz", kind="memory"),
            _card("gpu_clock_max_hertz", " highest", kind="memory"),
            dashed=("highest",),
        ),
        _lines(
            "Time the clocks were held down",
            "Share of time, by reason. Reasons overlap and are never added.",
            "percentunit",
            _card_rate("gpu_throttle_seconds_total", " {{reason}}"),
            high=1.0,
            width=12,
        ),
    )


def _faults(settings: BoardSettings) -> tuple[Panel, ...]:
    return (
        _lines(
            "Ageing: drift of the step time",
            "How much longer engine steps of the last hour took than in the card's first week, under the same load, "
            "clocks, temperature and engine. The alert wants an hour over the limit.",
            "percentunit",
            _card("gpu_ageing_drift_ratio", optional="only once enough of both has been seen"),
            steps=(Step(None, CLEAR), Step(settings.thresholds.ageing, BAD)),
            absent="not enough seen yet",
        ),
        _lines(
            "ECC errors per second",
            "Memory errors corrected and uncorrected. One uncorrected error within a day is an alert.",
            "cps",
            _card_rate("gpu_ecc_errors_total", " {{type}}", "only where the card has ECC"),
        ),
        _lines(
            "XID errors per second",
            "Errors of the driver, by what kind of trouble they speak of. Their numbers are in the agent's log.",
            "cps",
            _card_rate("gpu_xid_errors_total", " {{class}}"),
        ),
        _lines(
            "PCIe replays and refused readings per second",
            "Packets sent again, and values of the driver that were sentinels or impossible.",
            "cps",
            _card_rate("gpu_pcie_replays_total", " replays"),
            _card_rate("gpu_rejected_values_total", " refused"),
        ),
        Panel(
            title="Row remapping pending",
            description="A faulty row of memory waits for a reset of the card: plan one. An alert.",
            unit="short",
            kind=PanelKind.STATES,
            queries=(_card("gpu_row_remap_pending", optional="only where the card has row remapping"),),
            words=(Word(0, "none", GOOD), Word(1, "pending", BAD)),
            absent="not reported",
            width=24,
            height=5,
        ),
    )


def _graphs(settings: BoardSettings) -> tuple[Panel, ...]:
    limit = settings.thresholds.compile
    return (
        Panel(
            title="Time the newest start spent on graphs",
            description="By phase (compile or capture) and by whether the compile cache was cold or warm.",
            unit="s",
            kind=PanelKind.NUMBER,
            queries=(
                Query(
                    expr=best("graph_compile_last_start_seconds"),
                    legend=ON_TARGET + " {{phase}} {{cache}}",
                    optional=_EXPORTER,
                ),
            ),
            absent=_EXPORTER,
        ),
        Panel(
            title="Compiling within 30 minutes",
            description=f"Time spent compiling or capturing. Over {limit:g} s on an engine that has run for an hour is "
            "an alert; at a start it is expected.",
            unit="s",
            queries=(
                Query(
                    expr=f"sum {by(labels_of('graph_compile_seconds_total', 'phase', 'cache'))} "
                    f"(max {by(labels_of('graph_compile_seconds_total'))} "
                    f"(increase({select('graph_compile_seconds_total')}[30m])))",
                    legend=ON_TARGET,
                    optional=_EXPORTER,
                ),
            ),
            steps=(Step(None, CLEAR), Step(limit, BAD)),
            low=0.0,
            absent=_EXPORTER,
            fixed_windows="the alert counts over thirty minutes",
        ),
        Panel(
            title="Graphs compiled or captured per second",
            description="A steady trickle means shapes that no graph was made for.",
            unit="cps",
            queries=(
                Query(expr=rate("graph_compiles_total"), legend=ON_TARGET + " {{phase}} {{cache}}", optional=_EXPORTER),
            ),
            low=0.0,
            absent=_EXPORTER,
        ),
    )
