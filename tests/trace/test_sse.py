"""Events come out of bytes whole, wherever the bytes were cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ufwatch.trace.sse import EndMark, Event, EventTooLarge, SseParser


def parsed(*reads: bytes, cap: int = 1 << 20) -> list[Event]:
    parser = SseParser(cap)
    return [event for read in reads for event in parser.feed(read)] + parser.close()


def data(*reads: bytes) -> list[str]:
    return [event.data for event in parsed(*reads)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_every_line_end(end: bytes) -> None:
    assert data(b"data: a" + end + end + b"data: b" + end + end) == ["a", "b"]


def test_a_line_end_cut_in_two_is_one() -> None:
    assert data(b"data: a\r", b"\n\r", b"\ndata: b\r", b"\r", b"\n") == ["a", "b"]


def test_comments_and_blocks_without_data_are_no_events() -> None:
    assert data(b": keep-alive\n\n:\n\nretry: 3000\n\nid: 1\n\ndata: a\n\n: more\ndata: b\n\n") == ["a", "b"]


def test_several_data_lines_are_one_event() -> None:
    assert data(b"data: a\ndata:b\ndata\ndata:  c\n\n") == ["a\nb\n\n c"]


def test_the_kind_is_of_its_own_event_only() -> None:
    events = parsed(b"event: error\ndata: a\n\ndata: b\n\n")
    assert [event.kind for event in events] == ["error", ""]


def test_events_of_one_read_share_its_index() -> None:
    events = parsed(b"data: a\n\ndata: b\n\nda", b"ta: c\n", b"\n")
    assert [event.read for event in events] == [0, 0, 2]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r"])
def test_a_last_event_without_a_blank_line_is_told_apart(end: bytes) -> None:
    assert parsed(b"data: a\n\ndata: [DONE]" + end) == [Event("a", 0), Event("[DONE]", 0, ended=False)]


def test_a_byte_order_mark_is_not_read() -> None:
    assert data(b"\xef\xbb\xbfdata: a\n\n") == ["a"]


def test_characters_cut_between_reads_are_whole() -> None:
    whole = "data: Grüße 你好 🙂\n\n".encode()
    assert all(data(whole[:cut], whole[cut:]) == ["Grüße 你好 🙂"] for cut in range(len(whole)))


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert data(b"data: \xff\n\n") == ["�"]


@pytest.mark.parametrize("body", [b"data: " + b"x" * 200, b": " + b"x" * 200, b"data: xxxxxxxx\n" * 20])
def test_what_is_over_the_cap_is_refused(body: bytes) -> None:
    with pytest.raises(EventTooLarge):
        parsed(body, cap=100)
    with pytest.raises(EventTooLarge):
        parsed(*(body[i : i + 1] for i in range(len(body))), cap=100)


def test_the_cap_is_for_each_event_and_not_for_comments_in_a_row() -> None:
    assert len(data(b"data: xxxxxxxx\n\n" * 1000)) == 1000
    assert parsed(b": still here\n" * 1000 + b"data: a\n\n", cap=100) == [Event("a", 0)]


LINES = st.sampled_from([b"data: {}", b"data:x", b": c", b"event: e", b"", b"data: \xc3\xa4", b"id", b"data"])
BODIES = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n"])), max_size=12)


@given(BODIES, st.lists(st.integers(0, 120), max_size=8))
@settings(max_examples=150, deadline=None)
def test_any_split_gives_the_same_events(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    body = b"".join(line + end for line, end in lines)
    places = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    reads = [body[start:stop] for start, stop in pairwise(places)]
    whole = [event._replace(read=0) for event in parsed(body)]
    assert [event._replace(read=0) for event in parsed(*reads)] == whole


def test_the_end_mark_is_a_line_of_its_own_however_it_is_cut() -> None:
    body = b'data: {"text": "data: [DONE]"}\n\ndata: [DONE]\n\n'
    at = body.rindex(b"data: ")
    for cut in range(len(body) + 1):
        mark = EndMark()
        assert mark.came(body[:cut]) is (cut >= at + len(b"data: [DONE]"))
        assert mark.came(body[cut:])
    slow = EndMark()
    assert [slow.came(body[place : place + 1]) for place in range(len(body))].index(True) == len(body) - 3
