"""Every address of the agent over real sockets."""

from __future__ import annotations

import gzip
import json
import logging
from typing import Any

import aiohttp
import pytest

from tests.web.exchange import Agent, entry, exchange, readings, sink
from ufwatch.web.server import Served

PATHS = ("/metrics", "/-/healthy", "/-/ready", "/health", "/api/v1/readings", "/")


def test_metrics_in_the_form_and_encoding_asked_for() -> None:
    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        async with client.get("/metrics", headers={"Accept-Encoding": "identity"}) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert "Content-Encoding" not in answer.headers
            assert answer.headers["Vary"] == "Accept, Accept-Encoding"
            text = await answer.read()
            assert text.endswith(b'ufwatch_things_total{target="a"} 1.0\n')
        async with client.get("/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert gzip.decompress(await answer.read()) == text
        wanted = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2"}
        async with client.get("/metrics", headers={**wanted, "Accept-Encoding": "identity"}) as answer:
            assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
            assert (await answer.read()).endswith(b"# EOF\n")

    exchange(work)


def test_readiness_tells_why_not() -> None:
    agent = Agent(why_not="not looked at yet: chat-a")

    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        async with client.get("/-/ready") as answer:
            assert (answer.status, await answer.text()) == (503, "not looked at yet: chat-a\n")
        async with client.get("/-/healthy") as answer:
            assert answer.status == 200
        async with client.get("/health") as answer:
            assert answer.status == 200
            assert (await answer.json())["ready"] is False
        agent.why_not = ""
        async with client.get("/-/ready") as answer:
            assert answer.status == 200
        async with client.get("/health") as answer:
            found = await answer.json()
            assert found["ready"] is True
            assert found["targets"] == [{"target": "chat-a", "up": True, "state": "serving", "reason": None}]

    exchange(work, agent=agent)


def test_readings_are_the_object_as_it_is() -> None:
    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        async with client.get("/api/v1/readings") as answer:
            assert answer.content_type == "application/json"
            assert json.loads(await answer.read()) == readings()

    exchange(work)


def test_the_index_shows_every_target_and_escapes_what_it_is_given() -> None:
    document = readings("<script>alert(1)</script>")
    document["targets"][0]["signals"].append(entry("kv_evictions", labels={"x": "<b>&\ud83d"}))

    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        async with client.get("/") as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            page = await answer.text()
        assert "<script>" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "<b>" not in page
        assert "serving" in page
        assert "25" in page
        assert "idle" in page
        assert "ttft_mean" in page
        assert "e2e_mean" not in page
        assert "http://" not in page
        assert "https://" not in page

    exchange(work, agent=Agent(document=document))


def test_head_works_everywhere_and_other_methods_nowhere() -> None:
    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        for path in PATHS:
            # Both uncompressed: a HEAD has to tell the length that a GET would send.
            same = {"Accept-Encoding": "identity"}
            async with client.get(path, headers=same) as got, client.head(path, headers=same) as head:
                assert (head.status, await head.read()) == (200, b"")
                assert int(head.headers["Content-Length"]) == len(await got.read())
            for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
                async with client.request(method, path, data=b"x" * 10) as answer:
                    assert answer.status == 405, (method, path)
                    assert set(answer.headers["Allow"].split(",")) == {"GET", "HEAD"}
        async with client.get("/no/such") as answer:
            assert answer.status == 404
            assert answer.content_type == "text/plain"
            assert (await answer.text()).count("\n") == 1

    exchange(work)


def test_no_answer_names_versions() -> None:
    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        for path in (*PATHS, "/no/such"):
            async with client.get(path) as answer:
                assert answer.headers["Server"] == "ufwatch"

    exchange(work)


class BrokenPage:
    def answer(self, *_: str | None) -> tuple[bytes, str, bool]:
        raise ValueError("render: token=secret")


@pytest.mark.parametrize("path", ["/api/v1/readings", "/", "/health", "/metrics"])
def test_a_failure_costs_one_request_one_line_and_no_secret(path: str, caplog: pytest.LogCaptureFixture) -> None:
    agent = Agent(failure=RuntimeError("https://user:secret@host"))
    page: Any = BrokenPage() if path == "/metrics" else sink()

    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        for _attempt in range(2):
            async with client.get(path) as answer:
                text = await answer.text()
                assert answer.status == 500
                assert text.count("\n") == 1
                assert "secret" not in text
        async with client.get("/-/healthy") as answer:
            assert answer.status == 200

    with caplog.at_level(logging.ERROR, "ufwatch.web"):
        exchange(work, agent=agent, page=page)
    assert len(caplog.records) == 2


def test_nan_never_passes_as_json(caplog: pytest.LogCaptureFixture) -> None:
    document = readings()
    document["targets"][0]["signals"][0]["value"] = float("nan")

    async def work(client: aiohttp.ClientSession, _: Served) -> None:
        async with client.get("/api/v1/readings") as answer:
            assert answer.status == 500

    with caplog.at_level(logging.ERROR, "ufwatch.web"):
        exchange(work, agent=Agent(document=document))
