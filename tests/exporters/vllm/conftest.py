"""The package under test is read from its source; vLLM is a fake one, in processes of its own (:mod:`.fake_vllm`)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.exporters.vllm.fake_vllm import EXPORTER, FakeVllm

if str(EXPORTER) not in sys.path:
    sys.path.insert(0, str(EXPORTER))


@pytest.fixture
def fake(tmp_path: Path) -> FakeVllm:
    return FakeVllm(tmp_path)
