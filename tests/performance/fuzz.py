"""Is the cached path ever wrong? Run ``python -m tests.performance.fuzz [seed]``.

Pages are changed at random, with everything that could fool a reader which trusts the last page, and go to readers that
share one store of layouts. Each answer is compared with two others:

- prometheus_client's parser, line by line: names, labels and values, independent of all our code. Lines that are
  malformed on purpose are known by how they were made, since that parser accepts some of them (a second timestamp, a
  vertical tab for a blank) and gives up the page for others;
- our cold parser of the same bytes, restricted to the wanted names.

``wrong`` also counts faults miscounted, and a changed layout on a page where only values moved. The last line is JSON;
``wrong`` is 0.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

from tests.performance.pages import recorded, sequence
from ufwatch.decode.exposition import parse_page
from ufwatch.decode.layout import Layout, Layouts, PageReader
from ufwatch.metrics import WANTED_SAMPLES

SMALL_WANTED = frozenset(
    name.encode() for name in ("a_total", "b", "h_bucket", "h_sum", "h_count", "vllm:it_total_bucket", "q.r", "z")
)
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
Series = tuple[str, frozenset[tuple[str, str]]]
Found = list[tuple[str, dict[str, str], float]]


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


@lru_cache(maxsize=200_000)
def oracle(line: bytes) -> tuple[str, dict[str, str], float] | None:
    """Return what prometheus_client reads in one well-formed line; None for a comment."""
    samples = [sample for family in text_string_to_metric_families(line.decode()) for sample in family.samples]
    return (samples[0].name, samples[0].labels, float(samples[0].value)) if samples else None


def expected(target: Target, wanted: frozenset[bytes]) -> tuple[Found, int]:
    """Return the wanted samples of a target's page and how many lines must count as faults."""
    found: Found = []
    seen: set[Series] = set()
    faults = 0
    for at, row in enumerate(target.rows):
        if row.kind is Kind.COMMENT:
            continue
        if target.cut and at == len(target.rows) - 1:
            faults += 1
            continue
        if row.kind is Kind.REFUSED:
            faults += not row.name or row.name in wanted  # other lines are not read beyond their name
            continue
        sample = oracle(row.prefix + (b"1" if row.kind is Kind.SKIPPED else row.rest))
        if sample is None or sample[0].encode() not in wanted:
            continue
        series = (sample[0], frozenset(sample[1].items()))
        if series in seen:
            faults += 1  # the first counts, and only it
        elif row.kind is Kind.SAMPLE:
            seen.add(series)
            found.append(sample)
    return found, faults


def same(a: Found, b: Found) -> bool:
    def plain(found: Found) -> list[object]:
        return [(name, labels, "nan" if math.isnan(value) else value) for name, labels, value in found]

    return plain(a) == plain(b)


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


class Fuzz:
    """Counts what it has tried and what went wrong."""

    def __init__(self, seed: int) -> None:
        self.rnd = random.Random(seed)
        self.wrong = self.followed = self.pages = 0
        self.tried: dict[str, int] = {}

    def step(self, target: Target, wanted: frozenset[bytes]) -> None:
        """Change a target's page a little, read it, and judge the answer."""
        rnd, only_values = self.rnd, True
        if len(target.rows) > len(target.base) + 20:
            restarted(target, rnd)
            only_values = False
        values(target, rnd, rnd.choice((0.02, 0.5, 1.0)))
        if rnd.random() < 0.5:
            only_values = False
            for change in rnd.choices(CHANGES, k=rnd.choice((1, 1, 2))):
                change(target, rnd)
                self.tried[change.__name__] = self.tried.get(change.__name__, 0) + 1
        self.judge(target, wanted, keeps_layout=only_values and not target.cut)

    def judge(self, target: Target, wanted: frozenset[bytes], *, keeps_layout: bool) -> None:
        body = target.body()
        layout, numbers = target.reader.read(body)
        found = [(name, dict(labels), value) for (name, labels), value in zip(layout.lines, numbers, strict=True)]
        truth, faults = expected(target, wanted)
        cold: Found = []
        seen: set[Series] = set()
        for line in parse_page(body).lines:
            series = (line.name, frozenset(line.labels))
            if line.name.encode() in wanted and series not in seen:
                seen.add(series)
                cold.append((line.name, dict(line.labels), line.value))
        followed = layout is target.layout
        right = same(found, truth) and same(found, cold) and layout.faults == faults and (followed or not keeps_layout)
        if not right:
            self.wrong += 1
            if self.wrong <= 3:
                print(body.decode(errors="replace"))
                print(f"{found=}\n{truth=}\n{cold=}\nfaults {layout.faults}, not {faults}; {followed=} {keeps_layout=}")
        self.followed += followed
        self.pages += 1
        target.layout = layout


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


def small(fuzz: Fuzz, pages: int) -> None:
    layouts = Layouts(SMALL_WANTED)
    targets = [Target(PageReader(layouts), rows(SMALL, b"@")) for _ in range(6)]
    for target in targets:
        fuzz.judge(target, SMALL_WANTED, keeps_layout=False)
    for at in range(pages):
        target = fuzz.rnd.choice(targets)
        fuzz.step(target, SMALL_WANTED)
        if at % 50 == 0:  # another server behind the same address, and a target that is new
            other = fuzz.rnd.choice(targets)
            other.reader, target.reader, other.layout, target.layout = target.reader, other.reader, None, None
            target.reader = PageReader(layouts)
            fuzz.judge(other, SMALL_WANTED, keeps_layout=False)
            fuzz.judge(target, SMALL_WANTED, keeps_layout=False)


def real(fuzz: Fuzz, pages: int) -> None:
    layouts = Layouts(WANTED_SAMPLES)
    bases = [
        rows(page.rstrip(b"\n"), b" ")
        for model in ("meta-llama/Llama-3.3-70B-Instruct", 'odd \\"}{\\\\')
        for page in sequence(recorded(model=model), 2, busy=True, seed=fuzz.rnd.randrange(99))
    ]
    targets = [Target(PageReader(layouts), base) for base in bases]
    for target in targets:
        fuzz.judge(target, WANTED_SAMPLES, keeps_layout=False)
    for _ in range(pages):
        fuzz.step(fuzz.rnd.choice(targets), WANTED_SAMPLES)


def main() -> None:
    fuzz = Fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    small(fuzz, 6000)
    n_small = fuzz.pages
    real(fuzz, 550)
    print("changes tried:", fuzz.tried)
    print(
        json.dumps({"wrong": fuzz.wrong, "real": fuzz.pages - n_small, "small": n_small, "layout_kept": fuzz.followed})
    )


if __name__ == "__main__":
    main()
