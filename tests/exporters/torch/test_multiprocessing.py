"""The last write of children of multiprocessing, which mostly end in ``os._exit``."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path

import pytest
from ufwatch_torch.textfile import Exporter

from tests.exporters.torch.reading import values


def _count_in_process(exporter: Exporter) -> None:
    exporter.add("pinned_alloc_attempts_total", 4)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_multiprocessing_child_writes_at_its_end(tmp_path: Path) -> None:
    """It ends in ``os._exit``: no atexit there."""
    exporter = Exporter(str(tmp_path), "engine")
    exporter.start()
    process = multiprocessing.get_context("fork").Process(target=_count_in_process, args=(exporter,))
    process.start()
    process.join()
    exporter.close()
    found = [values(path) for path in tmp_path.glob("*.prom") if str(path) != exporter.path]
    assert found == [{"pinned_alloc_attempts_total": 4.0}]


def _observe_in_process(directory: Path, late: int) -> None:
    exporter = Exporter(str(directory), "engine")
    exporter.start()
    exporter.add("pinned_alloc_attempts_total", 4)
    if late:
        threading.Thread(target=_count_late, args=(exporter, late)).start()


def _count_late(exporter: Exporter, late: int) -> None:
    """In a thread that outlives multiprocessing's own end by more than a turn of the writer."""
    time.sleep(0.3)
    exporter.add("pinned_alloc_attempts_total", late)
    time.sleep(2)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_multiprocessing_child_with_its_own_exporter_writes_at_its_end(
    tmp_path: Path, method: str, late: int
) -> None:
    context = multiprocessing.get_context(method)
    process = context.Process(target=_observe_in_process, args=(tmp_path, late))  # type: ignore[attr-defined]
    process.start()
    process.join()
    assert [values(path) for path in tmp_path.glob("*.prom")] == [{"pinned_alloc_attempts_total": 4 + late}]
