"""Is the cached path ever wrong? Run ``python -m tests.performance.fuzz [seed]``; the last line is JSON, ``wrong`` is 0.

Pages are changed at random, with everything that could fool a reader which trusts the last page, and go to readers that
share one store of layouts. Each answer is compared with two others:

- prometheus_client's parser, line by line: names, labels and values, independent of all our code. Lines that are
  malformed on purpose are known by how they were made, since that parser accepts some of them (a repeated timestamp, the
  digits of other scripts) and gives up the page for others;
- our cold parser of the same bytes, restricted to the wanted names.

``wrong`` also counts a changed layout on a page where only values moved.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

from tests.performance.pages import recorded, sequence
from ufwatch.decode.exposition import parse_page
from ufwatch.decode.layout import Layout, Layouts, PageReader
from ufwatch.metrics import WANTED_SAMPLES

SMALL_WANTED = frozenset(
    name.encode() for name in ("a_total", "b", "h_bucket", "h_sum", "h_count", "vllm:it_total_bucket", "q.r", "z")
)
SMALL = rb"""# HELP a_total help with \n escapes and {braces} 1.0
# TYPE a_total counter
a_total{x="plain"} 1.0
a_total{x="sp ace  two",y="q\"uote\\ \n}"} 2.0
a_total{x="}",y=" 3 "} 3.0
a_total{x="C:\\"}4.0
# HELP lora labels that churn
# TYPE lora gauge
lora{running="",waiting=""} 1.7e9
# TYPE b gauge
b 4.0
b{t="1"} 5.5 1700000000000
# TYPE h histogram
h_bucket{le="0.1",m="a b"} 1.0 # {trace_id="0af7"} 0.067
h_bucket{le="+Inf",m="a b"} 2.0
h_sum{m="a b"} 0.3
h_count{m="a b"} 2.0
h_created{m="a b"} 1.7e9
# HELP vllm:it_total ends in _total and is a histogram
# TYPE vllm:it_total histogram
vllm:it_total_bucket{le="1.0"} 1.0
vllm:it_total_sum 1.0
{"q.r",m="x"} 6.0
{"q.other",m="x"} 7.0
bb{b="b"} 8.0
# TYPE z gauge
z{u="%s"} 9.0""".replace(b"%s", "é中😀".encode())

NUMBERS = (b"0", b"1.0", b"2.5", b"+7", b"-3.25e-7", b"1e300", b".5", b"5.", b"12345678901234567890", b"NaN", b"+Inf")
TAILS = (b"", b"", b"", b" 1700000000123", b" 1700000000.5", b' # {trace_id="a} 9"} 0.5', b" 17 # {} 1 2", b" ", b"\t")
NOT_NUMBERS = (b"1_000", b"N/A", b"", b"0x10", b"1,5", b"+nan", b"1 2 3", b"1\x0b", b"1\x00", b"--1", b"1 # 2")
Series = tuple[str, frozenset[tuple[str, str]]]
Found = list[tuple[str, dict[str, str], float]]


@dataclass
class Target:
    """A page that keeps changing, and its reader."""

    reader: PageReader
    base: list[bytes]
    lines: list[bytes] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)
    """Lines that must be refused, by construction."""
    skipped: set[bytes] = field(default_factory=set)
    crlf: bool = False
    cut: bool = False
    layout: Layout | None = None

    def __post_init__(self) -> None:
        self.lines = list(self.base)

    def body(self) -> bytes:
        return (b"\r\n" if self.crlf else b"\n").join(self.lines) + (b"" if self.cut else b"\n")

    def samples(self) -> list[int]:
        """Return where a well-formed sample stands."""
        odd = self.refused | self.skipped
        return [at for at, line in enumerate(self.lines) if line and line[:1] != b"#" and line not in odd]


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
    for at, line in enumerate(target.lines):
        if target.cut and at == len(target.lines) - 1:
            faults += bool(line.strip()) and not line.startswith(b"#")
        elif line in target.refused:
            faults += not line.startswith(b"other")  # an unwanted line is not read beyond its name
        elif line not in target.skipped:
            sample = oracle(line)
            if sample is not None and sample[0].encode() in wanted:
                series = (sample[0], frozenset(sample[1].items()))
                if series in seen:
                    faults += 1
                else:
                    seen.add(series)
                    found.append(sample)
    return found, faults


def same(a: Found, b: Found) -> bool:
    def plain(found: Found) -> list[object]:
        return [(name, labels, "nan" if math.isnan(value) else value) for name, labels, value in found]

    return plain(a) == plain(b)


# Each changes a target's page; the name is what the report counts.


def prefix_of(line: bytes) -> bytes:
    """Return a sample line up to its value, by the generator's own habit of never writing ``} `` in front of one twice."""
    name = line.split(b"{")[0] if b" # " not in line.split(b"{")[0] else line.split(b" ")[0] + b" "
    if b"{" not in line or line.split(b" ")[0].isalnum():
        return line.split(b" ")[0] + b" "
    at, quoted, escaped = len(name), False, False
    for at in range(len(name), len(line)):  # noqa: B007 - where it ends is the result
        byte = line[at : at + 1]
        if escaped:
            escaped = False
        elif byte == b"\\":
            escaped = True
        elif byte == b'"':
            quoted = not quoted
        elif byte == b"}" and not quoted:
            break
    return line[: at + 2] if line[at + 1 : at + 2] in (b" ", b"\t") else line[: at + 1]


def values(target: Target, rnd: random.Random, share: float = 0.5) -> None:
    for at in target.samples():
        if rnd.random() < share:
            target.lines[at] = prefix_of(target.lines[at]) + rnd.choice(NUMBERS) + rnd.choice(TAILS)


