"""The waterfall in a terminal, and the page of the report."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from tests.trace.exchanges import exchange, failed, split
from ufwatch.trace.model import Phase, ServerSplit, SplitSource
from ufwatch.trace.report import picture, report_html
from ufwatch.trace.summary import summary
from ufwatch.trace.verdict import verdict
from ufwatch.trace.waterfall import bars, failures, medians, milliseconds, verdict_text, waterfall

COLD, WARM = exchange(), exchange(connecting={})


def test_the_servers_pieces_end_with_the_first_token() -> None:
    found = {bar.name: (round(bar.start, 6), round(bar.end, 6)) for bar in bars(COLD)}
    first = 0.095
    assert found["first_token_wait"][1] == first
    assert found["prefill"] == (round(first - 0.012, 6), first)
    assert found["queue"] == (round(first - 0.013, 6), round(first - 0.012, 6))
    assert found["pre_engine_wait"] == (round(first - 0.015, 6), round(first - 0.013, 6))
    assert found["decode"] == (first, round(first + 0.098, 6))


def test_no_piece_stands_before_the_request_was_sent_or_after_the_first_token() -> None:
    too_much = exchange(server=split(queue=0.5, prefill=0.5, ttft=2.0))
    sent, first = too_much.span(Phase.SEND), too_much.span(Phase.FIRST_TOKEN)
    assert sent is not None
    assert first is not None
    for bar in bars(too_much):
        if bar.side == "server" and bar.name != "decode":
            assert sent.end <= bar.start <= bar.end <= first.end


@pytest.mark.parametrize("width", [20, 80, 200])
def test_rows_fit_the_terminal_and_every_phase_is_seen(width: int) -> None:
    text = waterfall(COLD, width=width, colour=False)
    rows = text.splitlines()[: len(bars(COLD))]
    assert all(len(row) <= max(width, 49) for row in rows)
    for bar, row in zip(bars(COLD), rows, strict=True):
        assert row.lstrip().startswith(bar.name)
        assert milliseconds(bar.end - bar.start) in row
        assert any(eighth in row for eighth in "▏▎▍▌▋▊▉█")
    assert "\x1b" not in text
    assert "\x1b[36m" in waterfall(COLD, width=width, colour=True)


def test_a_failure_names_its_phase_and_nothing_of_a_server_is_obeyed() -> None:
    text = waterfall(failed(), width=80, colour=False)
    assert "failed in tls_handshake: certificate: llm.test:443: self-signed \\x1b[31m<b>\n" in text
    assert failures([COLD, failed(), failed()]) == (
        "2 of 3 failed in tls_handshake: certificate (llm.test:443: self-signed \\x1b[31m<b>)\n"
    )


def test_what_is_not_known_is_said() -> None:
    blind = exchange(server=ServerSplit(SplitSource.NONE, why="nothing came"), loop_lag=0.03)
    text = waterfall(blind, width=80, colour=False)
    assert "its own time is not known (nothing came)" in text
    assert "may be 30.00 ms too long" in text
    assert "prefill" not in text


def test_the_table_keeps_cold_and_warm_apart() -> None:
    text = medians(summary([COLD]), summary([WARM, WARM]))
    assert "cold, 1 request" in text
    assert "warm, 2 requests" in text
    dns = next(line for line in text.splitlines() if line.startswith("dns"))
    assert dns.split() == ["dns", "23.00", "ms", "24", "%", "-"]


def test_the_verdict_in_words() -> None:
    cold = summary([COLD])
    text = verdict_text(verdict(cold, 0.002), cold)
    lines = text.splitlines()
    assert (
        lines[0]
        == "First token after 95.00 ms: tls_handshake 41.00 ms (43 %), dns 23.00 ms (24 %), prefill 12.00 ms (13 %)."
    )
    assert lines[1].startswith("tls_handshake 41.00 ms, should be at most 19.00 ms: no session is reused")
    assert lines[-1] == "A kept connection saves the 74.00 ms of connecting."
    assert "no verdict" in verdict_text(verdict(summary([failed()]), None), summary([failed()]))


class Balanced(HTMLParser):
    """Fails on an element that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, _: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_report_is_whole_and_fetches_nothing() -> None:
    runs = [COLD, WARM, failed()]
    cold, warm = summary([COLD, failed()]), summary([WARM])
    page = report_html(runs, cold, warm, verdict(cold, 0.002))
    reader = Balanced()
    reader.feed(page)
    assert reader.open == []
    assert "<b>" not in page
    assert page.count("<svg") == 2
    assert "src=" not in page
    assert "<script" not in page
    assert "should be at most 19.00 ms" in page


def test_the_picture_of_a_failure_shows_where() -> None:
    assert 'class="failed"' in picture(failed())
    assert 'class="failed"' not in picture(COLD)
