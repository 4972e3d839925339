"""The simulated server on a real socket: its page, its streams and its faults."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from tests.sim.pages import samples, value
from ufwatch.sim.engine import SimEngine
from ufwatch.sim.scenario import SCENARIOS, Scenario
from ufwatch.sim.schedule import Steady
from ufwatch.sim.server import SimServer, StreamFault

FAST = Scenario(name="fast", schedule=Steady(0.005), prefill_seconds_per_token=0.0)
ASK = {"prompt": "tell me a story", "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}

Body = Callable[[SimServer, aiohttp.ClientSession], Awaitable[None]]


def serve(scenario: Scenario, body: Body, **options: Any) -> SimServer:
    async def run() -> SimServer:
        async with SimServer(scenario, **options) as server, aiohttp.ClientSession() as session:
            async with asyncio.timeout(20):
                await body(server, session)
            return server

    return asyncio.run(run())


def events_of(raw: bytes) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
    return [line if line == b"[DONE]" else json.loads(line) for line in lines]


def test_metrics_are_the_engine_page_with_vllm_headers() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{server.url}/metrics", headers={"accept-encoding": "identity"}) as answer:
            page = await answer.read()
            assert answer.status == 200
            assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
            assert int(answer.headers["content-length"]) == len(page)
        truth = server.engine.truth(0.0, server.engine.now)
        assert value(samples(page.decode()), "vllm:generation_tokens_total") == truth.decode_tokens > 500
        async with session.get(f"{server.url}/metrics", headers={"accept-encoding": "gzip"}) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            assert b"vllm:generation_tokens_total" in await answer.read()
        assert server.scrapes == 2

    serve(SCENARIOS["steady"], body, warm_seconds=30.0)


def test_other_paths() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{server.url}/health") as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        async with session.get(f"{server.url}/version") as answer:
            assert await answer.json() == {"version": "0.24.0"}
        async with session.get(f"{server.url}/v1/models") as answer:
            assert (await answer.json())["data"][0]["id"] == "sim/llama-3-8b"
        async with session.get(f"{server.url}/nothing") as answer:
            assert answer.status == 404
        async with session.post(f"{server.url}/metrics") as answer:
            assert answer.status == 405

    serve(FAST, body, version="0.24.0")


def test_a_streaming_client_sees_the_tokens_and_the_page_counts_them() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        begun = time.monotonic()
        async with session.post(f"{server.url}/v1/completions", json=ASK) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            events = events_of(await answer.read())
        took = time.monotonic() - begun
        *chunks, usage, done = events
        assert done == b"[DONE]"
        assert [event["choices"][0]["text"] for event in chunks] == [f" w{number}" for number in range(12)]
        assert [event["choices"][0]["finish_reason"] for event in chunks] == [None] * 11 + ["length"]
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}
        truth = server.engine.truth(0.0, server.engine.now)
        assert (truth.decode_tokens, truth.prefill_tokens_computed, truth.requests_finished) == (12, 4, 1)
        assert truth.interval_count == 11
        assert truth.interval_sum == pytest.approx(11 * 0.005)
        # The client cannot see tokens before they exist.
        assert took >= truth.e2e_seconds[0] == pytest.approx(12 * 0.005)
        async with session.get(f"{server.url}/metrics") as answer:
            page = samples(await answer.text())
        assert value(page, "vllm:inter_token_latency_seconds_count") == 11
        assert value(page, "vllm:request_success_total", finished_reason="length") == 1
        assert value(page, "http_requests_total") == 1

    serve(FAST, body)


def test_chat_begins_with_the_role() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        ask = {"messages": [{"role": "user", "content": "hello there"}], "max_completion_tokens": 3, "stream": True}
        async with session.post(f"{server.url}/v1/chat/completions", json=ask) as answer:
            events = events_of(await answer.read())
        deltas = [event["choices"][0]["delta"] for event in events[:-1]]
        contents = [{"content": f" w{number}"} for number in range(3)]
        assert deltas == [{"role": "assistant", "content": ""}, *contents]
        assert events[0]["object"] == "chat.completion.chunk"

    serve(FAST, body)


def test_speculation_sends_several_tokens_in_one_event() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{server.url}/v1/completions", json={**ASK, "max_tokens": 60}) as answer:
            chunks = events_of(await answer.read())[:-2]
        assert 10 < len(chunks) < 50
        assert "".join(event["choices"][0]["text"] for event in chunks) == "".join(f" w{n}" for n in range(60))

    serve(replace(FAST, spec_tokens=3), body)


def test_a_whole_answer() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{server.url}/v1/completions", json={"prompt": [5, 6, 7], "max_tokens": 2}) as answer:
            whole = await answer.json()
        assert whole["choices"][0]["text"] == " w0 w1"
        assert whole["usage"]["prompt_tokens"] == 3
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        async with session.post(f"{server.url}/v1/chat/completions", json=chat) as answer:
            whole = await answer.json()
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": " w0 w1"}

    serve(FAST, body)


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"prompt": ""}', 400),
        (b'{"prompt": "a", "max_tokens": -1}', 400),
        (b'{"prompt": "a", "max_tokens": 100000}', 400),
        (b'{"prompt": "a", "model": "other"}', 404),
    ],
)
def test_bad_requests_are_refused(ask: bytes, status: int) -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{server.url}/v1/completions", data=ask) as answer:
            assert answer.status == status
            assert "message" in (await answer.json())["error"]

    serve(FAST, body)


def test_a_sleeping_server_takes_no_requests() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{server.url}/v1/completions", json=ASK) as answer:
            assert answer.status == 503

    serve(SCENARIOS["asleep"], body, warm_seconds=60.0)


def test_a_client_that_leaves_is_an_abort() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{server.url}/v1/completions", json={**ASK, "max_tokens": 2000}) as answer:
            await answer.content.readline()
            answer.close()
        while server.live:
            await asyncio.sleep(0)
        assert server.engine.truth(0.0, server.engine.now).requests_aborted == 1

    serve(FAST, body)


def test_many_streams_at_once_share_the_batch() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async def one() -> int:
            async with session.post(f"{server.url}/v1/completions", json=ASK) as answer:
                return len(events_of(await answer.read()))

        assert await asyncio.gather(*[one() for _ in range(20)]) == [14] * 20
        assert server.engine.truth(0.0, server.engine.now).decode_tokens == 240

    serve(FAST, body)


async def scrape(server: SimServer, session: aiohttp.ClientSession, seconds: float = 5.0) -> tuple[int, bytes]:
    timeout = aiohttp.ClientTimeout(total=seconds)
    async with session.get(f"{server.url}/metrics", timeout=timeout) as answer:
        return answer.status, await answer.read()


def test_faults_of_the_page() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        server.fault = "status_500"
        assert (await scrape(server, session))[0] == 500
        server.fault = "cut_body"
        status, cut = await scrape(server, session)
        assert status == 200
        assert cut[-1:].isdigit()
        server.fault = None
        assert (await scrape(server, session))[1].startswith(cut[:2000])
        server.fault = "reset"
        with pytest.raises(aiohttp.ClientError):
            await scrape(server, session)
        server.fault = "hang"
        with pytest.raises(TimeoutError):
            await scrape(server, session, 0.05)
        server.fault = None
        assert (await scrape(server, session))[0] == 200

    serve(SCENARIOS["idle"], body)


def test_a_server_that_stops_listening_and_comes_back() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        url = server.url
        assert (await scrape(server, session))[0] == 200
        await server.stop_listening()
        with pytest.raises(aiohttp.ClientError):
            await scrape(server, session)
        await server.start_listening()
        assert server.url == url
        assert (await scrape(server, session))[0] == 200

    serve(FAST, body)


def test_restart_resets_counters_and_ends_streams() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        async with session.post(f"{server.url}/v1/completions", json={**ASK, "max_tokens": 2000}) as answer:
            await answer.content.readline()
            before = samples((await scrape(server, session))[1].decode())
            server.restart()
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        after = samples((await scrape(server, session))[1].decode())
        assert value(after, "vllm:generation_tokens_total") == 0 < value(before, "vllm:generation_tokens_total")
        assert value(after, "process_start_time_seconds") > value(before, "process_start_time_seconds")
        server.restart(down_seconds=60.0)
        with pytest.raises(aiohttp.ClientError):
            await scrape(server, session)

    serve(FAST, body)


@pytest.mark.parametrize("kind", ["reset", "eof"])
def test_streams_that_end_early(kind: Any) -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:
        server.stream_fault = StreamFault(kind, after_tokens=3)
        async with session.post(f"{server.url}/v1/completions", json=ASK) as answer:
            lines: list[bytes] = []
            try:
                # A comprehension would lose what came before the reset.
                async for line in answer.content:
                    lines.append(line)  # noqa: PERF401
            except aiohttp.ClientError:
                assert kind == "reset"
            else:
                assert kind == "eof"
        assert sum(line.startswith(b"data: ") for line in lines) == 3
        assert b"data: [DONE]\n" not in lines

    serve(FAST, body)


def test_an_idle_connection_is_closed_as_vllm_does() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:  # noqa: ARG001
        host, _, port = server.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /health HTTP/1.1\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
        assert (await reader.read()).count(b"200 OK") == 2
        writer.close()

    serve(FAST, body, keep_alive_seconds=0.05)


def test_nonsense_is_answered_and_ended() -> None:
    async def body(server: SimServer, session: aiohttp.ClientSession) -> None:  # noqa: ARG001
        host, _, port = server.url.removeprefix("http://").partition(":")
        for nonsense in (b"\x00\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"a" * 70_000):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(nonsense)
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()

    serve(FAST, body)


def test_a_second_of_load_and_its_page_cost_little() -> None:
    engine = SimEngine(SCENARIOS["jittery"])
    engine.advance(30.0)
    made = read = 0.0
    for second in range(31, 51):
        begun = time.process_time()
        engine.advance(float(second))
        page = engine.page("0.32.0").decode()
        between = time.process_time()
        samples(page)
        made += between - begun
        read += time.process_time() - between
    # A ratio, because the machine is shared: 0.8 ms against 15 ms when measured alone.
    assert made < read / 5
