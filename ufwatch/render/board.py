"""What a dashboard is, before any tool's format: rows of panels, each with its queries, its unit and its limits.

Floor 2: pure values. :mod:`ufwatch.render.grafana` writes them as Grafana's JSON; nothing here knows of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from ufwatch.thresholds import Thresholds

COLUMNS = 24
"""Width of a board; every line of panels fills it."""
DEFAULT_INTERVAL_SECONDS = 15.0
UID_PREFIX = "ufwatch-"

GOOD, WARN, BAD, WORST, CLEAR, PLAIN = "green", "orange", "red", "dark-red", "transparent", "text"
"""Colours: of a number that is compared with a limit, of the room between limits, and of a number without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSettings:
    """What a site may want otherwise. ``job``: the only job that is offered; None: every job that ufwatch runs under.

    ``interval_seconds`` is Prometheus' scrape interval: rates are never taken over less than four of it.
    ``grafana_url`` and ``runbook_url`` have no slash at their end; empty: links stay within the Grafana they are in,
    and there are no links to runbooks.
    """

    job: str | None = None
    interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    grafana_url: str = ""
    runbook_url: str = ""
    thresholds: Thresholds = field(default_factory=Thresholds)

    def to(self, board: str) -> str:
        """The address of another board; what follows it is the query."""
        return f"{self.grafana_url}/d/{UID_PREFIX}{board}"


class PanelKind(StrEnum):
    LINES = "timeseries"
    NUMBER = "stat"
    STATES = "state-timeline"
    TABLE = "table"
    HEATMAP = "heatmap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression of a panel and the name of its series.

    ``optional`` says why it may find nothing on a healthy system; a query without it must find something.
    ``unit`` is that of its column where the panel is a table of several queries. ``exemplar`` asks for trace links,
    which only histograms have.
    """

    expr: str
    legend: str = ""
    optional: str = ""
    unit: str = ""
    exemplar: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """From ``value`` on (None: from the bottom) a number is drawn in ``color``."""

    value: float | None
    color: str


def over(*limits: float) -> tuple[Step, ...]:
    """Bad from the last limit on; with two, the first is a warning."""
    colors = (WARN, BAD) if len(limits) == 2 else (BAD,)
    return (Step(None, GOOD), *(Step(limit, color) for limit, color in zip(limits, colors, strict=True)))


def under(limit: float) -> tuple[Step, ...]:
    """Bad under the limit."""
    return Step(None, BAD), Step(limit, GOOD)


@dataclass(frozen=True, slots=True)
class Word:
    """What is written in place of a number that stands for a state."""

    value: int
    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Link:
    """Where the next question is answered. ``field`` is the column or label whose value the link is on, for tables."""

    title: str
    url: str
    field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """``absent`` is shown in place of a number that is not there: never a zero.

    ``between`` names the two series (lower, upper) the truth lies between. ``dashed`` are series that are limits and
    not measurements. ``columns`` are the labels a table shows, in order; ``words`` name the states of numbers.
    ``sort`` is the column a table begins with the smallest of. ``shaded`` fills the room on the bad side of a limit;
    not where being there is no fault by itself. ``stacked`` lays lines on one another: parts of a whole.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: PanelKind = PanelKind.LINES
    width: int = 8
    height: int = 8
    steps: tuple[Step, ...] = (Step(None, PLAIN),)
    absent: str = "no value"
    low: float | None = None
    high: float | None = None
    between: tuple[str, str] | None = None
    dashed: tuple[str, ...] = ()
    shaded: bool = True
    stacked: bool = False
    columns: tuple[str, ...] = ()
    sort: str = ""
    words: tuple[Word, ...] = ()
    links: tuple[Link, ...] = ()
    fixed_windows: str = ""
    """Why the windows of its rates do not follow the zoom; empty where they do."""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A drop-down: ``label`` of the series of ``expr``, as far as the variables before it leave any.

    ``every`` is the pattern of its All: ``.+`` where each series has the label, otherwise ``.*``.
    """

    name: str
    title: str
    expr: str
    label: str
    every: str = ".+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """``name`` is the file's and, behind ``ufwatch-``, the uid. ``variables`` come after the data source."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    settings: BoardSettings

    def __post_init__(self) -> None:
        for row in self.rows:
            list(_lines(row))

    @property
    def uid(self) -> str:
        return f"{UID_PREFIX}{self.name}"

    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row.panels


@dataclass(frozen=True, slots=True)
class Place:
    """Columns and units of height from the upper left corner."""

    x: int
    y: int
    width: int
    height: int


def places(board: Board) -> Iterator[tuple[Row | Panel, Place]]:
    """Every row's heading and every panel with its place, from top to bottom, with no room left between."""
    y = 0
    for row in board.rows:
        yield row, Place(0, y, COLUMNS, 1)
        y += 1
        for line in _lines(row):
            x = 0
            for panel in line:
                yield panel, Place(x, y, panel.width, panel.height)
                x += panel.width
            y += line[0].height


def _lines(row: Row) -> Iterator[list[Panel]]:
    """The row's panels cut into lines that are full and level. ValueError where they cannot be."""
    line: list[Panel] = []
    for panel in row.panels:
        line.append(panel)
        width = sum(one.width for one in line)
        if width > COLUMNS or panel.height != line[0].height:
            raise ValueError(f"{row.title}: {panel.title} does not fit its line")
        if width == COLUMNS:
            yield line
            line = []
    if line:
        raise ValueError(f"{row.title}: the line of {line[0].title} is not full")
