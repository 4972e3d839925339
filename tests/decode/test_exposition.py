"""The cold path: what a line means, and that a bad one costs only itself."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ufwatch.decode.exposition import Line, parse_line, parse_page, parse_value

CAPTURES = sorted((Path(__file__).parents[1] / "captures" / "vllm").glob("*.prom"))

EXEMPLARS = b"""\
# TYPE req_seconds histogram
req_seconds_bucket{le="0.1"} 4 # {trace_id="0af7"} 0.067
req_seconds_bucket{le="+Inf"} 9 # {trace_id="1bc2"} 0.41 1700000000.5
req_seconds_count 9
# TYPE other_total counter
other_total 17
"""


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_every_recorded_page_reads_as_prometheus_client_reads_it(path: Path) -> None:
    body = path.read_bytes()
    page = parse_page(body)
    families = list(text_string_to_metric_families(body.decode()))
    assert page.faults == 0
    assert [(line.name, dict(line.labels), line.value) for line in page.lines] == [
        (sample.name, sample.labels, sample.value) for family in families for sample in family.samples
    ]
    declared = {name.removesuffix("_total") if kind == "counter" else name: kind for name, kind in page.types.items()}
    assert declared == {family.name: family.type for family in families}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'a{x="1"}11', 11.0),
        (b'a{x="1"}532', 532.0),
        (b'a{x="1"}22.10', 22.1),
        (b"a 1", 1.0),
        (b"a\t \t1\t", 1.0),
        (b" a { } 1 ", 1.0),
        (b"a 1\r", 1.0),
        (b"a 1 1700000000123", 1.0),
        (b"a 1 -1.5e3\r", 1.0),
        (b'a 1 # {trace_id="b"} 2', 1.0),
        (b'a{le="1"} 4 1700000000 # {trace_id="}"} 0.067 1700000000.5', 4.0),
        (b"a 5.", 5.0),
        (b"a .5", 0.5),
        (b"a +1E-3", 0.001),
        (b"a -0", 0.0),
        (b"a +Inf", math.inf),
        (b"a inf", math.inf),
        (b"a -INFINITY", -math.inf),
    ],
)
def test_the_value_is_read_whole(line: bytes, value: float) -> None:
    assert parse_line(line)[1::2] == ("a", value)


@pytest.mark.parametrize("text", [b"NaN", b"nan", b"NAN"])
def test_nan_is_a_value(text: bytes) -> None:
    assert math.isnan(parse_line(b"a " + text).value)


@pytest.mark.parametrize(
    "line",
    [
        *(b"a 1_000", b"a 0x10", b"a +nan", b"a 1,5", b"a N/A", b"a --1", b"a 1e", b"a .", b"a True", b"a None"),
        *(b"a", b"a ", b"1", b"", b"{} 1", b"a\x0b1", b"a 1\x0b", b"a 1\x00", b"a \xd9\xa1", b"a 1\n", b"a\n1"),
        *(b"a 1 2 3", b"a 1 x", b"a 1#", b"a 1 # 2", b"a-b 1", b"1a 1", b"\xc3\xa9 1", b"<html>", b"a 1 1_0"),
        *(b'a{x="1"', b'a{x="1" 1', b"a{x=1} 1", b"a{x} 1", b'a{x="1"y="2"} 1', b'a{x="1",,} 1', b"a{,} 1"),
        *(b'a{,x="1"} 1', b'a{="1"} 1', b'a{1x="1"} 1', b'a{x:y="1"} 1', b'a{x="1"}} 1', b'a{x="\\"} 1', b"a{x='1'} 1"),
        *(b'a{x="1",x="2"} 1', b'a{x="\xff"} 1', b'a{x="1\n"} 1', b'a{"b"} 1', b'{x="1"} 1', b'{"a","b"} 1', b'{""} 1'),
        *(b'{x="1","a"} 1', b"a {count:1,sum:2} 3", b'a{x="1"} {count:1,sum:2}', b"a {sum:1} 3"),
    ],
)
def test_a_malformed_line_is_refused_and_costs_only_itself(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_line(line)
    page = parse_page(b"good 1\n" + line.replace(b"\n", b"") + b"\ngood 2\n")
    assert [found.value for found in page.lines if found.name == "good"] == [1.0, 2.0]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (rb'x="a\\"', "a\\"),
        (rb'x="C:\\",', "C:\\"),
        (rb'x="a\"b"', 'a"b'),
        (rb'x="a\nb"', "a\nb"),
        (rb'x="\\n"', "\\n"),
        (rb'x="\d\\\""', '\\d\\"'),
        (rb'x="}, {y=\"2\"} 3 # "', '}, {y="2"} 3 # '),
        (rb' x = " a  b " , ', " a  b "),
        ('x="é中😀"'.encode(), "é中😀"),
        (b'x="a\tb\r"', "a\tb\r"),
        (rb'x=""', ""),
    ],
)
def test_label_values(written: bytes, meant: str) -> None:
    assert parse_line(b"a{" + written + b"} 7")[1:] == ("a", (("x", meant),), 7.0)


def test_labels_keep_their_order_and_the_prefix_is_what_stands_before_the_value() -> None:
    line = parse_line(b'vllm:b_bucket {le="+inf",engine="0",} \t5 9')
    assert line == Line(
        b'vllm:b_bucket {le="+inf",engine="0",} \t', "vllm:b_bucket", (("le", "+inf"), ("engine", "0")), 5.0
    )


def test_quoted_names() -> None:
    assert parse_line(b'{"a.b",x="y"} 1')[1:] == ("a.b", (("x", "y"),), 1.0)
    assert parse_line(b'{"a \\"b\\"" , "x.y"="z"}1')[1:] == ('a "b"', (("x.y", "z"),), 1.0)
    assert parse_line('{"é"} 1'.encode())[1:] == ("é", (), 1.0)


@settings(deadline=None)
@given(st.text(), st.text(st.characters(codec="utf-8"), min_size=1))
@example("\\", "\\")
@example('"', "}")
def test_any_label_value_and_quoted_name_survives_being_written(value: str, name: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') + '"'

    try:
        line = f"{{{quoted(name)},x={quoted(value)}}} 1".encode()
    except UnicodeEncodeError:
        return  # a lone surrogate: cannot be on a page
    assert parse_line(line)[1:3] == (name, (("x", value),))


@settings(deadline=None)
@given(st.binary())
def test_a_page_never_raises(body: bytes) -> None:
    page = parse_page(body)
    assert page.faults + len(page.lines) <= body.count(b"\n") + 1


@settings(deadline=None)
@given(st.floats())
def test_every_number_python_writes_is_read_back(number: float) -> None:
    value = parse_value(repr(number).encode())
    assert value == number or (math.isnan(number) and value is not None and math.isnan(value))


def test_a_last_line_without_a_newline_may_be_cut_and_is_refused() -> None:
    page = parse_page(b"a 98765\nb_total 98")
    assert [line.name for line in page.lines] == ["a"]
    assert page.faults == 1
    assert parse_page(b"a 1\n# EOF").faults == 0


def test_exemplars_in_the_text_format_never_become_values() -> None:
    page = parse_page(EXEMPLARS)
    assert [line.value for line in page.lines] == [4.0, 9.0, 9.0, 17.0]
    assert page.faults == 0


def test_families_in_turn_and_lines_ending_in_crlf() -> None:
    page = parse_page(b"# TYPE a gauge\r\na 1 1700000000123\r\nb 2\r\n\r\na 3\r\n")
    assert [(line.name, line.value) for line in page.lines] == [("a", 1.0), ("b", 2.0), ("a", 3.0)]
    assert page.types == {"a": "gauge"}
    assert page.faults == 0


def test_native_histograms_are_skipped_and_no_fault() -> None:
    page = parse_page(b'a {count:1,sum:2,schema:3} 4\na{x="1"} {count:1,sum:2} # {t="u"} 1\nb 1\n')
    assert [line.name for line in page.lines] == ["b"]
    assert page.faults == 0


def test_types() -> None:
    page = parse_page(
        b"# TYPE a counter\n# HELP a TYPE a gauge\n#\tTYPE  b\tgauge \n# TYPE a gauge\n#TYPE c gauge\n# TYPES d gauge\n"
        b'# TYPE "e.f" summary\n# TYPE vllm:iteration_tokens_total histogram\n# free text\n'
    )
    assert dict(page.types) == {
        "a": "counter",
        "b": "gauge",
        "e.f": "summary",
        "vllm:iteration_tokens_total": "histogram",
    }
    assert page.faults == 0
    assert parse_page(b"# TYPE\n# TYPE a\n# TYPE a b c\n# TYPE 1 gauge\n").faults == 4


def test_hostile_lines_take_time_in_proportion_to_their_length() -> None:
    size = 200_000
    for line in (
        *(b"a{" + b'x="' * size, b'a{x="' + b"\\" * size, b"a{" + b'"a"' * size, b"a" + b" " * size),
        *(b"a 1" + b" " * size + b"x", b"a " + b"1" * size + b"x", b"# TYPE" + b" " * size + b"x", b"{" * size),
        *(b"a{" + b" " * size, b'a{x="1"' + b" " * size + b"y} 1", b"a{" + b"x" * size + b"} 1"),
    ):
        assert parse_page(line + b"\n").lines == ()