def added(target: Target, rnd: random.Random) -> None:
    at = rnd.choice(target.samples())
    name = rnd.choice((b"a_total", b"b", b"lora", b"h_bucket", b"bb", b"fresh"))
    target.lines.insert(
        at, b'%b{new="%d\\"",le="%d"} %d' % (name, rnd.randrange(4), rnd.randrange(4), rnd.randrange(99))
    )


def removed(target: Target, rnd: random.Random) -> None:
    if len(target.samples()) > 4:
        del target.lines[rnd.choice(target.samples())]


def exchanged(target: Target, rnd: random.Random) -> None:
    """One series more and one less: as many lines as before."""
    added(target, rnd)
    removed(target, rnd)


def swapped(target: Target, rnd: random.Random) -> None:
    a, b = rnd.randrange(len(target.lines)), rnd.randrange(len(target.lines))
    target.lines[a], target.lines[b] = target.lines[b], target.lines[a]


def moved(target: Target, rnd: random.Random) -> None:
    """A line goes elsewhere: a wanted one into an unwanted block, or between a family's comments."""
    line = target.lines.pop(rnd.choice(target.samples()))
    target.lines.insert(rnd.randrange(len(target.lines)), line)


def renamed(target: Target, rnd: random.Random) -> None:
    """A line changes its name in place: a wanted one becomes unwanted, or the reverse."""
    at = rnd.choice(target.samples())
    rest = prefix_of(target.lines[at])
    labels = rest[rest.index(b"{") :] if b"{" in rest and not rest.startswith(b"{") else b" "
    target.lines[at] = rnd.choice((b"a_total", b"bb", b"b", b"z", b"zz")) + labels + b"3"


def relabelled(target: Target, rnd: random.Random) -> None:
    at = rnd.choice(target.samples())
    target.lines[at] = target.lines[at].replace(b'="', b'="%d' % rnd.randrange(10), 1)


def churned(target: Target, rnd: random.Random) -> None:
    """Labels of an unwanted family say what goes on, as ``vllm:lora_requests_info`` does."""
    for at, line in enumerate(target.lines):
        if line.startswith(b"lora{"):
            target.lines[at] = b'lora{running="%d",waiting="a_total{x=\\"1\\"} 5"} 1.7e9' % rnd.randrange(1000)


def spoiled(target: Target, rnd: random.Random) -> None:
    at = rnd.choice(target.samples())
    kind = rnd.randrange(4)
    if kind == 0:
        line = rnd.choice((b"a_total ", b'a_total{x="%d"} ' % rnd.randrange(3), b"b ")) + rnd.choice(NOT_NUMBERS)
    elif kind == 1:
        line = b"other " + rnd.choice(NOT_NUMBERS)
    elif kind == 2:
        line = rnd.choice((b'b{t="\xff"} 1', b'b{t="1"', b"b{t=1} 1", b'b{t="1",t="2"} 1', b'b{t="1"} }1', b"b"))
    else:
        line = rnd.choice((b"5", b"<html>", b"1a 5", b"a-b 5", b"{} 5", b"b\x0b5", b"1e5", b"NaN", b'{"q.r" 1'))
    target.refused.add(line)
    target.lines[at : at + rnd.randrange(2)] = [line]


def composite(target: Target, rnd: random.Random) -> None:
    line = rnd.choice((b"b {count:%d,sum:2}", b'h_sum{m="a b"} {count:%d,sum:2} 17')) % rnd.randrange(9)
    target.skipped.add(line)
    target.lines.insert(rnd.randrange(len(target.lines)), line)


def repeated(target: Target, rnd: random.Random) -> None:
    line = target.lines[rnd.choice(target.samples())]
    target.lines.insert(rnd.randrange(len(target.lines)), prefix_of(line) + rnd.choice(NUMBERS))


def commented(target: Target, rnd: random.Random) -> None:
    line = rnd.choice((b"# TYPE b counter", b"# b 5", b"", b"# EOF", b"#a_total 1"))
    target.lines.insert(rnd.randrange(len(target.lines)), line)


def restarted(target: Target, rnd: random.Random) -> None:
    target.lines, target.crlf, target.cut = list(target.base), rnd.random() < 0.2, False
    target.refused.clear()
    target.skipped.clear()


def truncated(target: Target, rnd: random.Random) -> None:
    target.cut = not target.cut and rnd.random() < 0.5


CHANGES: tuple[Callable[[Target, random.Random], None], ...] = (
    *(added, removed, exchanged, swapped, moved, renamed, relabelled, churned),
    *(spoiled, composite, repeated, commented, restarted, truncated),
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
        values(target, rnd, rnd.choice((0.02, 0.5, 1.0)))
        if rnd.random() < 0.5:
            only_values = False
            for change in rnd.choices(CHANGES, k=rnd.choice((1, 1, 2))):
                change(target, rnd)
                self.tried[change.__name__] = self.tried.get(change.__name__, 0) + 1
        self.judge(target, wanted, keeps_layout=only_values and not target.cut)
        if len(target.lines) > len(target.base) + 20:
            restarted(target, rnd)

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
                print("WRONG", layout.faults, faults, followed, keeps_layout, body.decode(errors="replace"), sep="\n")
                print([x for x in found if x not in truth], [x for x in truth if x not in found], cold == truth)
        self.followed += followed
        self.pages += 1
        target.layout = layout


def small(fuzz: Fuzz, pages: int) -> None:
    layouts = Layouts(SMALL_WANTED)
    targets = [Target(PageReader(layouts), SMALL.split(b"\n")) for _ in range(6)]
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
        page.rstrip(b"\n").split(b"\n")
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
