"""The receiver as part of an agent: what servers send is counted, made a tree of and passed on."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.processes import Running, finished, one_line, until
from tests.sources.loopback import free_port, looped
from tests.trace.otlp import body, llm_request
from ufwatch.clock import SystemClock
from ufwatch.config import Config
from ufwatch.receiving import Receiving
from ufwatch.trace.endpoint import endpoint_from
from ufwatch.trace.receiver import GRPC_PORT, HTTP_PORT

BODY = body(llm_request())


def post(port: int, content: bytes) -> int:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/traces", data=content, headers={"Content-Type": "application/x-protobuf"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def values(receiving: Receiving) -> dict[str, float]:
    return {
        "".join((sample.metric, *(value for _, value in sample.labels))): sample.value
        for sample in receiving.samples()
        if sample.value
    }


@looped
async def test_a_servers_span_is_passed_on_with_its_children() -> None:
    backend = Receiving(SystemClock(), {}, None)
    await backend.start(grpc_port=0, http_port=0)
    endpoint = endpoint_from({}, f"http://127.0.0.1:{backend.ports[1]}")
    ours = Receiving(SystemClock(), {}, endpoint)
    assert list(ours.samples()) == []
    await ours.start(grpc_port=0, http_port=0)
    port = ours.ports[1]
    assert port is not None
    assert await asyncio.to_thread(post, port, BODY) == 200
    assert await asyncio.to_thread(post, port, b"\xff\xff") == 400
    await ours.stop()
    # The span and its five parts: they are made of what it says.
    assert values(backend) == {"otlp_received_spans_total": 6.0}
    assert list(ours.samples()) == []
    await backend.stop()


@looped
async def test_what_came_and_what_became_of_it_is_counted() -> None:
    ours = Receiving(SystemClock(), {}, endpoint_from({}, f"http://127.0.0.1:{free_port()}"))
    await ours.start(grpc_port=0, http_port=0)
    port = ours.ports[1]
    assert port is not None
    await asyncio.to_thread(post, port, BODY)
    await asyncio.to_thread(post, port, b"\xff\xff")
    assert values(ours) == {"otlp_received_spans_total": 1.0, "otlp_refused_requests_totalmalformed": 1.0}
    await ours.stop()


def _config(folder: Path, **otlp: object) -> Path:
    file = folder / "ufwatch.yaml"
    targets = [{"name": "a", "url": "http://127.0.0.1:1"}]
    file.write_text(json.dumps({"targets": targets, "slos": [], "otlp": otlp}), encoding="utf-8")
    return file


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("127.0.0.1", HTTP_PORT))
            held.listen()
        except OSError:
            pytest.skip(f"port {HTTP_PORT} is somebody else's")
        done = finished("run", "--no-gpu", "--port", "0", "--config", str(_config(tmp_path, receive=True)))
    assert done.returncode == 2
    assert str(HTTP_PORT) in one_line(done.stderr.splitlines(keepends=True)[-1])
    assert "Traceback" not in done.stderr


def test_an_agent_listens_where_its_configuration_says_so(tmp_path: Path) -> None:
    for port in (GRPC_PORT, HTTP_PORT):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is somebody else's")
    with Running("--config", str(_config(tmp_path, receive=True)), "--no-gpu", "--interval", "1s") as agent:
        until(lambda: agent.value("ufwatch_otlp_received_spans_total") == 0.0)
        assert post(HTTP_PORT, BODY) == 200
        until(lambda: agent.value("ufwatch_otlp_received_spans_total") == 1.0)
        assert agent.value("ufwatch_otlp_forwarded_spans_total") is None, "nothing is passed on, so nothing is counted"
        agent.end()


def test_without_it_nobody_listens() -> None:
    assert not Config().otlp_receive
