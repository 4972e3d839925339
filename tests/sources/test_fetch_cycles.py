"""A failed fetch leaves nothing behind that only the cyclic collector could free."""

from __future__ import annotations

import gc

import pytest

from tests.sources.loopback import PAGE, answer, fetching, get, looped, refused, saying, serving, text
from ufwatch.model import Reason
from ufwatch.sources.failure import FetchError


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (answer(b"", status="500 No"), Reason.STATUS),
        (answer(PAGE, "Content-Type: text/html"), Reason.CONTENT),
        (text(PAGE[:-1]), Reason.TRUNCATED),
    ],
)
@looped
async def test_no_error_outlives_its_fetch(sent: bytes, reason: Reason) -> None:
    async with serving(saying(sent)) as server, fetching() as fetcher:
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                refused(await get(fetcher, server.url), reason)
            assert [thing for thing in gc.get_objects() if isinstance(thing, FetchError)] == []
        finally:
            gc.enable()
