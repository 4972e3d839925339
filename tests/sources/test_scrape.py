"""One target's page, and the addresses that are one."""

from __future__ import annotations

import pytest
from aiohttp import web

from tests.sources.loopback import PAGE, answer, fetching, free_port, looped, saying, serving, text
from ufwatch.clock import ManualClock
from ufwatch.config import HttpAccess, TargetConfig
from ufwatch.model import UP, Reason
from ufwatch.sources.fetch import Fetcher
from ufwatch.sources.scrape import ScrapeSource, metrics_url


def target(port: int) -> TargetConfig:
    return TargetConfig(name="a", url=f"http://127.0.0.1:{port}")


@looped
async def test_a_scrape_is_a_page_with_its_time() -> None:
    clock = ManualClock(now=500.0)
    fetcher = Fetcher(clock=clock)
    try:
        async with serving(saying(text(), answer(b"", status="500 No"))) as server:
            source = ScrapeSource(target(server.port), fetcher)
            scrape = await source.poll(5.0)
            assert (scrape.health, scrape.body, scrape.openmetrics) == (UP, PAGE, False)
            assert (scrape.at_seconds, scrape.seconds, scrape.wire_bytes) == (500.0, 0.0, len(PAGE))
            clock.advance(5)
            failed = await source.poll(5.0)
            assert (failed.health.reason, failed.body, failed.at_seconds) == (Reason.STATUS, None, 505.0)
    finally:
        await fetcher.close()


@looped
async def test_an_application_server_is_scraped() -> None:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=PAGE, headers={"Content-Type": "text/plain; version=0.0.4", "X-Path": request.path})

    application = web.Application()
    application.router.add_get("/engine/metrics", page)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with fetching() as fetcher:
            source = ScrapeSource(TargetConfig(name="a", url=f"http://127.0.0.1:{port}/engine/"), fetcher)
            for _ in range(3):
                assert (await source.poll(5.0)).body == PAGE
    finally:
        await runner.cleanup()


@looped
async def test_a_target_that_is_down_is_a_result() -> None:
    async with fetching() as fetcher:
        scrape = await ScrapeSource(target(free_port()), fetcher).poll(5.0)
        assert (scrape.health.reason, scrape.body, scrape.wire_bytes) == (Reason.CONNECT, None, 0)


@looped
async def test_a_url_that_is_none_is_refused_at_once() -> None:
    async with fetching() as fetcher:
        with pytest.raises(ValueError, match="http://"):
            ScrapeSource(TargetConfig(name="a", url="localhost:8000", access=HttpAccess()), fetcher)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:8000", "http://h:8000/metrics"),
        ("http://h:8000/", "http://h:8000/metrics"),
        ("http://h:8000/metrics", "http://h:8000/metrics"),
        ("http://h:8000/metrics/", "http://h:8000/metrics/"),
        ("http://h/foo", "http://h/foo/metrics"),
        ("http://h/foo/", "http://h/foo/metrics"),
        ("http://h/foo/metrics", "http://h/foo/metrics"),
        ("http://h/mymetrics", "http://h/mymetrics/metrics"),
        ("http://h?model=a%20b", "http://h/metrics?model=a%20b"),
        ("http://h/metrics?a=b&c=/d", "http://h/metrics?a=b&c=/d"),
        ("http://h/metrics#top", "http://h/metrics"),
        ("https://[::1]:8443", "https://[::1]:8443/metrics"),
        ("http://[fd00::1]", "http://[fd00::1]/metrics"),
        (" HTTP://h ", "http://h/metrics"),
    ],
)
def test_metrics_url(url: str, expected: str) -> None:
    assert metrics_url(url) == expected
    assert metrics_url(expected) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h",
        "h:8000",
        "127.0.0.1:8000/metrics",
        "ftp://h",
        "http://",
        "http:///metrics",
        "http://h:port",
        "http://h:0",
        "http://h:65536",
        "http://[::1",
        "http://a b/",
        "http://me:hunter2@h/",
        "http://hunter2@h/",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        metrics_url(url)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)
