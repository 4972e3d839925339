"""The package under test is read from its source: these tests need neither an installation nor torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = str(Path(__file__).parents[3] / "exporters" / "torch")
if SOURCE not in sys.path:
    sys.path.insert(0, SOURCE)

from ufwatch_torch.textfile import Exporter  # noqa: E402

from tests.exporters.torch.reading import Steps  # noqa: E402


@pytest.fixture
def steps() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    steps.end()


@pytest.fixture
def exporter(tmp_path: Path, steps: Steps) -> Exporter:
    return Exporter(str(tmp_path / "d"), "engine", wall=lambda: steps.now, monotonic=lambda: steps.now, wait=steps.wait)
