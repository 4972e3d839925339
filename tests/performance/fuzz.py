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
from functools import lru_cache

from prometheus_client.parser import text_string_to_metric_families

from tests.performance.changes import CHANGES, SMALL, Kind, Target, restarted, rows, values
from tests.performance.pages import recorded, sequence
from ufwatch.decode.exposition import parse_page
from ufwatch.decode.layout import Layouts, PageReader
from ufwatch.metrics import WANTED_SAMPLES

SMALL_WANTED = frozenset(
    name.encode() for name in ("a_total", "b", "h_bucket", "h_sum", "h_count", "vllm:it_total_bucket", "q.r", "z")
)
Series = tuple[str, frozenset[tuple[str, str]]]
Found = list[tuple[str, dict[str, str], float]]


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
