"""Requests as text for a terminal: the waterfall of one, the medians of all, and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ufwatch.render.table import plain
from ufwatch.trace.account import network
from ufwatch.trace.model import Exchange, Phase, ServerSplit, SplitSource
from ufwatch.trace.summary import CONNECTING, Layer, Spread, Summary
from ufwatch.trace.verdict import Finding, Verdict

_NAME_WIDTH, _NUMBER_WIDTH = 24, 11
_LEAST_BAR = 12
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_COLOURS = {"client": "36", "server": "33", "failed": "31"}
_WHERE = {
    SplitSource.SPAN: "the server's span",
    SplitSource.BODY: "the metrics in the answer",
    SplitSource.HISTOGRAM: "the server's histograms",
}


class Bar(NamedTuple):
    """One row of a waterfall, in seconds after the request was wanted."""

    name: str
    start: float
    end: float
    side: str
    """``client`` (measured), ``server`` (its durations, put where they fit) or ``failed``."""
    depth: int = 0


def bars(exchange: Exchange) -> tuple[Bar, ...]:
    """The client's phases, and under them what the server tells of its own time.

    Only durations of the server are known, not moments: they are laid end to end before the first token, and what is
    left of the wait lies in front of them.
    """
    failed = None if exchange.failure is None else exchange.failure.phase
    rows = []
    for span in exchange.spans:
        side = "failed" if span.phase is failed else "client"
        rows.append(Bar(span.phase.value, span.start, span.end, side))
    sent, first, stream = (exchange.span(p) for p in (Phase.SEND, Phase.FIRST_TOKEN, Phase.STREAM))
    if sent is None or first is None or exchange.server.source is SplitSource.NONE:
        return tuple(rows)
    pieces = _pieces(exchange.server)
    at = max(sent.end, first.end - sum(seconds for _, seconds in pieces))
    for name, seconds in pieces:
        end = min(first.end, at + seconds)
        rows.append(Bar(name, at, end, "server", depth=1))
        at = end
    if exchange.server.decode is not None and stream is not None:
        rows.append(Bar("decode", first.end, min(stream.end, first.end + exchange.server.decode), "server", depth=1))
    return tuple(rows)


def _pieces(split: ServerSplit) -> list[tuple[str, float]]:
    named = (("pre_engine_wait", split.pre_engine_wait), ("queue", split.queue), ("prefill", split.prefill))
    known = [(name, seconds) for name, seconds in named if seconds is not None]
    return known or ([("server_ttft", split.ttft)] if split.ttft is not None else [])


def waterfall(exchange: Exchange, *, width: int, colour: bool) -> str:
    """One request, a row for each phase, ended by a newline. ``width`` is that of the terminal."""
    rows, total = bars(exchange), max(exchange.total, 1e-9)
    space = max(_LEAST_BAR, width - _NAME_WIDTH - _NUMBER_WIDTH - 2)
    lines = []
    for row in rows:
        name = f"{'  ' * row.depth}{row.name}".ljust(_NAME_WIDTH)
        drawn = _drawn(row.start / total * space, row.end / total * space, space)
        if colour:
            drawn = f"\x1b[{_COLOURS[row.side]}m{drawn}\x1b[0m"
        lines.append(f"{name} {milliseconds(row.end - row.start):>{_NUMBER_WIDTH}} {drawn}".rstrip())
    lines.append(f"{'total'.ljust(_NAME_WIDTH)} {milliseconds(exchange.total):>{_NUMBER_WIDTH}}")
    lines += _remarks(exchange)
    return "\n".join(lines) + "\n"


def _drawn(start: float, end: float, space: int) -> str:
    """A bar between two columns, to an eighth of a column; never nothing: what was measured is there."""
    first = min(int(start), space - 1)
    eighths = max(1, round(8 * (end - start)))
    full, rest = divmod(eighths, 8)
    full = min(full, space - first)
    return " " * first + _EIGHTHS[8] * full + (_EIGHTHS[rest] if rest and first + full < space else "")


def _remarks(exchange: Exchange) -> list[str]:
    account = network(exchange)
    lines = []
    if exchange.failure is not None:
        where = f" in {exchange.failure.phase.value}" if exchange.failure.phase is not None else ""
        lines.append(f"failed{where}: {plain(exchange.failure.error_type)}: {plain(exchange.failure.detail)}")
    split = exchange.server
    if split.source is SplitSource.NONE:
        if exchange.failure is None:
            lines.append(f"server: its own time is not known ({plain(split.why)})")
    else:
        lines.append(f"server: by {_WHERE[split.source]}{'' if split.exact else ', a mean over several requests'}")
    if account.network is not None:
        lines.append(f"network: a round trip to the {account.network_to} takes {milliseconds(account.network)} at best")
    lines.append(f"unaccounted: {milliseconds(account.unaccounted)}")
    if account.clock_skew_suspected and account.server_ahead is not None:
        lines.append(f"clocks: the server's seems {milliseconds(account.server_ahead)} ahead of ours")
    if exchange.loop_lag > 0.005:
        lines.append(f"this machine was busy: times may be {milliseconds(exchange.loop_lag)} too long")
    return lines


def milliseconds(seconds: float) -> str:
    """A duration in milliseconds, to a hundredth below a second's tenth."""
    value = 1000 * seconds
    return f"{value:.2f} ms" if abs(value) < 100 else f"{value:.0f} ms"


