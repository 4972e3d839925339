"""Hooks that fail, counts within counts, numbers of another kind: the host notices nothing, every number is right."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from ufwatch_torch import textfile
from ufwatch_torch.textfile import Exporter

from tests.exporters.torch.reading import comments, read, values, write


def test_a_hook_that_raises_is_counted_logged_once_and_at_last_left_alone(
    exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def body(number: int) -> None:
        calls.append(number)
        raise RuntimeError("deliberate")

    for number in range(50):
        exporter.guard("capture", body, number)
    assert calls == list(range(textfile.HOOK_FAILURES))
    assert len(caplog.records) == 1
    assert "deliberate" in caplog.records[0].getMessage()
    write(exporter)
    assert 'ufwatch_exporter_hook_errors_total{hook="capture"} 20\n' in Path(exporter.path).read_text()
    assert read(exporter.path).unknown == 1


def test_what_rests_on_a_hook_given_up_leaves_the_file(exporter: Exporter) -> None:
    """Standing still it would read as nothing happening, and as exact."""

    def body() -> None:
        raise RuntimeError("deliberate")

    def count() -> None:
        exporter.add("graph_compiles_total", phase="capture", cache="unknown")
        exporter.add("graph_compiles_total", phase="compile", cache="cold")
        exporter.total("kv_evictions_total", 7, engine="0")

    exporter.rests("capture", ["graph_compiles_total"], phase="capture")
    exporter.rests(f"collect:{body.__qualname__}", ["kv_evictions_total"])
    count()
    for _ in range(textfile.HOOK_FAILURES - 1):
        exporter.guard("capture", body)
    write(exporter)
    assert len(values(exporter.path)) == 3, "not given up yet"
    exporter.guard("capture", body)
    exporter.collect(body)
    for _ in range(textfile.COLLECT_FAILURES):
        exporter._turn()
    count()
    write(exporter)
    assert values(exporter.path) == {"graph_compiles_total{'phase': 'compile', 'cache': 'cold'}": 2.0}
    assert comments(exporter.path) == [
        '# absent graph_compiles_total{phase="capture"}: the hook capture failed too often and is left alone',
        f"# absent kv_evictions_total: the hook collect:{body.__qualname__} failed too often and is left alone",
    ]


def test_a_number_of_another_kind_is_a_number(exporter: Exporter) -> None:
    """numpy's floats write themselves as ``np.float64(0.5)``, which no reader takes, and make others like them."""

    class Other(float):
        def __radd__(self, other: float) -> Other:
            return Other(float(self) + float(other))

        def __repr__(self) -> str:
            return f"other({float(self)})"

    exporter.add("pinned_alloc_seconds_total", Other(0.25))
    exporter.add("pinned_alloc_seconds_total", Other(0.5))
    assert [type(value) for value in exporter._values.values()] == [float]
    write(exporter)
    assert values(exporter.path) == {"pinned_alloc_seconds_total": 0.75}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older Pythons may run a signal handler at any instruction")
def test_counts_of_a_signal_handler_are_not_lost(exporter: Exporter) -> None:
    """It runs in the midst of a count of the same thread, which the lock lets in."""
    hits = 0

    def handler(*_: object) -> None:
        nonlocal hits
        hits += 1
        exporter.add("pinned_alloc_attempts_total")

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(100_000):
            exporter.add("pinned_alloc_attempts_total")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits > 20
    write(exporter)
    assert values(exporter.path) == {"pinned_alloc_attempts_total": 100_000 + hits}
