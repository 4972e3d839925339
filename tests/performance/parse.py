"""How much less CPU a page costs than with prometheus_client's parser. Run ``python -m tests.performance.parse``.

Every parser reads the same bytes in turn, round after round, and medians of the rounds' CPU time are compared, so the
ratios hold on any machine. The last line is JSON: ``busy_x``, ``idle_x`` (a known page, see :mod:`.pages`), ``cold_x``
(every line from scratch), ``adopt_x`` (first page of another target with a known layout), ``n_wanted`` samples, and
``kb_per_target``: what one more target of the same shape keeps.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence

from prometheus_client.parser import text_string_to_metric_families

from tests.performance.pages import recorded, sequence, share_of_lines_moved
from ufwatch.decode.exposition import parse_page
from ufwatch.decode.layout import Layouts, PageReader
from ufwatch.metrics import WANTED_SAMPLES

ROUNDS = 11


def reference(page: bytes) -> object:
    return [list(family.samples) for family in text_string_to_metric_families(page.decode())]


def cpu_us(read: Callable[[bytes], object], pages: Sequence[bytes]) -> float:
    """Return CPU microseconds a page."""
    read(pages[0])  # the step from another sequence's last page is not what is measured
    gc.collect()
    began = time.process_time()
    for page in pages[1:]:
        read(page)
    return (time.process_time() - began) / (len(pages) - 1) * 1e6


def wanted_by_cold_parse(page: bytes) -> list[float]:
    return [line.value for line in parse_page(page).lines if line.name.encode() in WANTED_SAMPLES]


def kilobytes_per_target(layouts: Layouts, pages: Sequence[bytes]) -> float:
    """Return what each reader of a known shape keeps, in kB, over many readers at different pages."""
    gc.collect()
    tracemalloc.start()
    readers = [PageReader(layouts) for _ in pages]
    for reader, page in zip(readers, pages, strict=True):
        reader.read(page)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept / len(readers) / 1e3


def main() -> None:
    text = recorded()
    busy, idle = sequence(text, 40, busy=True), sequence(text, 40, busy=False)
    layouts = Layouts(WANTED_SAMPLES)
    reader, idle_reader = PageReader(layouts), PageReader(layouts)
    for page in (*busy, *idle):
        layout, values = reader.read(page)
        assert values == wanted_by_cold_parse(page)
    assert len(layouts) == 1, "one shape, one layout"
    idle_reader.read(busy[-1])  # an idle server was busy before: its lines are not those the layout was made from

    parsers: dict[str, tuple[Callable[[bytes], object], Sequence[bytes]]] = {
        "reference": (reference, busy[:4]),
        "busy": (reader.read, busy),
        "idle": (idle_reader.read, idle),
        "cold": (parse_page, busy[:4]),
        "adopt": (lambda page: PageReader(layouts).read(page), busy),
    }
    rounds: dict[str, list[float]] = {name: [] for name in parsers}
    for _ in range(ROUNDS):
        for name, (read, pages) in parsers.items():
            rounds[name].append(cpu_us(read, pages))
    took = {name: statistics.median(each) for name, each in rounds.items()}
    print(
        f"{len(busy[0])} bytes, {busy[0].count(10)} lines, CPU µs a page: { ({k: round(v) for k, v in took.items()}) }"
    )
    print(
        json.dumps(
            {
                **{f"{name}_x": round(took["reference"] / took[name], 1) for name in parsers if name != "reference"},
                "n_wanted": len(layout.lines),
                "busy_moved": round(share_of_lines_moved(busy), 2),
                "kb_per_target": round(kilobytes_per_target(layouts, busy), 1),
            }
        )
    )


if __name__ == "__main__":
    main()
