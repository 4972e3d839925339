"""What watching costs, and whether it works: the row of the agent itself. Floor 2: pure."""

from __future__ import annotations

from ufwatch.render.board import BAD, GOOD, Panel, PanelKind, Query, Row, Word
from ufwatch.render.board_query import ON_TARGET, best, rate


def the_agent() -> Row:
    """The overview's last row."""
    panels = (
        _own(
            "Duration of scrapes",
            "How long the last scrape of each target took.",
            "s",
            Query(expr=best("scrape_seconds"), legend=ON_TARGET),
        ),
        _own(
            "Size of scrapes",
            "Bytes received by the last scrape of each target.",
            "bytes",
            Query(expr=best("scrape_bytes"), legend=ON_TARGET),
        ),
        _own(
            "Scrapes, failures, unreadable lines",
            "Per second: scrapes made, those that failed by reason, and lines of a page that could not be read.",
            "cps",
            Query(expr=rate("scrapes_total"), legend=ON_TARGET + " scrapes"),
            Query(
                expr=f"{rate('scrape_failures_total')} > 0",
                legend=ON_TARGET + " {{reason}}",
                optional="no scrape fails",
            ),
            Query(
                expr=f"{rate('parse_errors_total')} > 0",
                legend=ON_TARGET + " unreadable lines",
                optional="every line can be read",
            ),
        ),
        _own(
            "Processor time of the agent",
            "Share of one core that each agent uses.",
            "percentunit",
            Query(expr=rate("agent_cpu_seconds_total"), legend="{{instance}}"),
            width=6,
        ),
        _own(
            "Memory of the agent",
            "Resident memory of each agent.",
            "bytes",
            Query(expr=best("agent_resident_memory_bytes"), legend="{{instance}}"),
            width=6,
        ),
        _own(
            "Targets watched",
            "Targets configured or discovered. A fleet that shrinks without anybody's doing shows here.",
            "none",
            Query(expr=best("targets"), legend="{{instance}}"),
            width=6,
        ),
        Panel(
            title="Agents and their last reload",
            description="The version that runs, and whether the last reload of its configuration was good: a bad one "
            "is refused and the old one goes on.",
            unit="none",
            kind=PanelKind.TABLE,
            queries=(
                Query(
                    expr=f"{best('config_reload_success')} * on (job, instance) group_left (version, python) "
                    f"{best('build_info')}"
                ),
            ),
            columns=("instance", "version", "python", "Value"),
            words=(Word(0, "refused", BAD), Word(1, "good", GOOD)),
            width=6,
        ),
    )
    return Row("The agent itself", panels)


def _own(title: str, description: str, unit: str, *queries: Query, width: int = 8) -> Panel:
    return Panel(title=title, description=description, unit=unit, queries=queries, low=0.0, width=width)
