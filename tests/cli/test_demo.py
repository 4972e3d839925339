"""``ufwatch demo``: the whole agent without a GPU, a vLLM or a Prometheus, and quiet when it is interrupted."""

from __future__ import annotations

import re
import signal

import pytest

from tests.processes import COMMAND, Running, finished, series, until
from tests.sources.loopback import free_port
from ufwatch.cli.demo import SHOWN
from ufwatch.render.table import reasons_used, side_by_side

DEMO = (*COMMAND, "demo")


def test_it_prints_the_signals_and_where_the_page_is() -> None:
    done = finished("demo", "--seconds", "8", "--port", "0")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    rows = {line[:21].strip(): line[21:].split() for line in lines if line.startswith(("state", "SM ", "page-table"))}
    assert [line for line in lines if all(name in line for name in SHOWN)]
    assert len(rows["state"]) == len(SHOWN)
    assert set(rows["state"]) <= {"serving", "idle"}
    assert rows["SM utilization"][1] == "%"
    assert "page-table misses" in rows
    assert re.search(r"^Metrics: http://127\.0\.0\.1:\d+/metrics$", done.stdout, re.MULTILINE)


def test_its_page_is_a_real_one_and_an_interrupt_ends_it_silently() -> None:
    # The demo announces its address only at its end, so it is asked for on a port that is known.
    port = free_port()
    with Running("--seconds", "60", command=DEMO, port=port) as demo:
        demo.serves_at(f"http://127.0.0.1:{port}")
        shown = until(lambda: found if _targets(found := demo.page()) >= set(SHOWN) else "")
        names = {name for name, _ in series(shown)}
        assert {"ufwatch_engine_state", "ufwatch_gpu_memory_bytes", "ufwatch_pinned_alloc_attempts_total"} <= names
        demo.end(signal.SIGINT, within=10)
        assert demo.log().startswith("ufwatch demo: ")


def _targets(page: str) -> set[str]:
    return {dict(labels).get("target", "") for name, labels in series(page) if name == "ufwatch_engine_state"}


@pytest.mark.parametrize("columns", [40, 80, 100, 120, 200])
def test_the_table_fits_the_terminal(columns: int) -> None:
    def entry(signal: str, value: float | None, **more: object) -> dict[str, object]:
        known: dict[str, object] = {"signal": signal, "labels": {}, "value": value, "low": None, "high": None}
        return {**known, "source": "x", "quality": "bounded", "reason": None if value else "no_source", **more}

    signals = [entry("token_jitter", 0.0522, low=0.0435, high=0.0626), entry("kv_evictions", None)]
    targets = [{"target": name, "state": "serving", "signals": signals} for name in SHOWN]
    lines = side_by_side(targets, columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert ("43.5 ms .. 62.6 ms" in "".join(lines)) == (columns == 200)
    if columns >= 80:
        assert "".join(lines).count("52.2 ms") == len(SHOWN)
        assert reasons_used(targets) == ["no_source"]
