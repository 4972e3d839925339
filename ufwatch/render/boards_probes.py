"""What requests of our own see: the row of the probes on the streaming board. Floor 2: pure."""

from __future__ import annotations

from ufwatch.render.board import Panel, PanelKind, Query, Row
from ufwatch.render.board_query import ON_TARGET, RATE_WINDOW, rate, select

_CONFIGURED = "only where probes are configured"


def what_probes_see() -> Row:
    """Each first token and each interval as a dot with its trace, and where the time of the last request went."""
    return Row(
        "What probes see",
        (
            _buckets(
                "Time to first token of probes",
                "probe_ttft_seconds",
                "From the last byte sent to the first content, network included. Each marker is a request that leads "
                "to its trace, where the data source knows what `trace_id` leads to.",
                width=12,
            ),
            Panel(
                title="Where the time of a probe goes",
                description="The phases of the last probe, stacked up to all of its time; those it did not have are "
                "absent: over a kept connection there is no connecting. Of several targets it is the mean of those "
                "that have the phase, so choose one.",
                unit="s",
                queries=(
                    Query(
                        expr=f"avg by (phase) ({select('probe_phase_seconds')})",
                        legend="{{phase}}",
                        optional=_CONFIGURED,
                    ),
                ),
                low=0.0,
                stacked=True,
                absent="no probe, or the last one failed",
                width=12,
                height=9,
            ),
            _buckets(
                "Time between tokens of probes",
                "probe_itl_seconds",
                "Of single tokens that arrived alone. A probe has few: the server's own histogram has all.",
                width=8,
            ),
            Panel(
                title="Probes, and those that failed",
                description="Per second: requests made, and those that failed by the phase they failed in.",
                unit="cps",
                queries=(
                    Query(expr=rate("probe_requests_total"), legend=ON_TARGET + " probes", optional=_CONFIGURED),
                    Query(
                        expr=f"{rate('probe_failures_total')} > 0",
                        legend=ON_TARGET + " failed in {{phase}}",
                        optional="no probe fails",
                    ),
                ),
                low=0.0,
                absent="no probe",
                width=8,
                height=9,
            ),
            Panel(
                title="Spans to the trace backend",
                description="Per second: spans of ufwatch's own and of servers that the backend took, those it did not "
                "get, and what servers sent.",
                unit="cps",
                queries=(
                    Query(
                        expr=rate("otlp_spans_exported_total"),
                        legend="{{instance}} taken",
                        optional="only where traces are sent",
                    ),
                    Query(
                        expr=f"{rate('otlp_spans_dropped_total')} > 0",
                        legend="{{instance}} lost: {{reason}}",
                        optional="no span is lost",
                    ),
                    Query(
                        expr=rate("otlp_received_spans_total"),
                        legend="{{instance}} received",
                        optional="only where servers' spans are taken",
                    ),
                    Query(
                        expr=rate("otlp_forwarded_spans_total"),
                        legend="{{instance}} passed on",
                        optional="only where servers' spans are passed on",
                    ),
                    Query(
                        expr=f"{rate('otlp_forward_dropped_spans_total')} > 0",
                        legend="{{instance}} not passed on: {{reason}}",
                        optional="no span is lost",
                    ),
                    Query(
                        expr=f"{rate('otlp_refused_requests_total')} > 0",
                        legend="{{instance}} refused: {{reason}}",
                        optional="no request is refused",
                    ),
                ),
                low=0.0,
                absent="no traces are sent",
                width=8,
                height=9,
            ),
        ),
    )


def _buckets(title: str, family: str, description: str, *, width: int) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit="s",
        kind=PanelKind.HEATMAP,
        queries=(
            Query(
                expr=f"sum by (le) (increase({select(f'{family}_bucket')}[{RATE_WINDOW}]))",
                legend="{{le}}",
                optional=_CONFIGURED,
                exemplar=True,
            ),
        ),
        absent="no probe",
        width=width,
        height=9,
    )
