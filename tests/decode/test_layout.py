"""The cached path: always what a fresh parse says, and the same layout for the same shape."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from weakref import WeakSet

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.performance.fuzz import Fuzz, real, small
from ufwatch.decode.exposition import parse_page
from ufwatch.decode.layout import MAX_WANTED, Layout, Layouts, PageReader, PageTooLarge
from ufwatch.metrics import WANTED_SAMPLES
from ufwatch.model import Labels

CAPTURES = sorted((Path(__file__).parents[1] / "captures" / "vllm").glob("*.prom"))
WANTED = frozenset((b"a", b"a_total", b"inf", b"q.r"))
Found = list[tuple[str, Labels, float]]


def reader(wanted: frozenset[bytes] = WANTED) -> PageReader:
    return PageReader(Layouts(wanted))


def pairs(layout: Layout, values: list[float]) -> Found:
    return [(name, labels, value) for (name, labels), value in zip(layout.lines, values, strict=True)]


def cold(body: bytes, wanted: frozenset[bytes] = WANTED) -> Found:
    found: Found = []
    for line in parse_page(body).lines:
        if line.name.encode() in wanted and not any(
            (name, set(labels)) == (line.name, set(line.labels)) for name, labels, _ in found
        ):
            found.append((line.name, line.labels, line.value))
    return found


def plain(found: Found) -> str:
    return repr(found)  # NaN is itself here


def test_random_pages_are_never_read_wrong() -> None:
    fuzz = Fuzz(seed=11)
    small(fuzz, 400)
    real(fuzz, 10)
    assert fuzz.wrong == 0
    assert fuzz.followed > 100


PIECES = (b"a", b"a_total", b"b", b"inf", b'{"q.r"', b"#", b" ", b"\t", b"\n", b"\n", b"\r", b"{", b"}", b'{x="1"}')
MORE_PIECES = (b"1", b"2.5", b"_", b"nan", b" 17", b"{count:", b"\\", b'"', b",", b"=", b"\xff", b"a 1\n", b"a 2\n")
BODIES = st.lists(st.sampled_from((*PIECES, *MORE_PIECES)), max_size=25).map(b"".join)


@settings(deadline=None)
@given(st.lists(BODIES, max_size=6))
def test_no_page_raises_or_is_read_otherwise_than_by_the_cold_path(bodies: list[bytes]) -> None:
    layouts = Layouts(WANTED)
    kept, fresh = PageReader(layouts), PageReader(Layouts(WANTED))
    for body in (*bodies, *bodies):
        layout, values = kept.read(body)
        assert plain(pairs(layout, values)) == plain(cold(body))
        assert layout.faults == fresh.read(body)[0].faults
        assert PageReader(layouts).read(body)[0] is layout


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_every_recorded_page(path: Path) -> None:
    body = path.read_bytes()
    layout, values = reader(WANTED_SAMPLES).read(body)
    assert pairs(layout, values) == cold(body, WANTED_SAMPLES)
    assert layout.faults == 0
    assert layout.has_prefix(b"vllm:") == (b"\nvllm:" in body)


def test_values_move_and_the_layout_stays() -> None:
    one = reader()
    layout, values = one.read(b"# TYPE a gauge\na 1\nb 2\na_total 3\n")
    assert values == [1.0, 3.0]
    again, same_list = one.read(b"# TYPE a gauge\na -2.5e3 17\nb 9\na_total NaN\n")
    assert again is layout
    assert same_list is values, "the list is the reader's own"
    assert values[0] == -2500.0
    assert math.isnan(values[1])


def test_equal_shapes_share_a_layout_and_other_labels_do_not() -> None:
    layouts = Layouts(WANTED)
    one, two, other = PageReader(layouts), PageReader(layouts), PageReader(layouts)
    layout, values = one.read(b'a{m="x"} 1\n')
    shared, of_two = two.read(b'a{m="x"} 5\n')
    assert shared is layout
    assert (values, of_two) == ([1.0], [5.0])
    assert other.read(b'a{m="y"} 1\n')[0] is not layout
    assert one.read(b"a 1\n")[0] is not layout
    assert one.read(b'a{m="x"} 7\n')[0] is layout, "a shape that comes back is known"
    layout.memo["plan"] = 1
    assert two.read(b'a{m="x"} 8\n')[0].memo == {"plan": 1}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"a 1\nb 2\n", b"b 2\na 1\n"),
        (b"a 1\nb 2\n", b"a 1\na_total 2\n"),
        (b"b 1\nb 2\nb 3\n", b"b 1\na 2\nb 3\n"),
        (b"b 1\n", b" a 1\n"),
        (b"a 1\n", b'a {x="1"} 1\n'),
        (b'a{x="1"} 1\n', b'a{x="1"}  1\n'),
        (b'a{x="1"}1\n', b'a{x="1"} 1\n'),
        (b"# a 1\n", b"a 1\n"),
        (b"a 1\n", b"a 1_0\n"),
        (b"a 1_0\n", b"a 10\n"),
        (b"a 1\n", b"a \n"),
        (b"a 1\n", b"1\n"),
        (b"inf 1\n", b"inf\n"),
        (b"inf 1\n", b"Infinity\n"),
        (b"a 1\n", b"a 1\x0b\n"),
        (b"a 1\n", b"a 1"),
        (b"a 1\n", b"a {count:1}\n"),
        (b"a {count:1}\n", b"a 1\n"),
        (b"a {count:1}\n", b"a {count:2}\n"),
        (b"a 1\na 2\n", b"a 1\na 3\n"),
        (b"a 1\na 2\n", b'a 1\na {x="1"} 2\n'),
        (b"a 1\na 2\n", b'a 1\na  {x="1"} 2\n'),
        (b"a 1\na 2\n", b"a 1_0\na 2\n"),
        (b"a 1\na 2\n", b"a 1\na x\n"),
        (b'{"q.r",x="1"} 1\n', b'{"q.x",x="1"} 1\n'),
        (b'{"q.x"} 1\n', b'{"q.r"} 1\n'),
        (b'{"a"} 1\n', b"a 1\n"),
        (b"a 1\n", b"a 1\r\n"),
        (b"a 1\r\n\r\n", b"a 2\r\n\r\n"),
        (b"b\n", b"b_total 1\n"),
        (b"b x\n", b"b 1\n"),
        (b"a 1\n", b""),
        (b"a 1\n", b"\xff\xfe<html>\n"),
    ],
)
def test_a_page_after_another_is_read_like_the_first_of_its_kind(before: bytes, after: bytes) -> None:
    for first, then in ((before, after), (after, before)):
        one = reader()
        one.read(first)
        layout, values = one.read(then)
        assert plain(pairs(layout, values)) == plain(cold(then))
        assert layout.faults == reader().read(then)[0].faults


def test_labels_of_unwanted_families_may_churn() -> None:
    one = reader()
    layout, _ = one.read(b'lora{running="x"} 1\na 1\n')
    for adapter in (b"y", b'\\"a 9', b"}", b""):
        again, values = one.read(b'lora{running="' + adapter + b'"} 2\na 2\n')
        assert again is layout
        assert values == [2.0]


@pytest.mark.parametrize(
    ("body", "faults"),
    [
        (b"a 1\na_total 2\nb 3\n", 0),
        (b"a x\n", 1),
        (b"b x\n", 0),
        (b"<html>\n5\n", 2),
        (b"a 1\na 2\n", 1),
        (b'a{x="1",y="2"} 1\na{y="2",x="1"} 2\n', 1),
        (b"a x\na 2\n", 1),
        (b"a 1\na x\n", 1),
        (b'a{x="\xff"} 1\n', 1),
        (b"a {count:1}\n", 0),
        (b"a 1\nb 2", 1),
        (b"a 1\n# EOF", 0),
        (b"", 0),
    ],
)
def test_faults(body: bytes, faults: int) -> None:
    assert reader().read(body)[0].faults == faults


def test_of_a_series_that_repeats_the_first_counts() -> None:
    one = reader()
    layout, values = one.read(b'a{x="1"} 1\na{x="1"} 2\na 3\na 4\n')
    assert values == [1.0, 3.0]
    again, values = one.read(b'a{x="1"} 5\na{x="1"} 6\na 7\na 8\n')
    assert again is layout
    assert values == [5.0, 7.0]


def test_a_malformed_page_leaves_the_reader_sound() -> None:
    one = reader()
    layout, _ = one.read(b"a 1\na_total 2\n")
    bad, values = one.read(b"a 5\na_total 2_0\n")
    assert (bad.lines, values, bad.faults) == (layout.lines[:1], [5.0], 1)
    assert one.read(b"a 6\na_total 7\n") == (layout, [6.0, 7.0])


def test_has_prefix_sees_wanted_and_unwanted_samples_only() -> None:
    layout, _ = reader().read(b'# HELP c x\nd:x 1\n a 1\n{"e.f",y="z"} 1\n')
    assert [layout.has_prefix(text) for text in (b"d:", b"a", b"e.", b"c", b"y", b"d:", b"a_")] == [
        *(True, True, True, False, False, True, False)
    ]


def test_a_shape_that_never_settles_keeps_few_layouts_alive() -> None:
    layouts = Layouts(WANTED, recent=16)
    one = PageReader(layouts)
    seen: WeakSet[Layout] = WeakSet()
    for lines in range(1, 301):
        seen.add(one.read(b"".join(b'a{x="%d"} 1\n' % line for line in range(lines)))[0])
    gc.collect()
    assert len(seen) == len(layouts) == 17
    assert len(layouts._known) <= 18, "nothing is left of a layout that was forgotten"


def test_large_pages_are_not_kept_once_left() -> None:
    layouts = Layouts(WANTED)
    one = PageReader(layouts)
    for number in range(4):
        one.read(b"# %d" % number + b"x" * (6 << 20) + b"\n")
    gc.collect()
    assert len(layouts) == 3


def test_a_shape_that_was_left_is_known_for_a_while() -> None:
    one = PageReader(Layouts(WANTED, recent=1))
    layout, _ = one.read(b"a 1\n")
    one.read(b"a_total 1\n")
    assert one.read(b"a 2\n") == (layout, [2.0])


def test_the_layout_of_a_reader_that_is_gone_goes_with_it() -> None:
    layouts = Layouts(WANTED)
    PageReader(layouts).read(b"a 1\n")
    gc.collect()
    assert len(layouts) == 0


@pytest.mark.parametrize("line", ['a{{x="{}"}} 1\n', "a {}_\n"])
def test_a_page_with_too_many_wanted_lines_is_refused_and_the_reader_stays_sound(line: str) -> None:
    layouts = Layouts(WANTED)
    one = PageReader(layouts)
    before, _ = one.read(b"a 1\n")
    body = "".join(line.format(number) for number in range(MAX_WANTED)).encode()
    with pytest.raises(PageTooLarge, match="more than 20000 series"):
        one.read(body + b"a 1\n")
    gc.collect()
    assert len(layouts) == 1
    assert one.read(b"a 2\n") == (before, [2.0])
    assert len(one.read(body)[0].lines) in (0, MAX_WANTED)


def test_unwanted_lines_are_not_limited() -> None:
    assert reader().read(b"b 1\n" * (MAX_WANTED + 1) + b"a 2\n")[1] == [2.0]
