"""What tests of sources share."""

from __future__ import annotations

import pytest

from ufwatch.sources.answer import Answer


@pytest.fixture
def client_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is used: every GET goes through aiohttp."""
    monkeypatch.setattr(Answer, "is_plain", lambda _: False)
