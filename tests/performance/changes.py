"""What may happen to a page: the changes :mod:`.fuzz` makes, and pages whose lines are known by how they were made."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from ufwatch.decode.layout import Layout, PageReader

# "@" stands between what is before the value and the value.
SMALL = rb"""# HELP a_total help with \n escapes and {braces} 1.0
# TYPE a_total counter
a_total{x="plain"} @1.0
a_total{x="sp ace  two",y="q\"uote\\ \n}"} @2.0
a_total{x="}",y=" 3 "} @3.0
a_total{x="C:\\"}@4.0
# HELP lora labels that churn
# TYPE lora gauge
lora{running="",waiting=""} @1.7e9
# TYPE b gauge
b @4.0
b{t="1"} 	 @5.5 1700000000000
# TYPE h histogram
h_bucket{le="0.1",m="a b"} @1.0 # {trace_id="0af7"} 0.067
h_bucket{le="+Inf",m="a b",} @2.0
h_sum {m="a b"} @0.3
h_count{ m = "a b" } @2.0
h_created{m="a b"} @1.7e9
# HELP vllm:it_total ends in _total and is a histogram
# TYPE vllm:it_total histogram
vllm:it_total_bucket{le="1.0"} @1.0
vllm:it_total_sum @1.0
{"q.r",m="x"} @6.0
{"q.other",m="x"} @7.0
bb{b="b"} @8.0
# TYPE z gauge
z{u="%s"} @9.0""".replace(b"%s", "é中😀".encode())

NUMBERS = (b"0", b"1.0", b"2.5", b"+7", b"-3.25e-7", b"1e300", b".5", b"5.", b"12345678901234567890", b"NaN", b"+Inf")
TAILS = (b"", b"", b"", b" 1700000000123", b" 1700000000.5", b' # {trace_id="a} 9"} 0.5', b" 17 # {} 1 2", b" ", b"\t")
NOT_NUMBERS = (b"1_000", b"N/A", b"", b"0x10", b"1,5", b"+nan", b"1 2 3", b"1\x0b", b"1\x00", b"--1", b"1 # 2")


class Kind(Enum):
    SAMPLE = "well-formed"
    REFUSED = "malformed, by construction"
    SKIPPED = "a native histogram"
    COMMENT = "comment or blank"


@dataclass(frozen=True, slots=True)
class Row:
    """A line, known by how it was made."""

    prefix: bytes
    """What stands before the value; the whole line when it is no sample."""
    rest: bytes = b""
    kind: Kind = Kind.SAMPLE
    name: bytes = b""
    """Of a malformed line: the name it gives, empty if it gives none."""


@dataclass
class Target:
    """A page that keeps changing, and its reader."""

    reader: PageReader
    base: list[Row]
    rows: list[Row] = field(default_factory=list)
    crlf: bool = False
    cut: bool = False
    layout: Layout | None = None

    def __post_init__(self) -> None:
        self.rows = list(self.base)

    def body(self) -> bytes:
        lines = [row.prefix + row.rest for row in self.rows]
        return (b"\r\n" if self.crlf else b"\n").join(lines) + (b"" if self.cut else b"\n")

    def samples(self) -> list[int]:
        """Return where a well-formed sample stands."""
        return [at for at, row in enumerate(self.rows) if row.kind is Kind.SAMPLE]

    def insert(self, row: Row, rnd: random.Random) -> None:
        self.rows.insert(rnd.randrange(len(self.rows) + 1), row)


def rows(page: bytes, border: bytes) -> list[Row]:
    """Return a page's lines, cut at the last ``border`` of each; it belongs to the value's prefix if it is a blank."""
    made = []
    for line in page.split(b"\n"):
        if line[:1] in (b"", b"#"):
            made.append(Row(line, kind=Kind.COMMENT))
        else:
            prefix, _, rest = line.rpartition(border)
            made.append(Row(prefix + border.strip(b"@"), rest))
    return made


# Each of these changes a target's page.


def values(target: Target, rnd: random.Random, share: float = 0.5) -> None:
    for at in target.samples():
        if rnd.random() < share:
            target.rows[at] = Row(target.rows[at].prefix, rnd.choice(NUMBERS) + rnd.choice(TAILS))


def added(target: Target, rnd: random.Random) -> None:
    name = rnd.choice((b"a_total", b"b", b"lora", b"h_bucket", b"bb", b"fresh", b"vllm:prompt_tokens_total"))
    row = Row(b'%b{new="%d\\"",le="%d"} ' % (name, rnd.randrange(4), rnd.randrange(4)), rnd.choice(NUMBERS))
    target.rows.insert(rnd.choice(target.samples()), row)


def removed(target: Target, rnd: random.Random) -> None:
    if len(target.samples()) > 4:
        del target.rows[rnd.choice(target.samples())]


def exchanged(target: Target, rnd: random.Random) -> None:
    """One series more and one less: as many lines as before."""
    added(target, rnd)
    removed(target, rnd)


def swapped(target: Target, rnd: random.Random) -> None:
    a, b = rnd.randrange(len(target.rows)), rnd.randrange(len(target.rows))
    target.rows[a], target.rows[b] = target.rows[b], target.rows[a]


def moved(target: Target, rnd: random.Random) -> None:
    """A line goes elsewhere: a wanted one into an unwanted block, or between a family's comments."""
    target.insert(target.rows.pop(rnd.choice(target.samples())), rnd)