def medians(cold: Summary | None, warm: Summary | None) -> str:
    """A table of all layers, new connections and kept ones apart, ended by a newline."""
    kinds = [(name, found) for name, found in (("cold", cold), ("warm", warm)) if found is not None]
    names = list(dict.fromkeys(layer.name for _, found in kinds for layer in found.layers))
    head = ["median (p90)".ljust(_NAME_WIDTH)] + [f"{name}, {_counted(found)}".rjust(26) for name, found in kinds]
    lines = [" ".join(head)]
    for name in names:
        layers = [found.layer(name) for _, found in kinds]
        estimate = " ~" if any(layer is not None and layer.estimate for layer in layers) else ""
        cells = [_cell(layer).rjust(26) for layer in layers]
        lines.append(" ".join([f"{plain(name)}{estimate}".ljust(_NAME_WIDTH), *cells]).rstrip())
    for title, of in (("first token", "first_token"), ("TPOT", "tpot"), ("total", "total")):
        cells = [_spread(getattr(found, of)).rjust(26) for _, found in kinds]
        lines.append(" ".join([title.ljust(_NAME_WIDTH), *cells]).rstrip())
    return "\n".join(lines) + "\n"


def _counted(found: Summary) -> str:
    failed = f", {found.failed} failed" if found.failed else ""
    return f"{found.requests} request{'s' if found.requests != 1 else ''}{failed}"


def _cell(layer: Layer | None) -> str:
    if layer is None:
        return "-"
    share = "" if layer.share is None else f" {100 * layer.share:3.0f} %"
    return f"{_spread(layer.spread)}{share or '      '}"


def _spread(of: Spread | None) -> str:
    if of is None:
        return "-"
    return milliseconds(of.median) if of.n == 1 else f"{milliseconds(of.median)} ({milliseconds(of.p90)})"


def verdict_text(found: Verdict, summary: Summary) -> str:
    """The verdict in a few lines, ended by a newline."""
    if summary.first_token is None:
        return "No request brought a token, so there is no verdict on layers.\n"
    top = ", ".join(
        f"{layer.name} {milliseconds(layer.spread.median)} ({100 * (layer.share or 0):.0f} %)"
        for layer in found.leading[:3]
    )
    lines = [f"First token after {milliseconds(summary.first_token.median)}: {top}."]
    lines += [_found(each) for each in found.findings]
    if found.unjudged:
        lines.append(f"Nothing to judge by: {', '.join(found.unjudged)}.")
    elif not found.findings:
        lines.append("No layer is out of the ordinary.")
    saved = sum(layer.spread.median for layer in summary.layers if layer.name in CONNECTING)
    if saved > 0.001:
        lines.append(f"A kept connection saves the {milliseconds(saved)} of connecting.")
    return "\n".join(lines) + "\n"


def _found(finding: Finding) -> str:
    what = "was" if finding.against_baseline else "should be at most"
    advice = f": {finding.advice}" if finding.advice else ""
    return f"{finding.layer} {milliseconds(finding.seconds)}, {what} {milliseconds(finding.expected)}{advice}."


def failures(exchanges: Sequence[Exchange]) -> str:
    """What went wrong, each kind once with how often, ended by a newline where there is any."""
    kinds: dict[str, list[Exchange]] = {}
    for each in exchanges:
        if each.failure is not None:
            phase = each.failure.phase.value if each.failure.phase is not None else "start"
            kinds.setdefault(f"{phase}: {each.failure.error_type}", []).append(each)
    lines = []
    for kind, found in kinds.items():
        failure = found[0].failure
        assert failure is not None
        lines.append(f"{len(found)} of {len(exchanges)} failed in {plain(kind)} ({plain(failure.detail)})")
    return "".join(f"{line}\n" for line in lines)
