"""The library, the fake CUDA libraries and the programs that use them, built once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exporters.pinned.built import Built


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("pinned"))


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    directory = tmp_path / "exports"
    directory.mkdir()
    return directory