def renamed(target: Target, rnd: random.Random) -> None:
    """A line changes its name in place: a wanted one becomes unwanted, or the reverse."""
    at = rnd.choice(target.samples())
    prefix = target.rows[at].prefix.lstrip()
    brace = prefix.find(b"{")
    labels = prefix[brace:] if brace > 0 else b" "
    target.rows[at] = Row(rnd.choice((b"a_total", b"bb", b"b", b"z", b"zz", b"b ")) + labels, b"3")


def relabelled(target: Target, rnd: random.Random) -> None:
    at = rnd.choice(target.samples())
    target.rows[at] = Row(target.rows[at].prefix.replace(b'="', b'="%d' % rnd.randrange(10), 1), b"2")


def spaced(target: Target, rnd: random.Random) -> None:
    """Blanks before the line, before the labels or before the value: the same series, spelt otherwise."""
    at = rnd.choice(target.samples())
    prefix, rest = target.rows[at].prefix, target.rows[at].rest
    brace = max(0, prefix.find(b"{"))
    edited = rnd.choice((b" " + prefix, prefix + b" \t", prefix[:brace] + b" " + prefix[brace:]))
    target.rows[at] = Row(edited, rest)


def churned(target: Target, rnd: random.Random) -> None:
    """Labels of an unwanted family say what goes on, as ``vllm:lora_requests_info`` does."""
    for at, row in enumerate(target.rows):
        if row.prefix.startswith(b"lora{"):
            text = b'lora{running="%d",waiting="a_total{x=\\"1\\"} 5"} ' % rnd.randrange(1000)
            target.rows[at] = Row(text, rnd.choice(NUMBERS))


def spoiled(target: Target, rnd: random.Random) -> None:
    number = rnd.choice(NOT_NUMBERS)
    name, line = rnd.choice(
        (
            (b"a_total", b"a_total " + number),
            (b"a_total", b'a_total{x="%d"} ' % rnd.randrange(3) + number),
            (b"vllm:prompt_tokens_total", b"vllm:prompt_tokens_total{} " + number),
            (b"other", b"other " + number),
            (b"b", rnd.choice((b'b{t="\xff"} 1', b'b{t="1"', b"b{t=1} 1", b'b{t="1",t="2"} 1', b'b{t="1"} }1'))),
            (b"", rnd.choice((b"5", b"<html>", b"1a 5", b"a-b 5", b"{} 5", b"b", b"b\x0b5"))),
            (b"", rnd.choice((b"1e5", b"NaN", b'{"q.r" 1', b'{"b",b=1} 1', b'{x="1"} 1'))),
        )
    )
    row = Row(line, kind=Kind.REFUSED, name=name)
    if rnd.random() < 0.5:
        target.insert(row, rnd)
    else:
        target.rows[rnd.choice(target.samples())] = row


def composite(target: Target, rnd: random.Random) -> None:
    prefix = rnd.choice((b"b ", b'h_sum{m="a b"} ', b'vllm:num_requests_running{engine="9"} '))
    target.insert(Row(prefix, b"{count:%d,sum:2} 17" % rnd.randrange(9), Kind.SKIPPED), rnd)


def turned(target: Target, rnd: random.Random) -> None:
    """A line keeps what it begins with and becomes something else: number, native histogram, labelled series."""
    at = rnd.choice([at for at, row in enumerate(target.rows) if row.kind in (Kind.SAMPLE, Kind.SKIPPED)])
    at = rnd.choice([at, *(at for at, row in enumerate(target.rows) if row.kind is Kind.SKIPPED)])
    prefix = target.rows[at].prefix
    turns = [Row(prefix, rnd.choice(NUMBERS)), Row(prefix, b"{count:1,sum:2}", Kind.SKIPPED)]
    if b"{" not in prefix:
        turns.append(Row(prefix + b'{t="%d"} ' % rnd.randrange(3), rnd.choice(NUMBERS)))
    target.rows[at] = rnd.choice(turns)


def repeated(target: Target, rnd: random.Random) -> None:
    target.insert(Row(target.rows[rnd.choice(target.samples())].prefix, rnd.choice(NUMBERS)), rnd)


def commented(target: Target, rnd: random.Random) -> None:
    target.insert(
        Row(rnd.choice((b"# TYPE b counter", b"# b 5", b"", b"# EOF", b" #a_total 1")), kind=Kind.COMMENT), rnd
    )


def restarted(target: Target, rnd: random.Random) -> None:
    target.rows, target.crlf, target.cut = list(target.base), rnd.random() < 0.2, False


def truncated(target: Target, rnd: random.Random) -> None:
    target.cut = not target.cut and rnd.random() < 0.5


CHANGES: tuple[Callable[[Target, random.Random], None], ...] = (
    *(added, removed, exchanged, swapped, moved, renamed, relabelled, spaced, churned),
    *(spoiled, composite, turned, repeated, commented, restarted, truncated),
)
