"""Limits of the agent itself: they say nothing about the server that was to be asked."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.sources.loopback import fetching, get, looped, refused, saying, serving, text
from ufwatch.config import HttpAccess
from ufwatch.model import Reason
from ufwatch.sources import body
from ufwatch.sources.failure import failure_of


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
def test_our_own_exhaustion_is_not_the_servers_refusal(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def exhausted(*_: Any, **__: Any) -> socket.socket:
        raise OSError(number, "out of it")

    async def run() -> None:
        async with serving(saying(text())) as server, fetching() as fetcher:
            monkeypatch.setattr(socket, "socket", exhausted)
            try:
                fetched = await get(fetcher, server.url)
            finally:
                monkeypatch.setattr(socket, "socket", real)
            refused(fetched, Reason.RESOURCES, "the agent is at a limit of its own")
            assert (await get(fetcher, server.url)).health.up

    asyncio.run(run())


def test_a_refusal_stays_a_refusal() -> None:
    assert failure_of(OSError(errno.ECONNREFUSED, "no"), "a:1").reason is Reason.CONNECT


@looped
async def test_a_credential_file_that_we_cannot_open_for_want_of_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sesame")
    async with fetching() as fetcher:
        with pytest.MonkeyPatch.context() as patch:

            def exhausted(*_: Any, **__: Any) -> Any:
                raise OSError(errno.EMFILE, "Too many open files")

            patch.setattr(Path, "open", exhausted)
            fetched = await get(fetcher, "http://127.0.0.1:1/", HttpAccess(api_key_file=path))
    refused(fetched, Reason.RESOURCES, "Too many open files")


def test_a_page_that_inflates_for_ever_does_not_hold_up_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(body, "inflate", lambda *_: released.wait(10))
    large = text(b"\x1f\x8b" + bytes(40_000), "Content-Encoding: gzip")

    async def run() -> None:
        async with serving(saying(large)) as server, fetching() as fetcher:
            refused(await get(fetcher, server.url, deadline=0.2), Reason.TIMEOUT)

    try:
        # asyncio.run waits for the loop's own executor.
        asyncio.run(asyncio.wait_for(run(), 5))
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "ufwatch-inflate")
        assert thread.daemon
    finally:
        released.set()
