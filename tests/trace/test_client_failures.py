"""A request that fails is an exchange with its phase and one line, never an exception."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.sources.loopback import Names, free_port, issue, looped, secret, serving
from tests.trace.servers import (
    GOOD,
    HEAD,
    PLAIN,
    Step,
    Then,
    answering,
    base,
    connect_proxy,
    one,
    request,
    speaking,
    status,
    tracing,
)
from tests.trace.streams import ROLE, case, chunk, event, words
from ufwatch.config import HttpAccess
from ufwatch.trace.conventions import Name
from ufwatch.trace.model import Exchange, Phase, SplitSource


def failed(found: Exchange, error_type: str, phase: Phase | None, *words_in_detail: str) -> None:
    assert found.failure is not None
    assert (found.failure.error_type, found.failure.phase) == (error_type, phase), found.failure
    assert "\n" not in found.failure.detail
    for word in words_in_detail:
        assert word in found.failure.detail
    if phase is not None:
        last = found.spans[-1]
        assert last.phase is phase
        assert last.attributes[Name.FAILED] is True
        assert last.start <= last.end <= found.total
    if phase is not Phase.STREAM:
        assert found.ttft is None


@looped
async def test_a_name_that_does_not_exist() -> None:
    async with tracing() as tracer:
        failed(await tracer.traced(request("http://gone.test")), "nxdomain", Phase.DNS, "gone.test:80")


class Unanswered(AbstractResolver):
    """The name server does not answer, and says so or not."""

    def __init__(self, error: OSError | None) -> None:
        self.error = error

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del host, port, family
        if self.error is not None:
            raise self.error
        await asyncio.sleep(3600)
        return []

    async def close(self) -> None:
        pass


@looped
async def test_a_name_server_that_does_not_answer() -> None:
    async with tracing(resolver=Unanswered(socket.gaierror(socket.EAI_AGAIN, "later"))) as tracer:
        failed(await tracer.traced(request("http://a.test")), "dns", Phase.DNS)
    async with tracing(resolver=Unanswered(None)) as tracer:
        failed(await tracer.traced(request("http://a.test", deadline_seconds=0.05)), "timeout", Phase.DNS, "0.05 s")


@looped
async def test_nobody_listens() -> None:
    async with tracing() as tracer:
        port = free_port()
        found = await tracer.traced(request(f"http://127.0.0.1:{port}"))
        failed(found, "refused", Phase.TCP, f"127.0.0.1:{port}")
        assert [a.won for a in found.attempts] == [False]


class Two(Unanswered):
    """Two addresses at which nobody is."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
            for address in ("127.0.0.1", "127.0.0.2")
        ]


@looped
async def test_nobody_listens_at_any_address() -> None:
    async with tracing(resolver=Two(None)) as tracer:
        found = await tracer.traced(request(f"http://a.test:{free_port()}"))
    failed(found, "refused", Phase.TCP)
    assert {a.address for a in found.attempts} == {"127.0.0.1", "127.0.0.2"}


@looped
async def test_certificates(tmp_path: Path) -> None:
    certificates = issue(tmp_path)
    async with serving(answering(*GOOD), certificates.server(names=("other.test",))) as server, tracing() as tracer:
        url = base(server, "https")
        failed(await tracer.traced(request(url)), "certificate", Phase.TLS, "not trusted")
        wrong_name = await tracer.traced(request(url, access=HttpAccess(ca_file=certificates.ca_file)))
        failed(wrong_name, "certificate", Phase.TLS, "not trusted")
        named = HttpAccess(ca_file=certificates.ca_file, server_name="other.test")
        assert (await tracer.traced(request(url, access=named))).failure is None
        assert (await tracer.traced(request(url, access=HttpAccess(insecure=True)))).failure is None


@looped
async def test_client_certificates(tmp_path: Path) -> None:
    certificates = issue(tmp_path)
    async with serving(answering(*GOOD), certificates.server(ask_client=True)) as server, tracing() as tracer:
        without = HttpAccess(ca_file=certificates.ca_file)
        found = await tracer.traced(request(base(server, "https"), access=without))
        assert found.failure is not None
        assert found.failure.error_type in ("tls", "disconnected")
        with_one = HttpAccess(
            ca_file=certificates.ca_file,
            client_cert_file=certificates.client_cert_file,
            client_key_file=certificates.client_key_file,
        )
        assert (await tracer.traced(request(base(server, "https"), access=with_one))).failure is None


@looped
async def test_no_tls_is_spoken_there() -> None:
    async with speaking(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port, tracing() as tracer:
        failed(await tracer.traced(request(f"https://127.0.0.1:{port}")), "tls", Phase.TLS, "no TLS is spoken")


@looped
async def test_a_handshake_that_is_not_answered() -> None:
    async with speaking(None) as port, tracing() as tracer:
        found = await tracer.traced(request(f"https://127.0.0.1:{port}", deadline_seconds=0.2))
        failed(found, "timeout", Phase.TLS)
        assert found.peer_address == "127.0.0.1"


@looped
async def test_files_that_are_not_there(tmp_path: Path) -> None:
    async with serving(answering(*GOOD)) as server, tracing() as tracer:
        gone = HttpAccess(api_key_file=tmp_path / "gone")
        failed(await tracer.traced(request(base(server), access=gone)), "configuration", None, "api_key_file")
        gone = HttpAccess(ca_file=tmp_path / "gone")
        failed(await tracer.traced(request(base(server, "https"), access=gone)), "configuration", None, "ca_file")


@looped
async def test_a_proxy_of_a_kind_that_is_not_supported() -> None:
    async with tracing({"http_proxy": "socks5://127.0.0.1:1"}) as tracer:
        failed(await tracer.traced(request("http://far.test")), "configuration", None, "proxies")


@looped
async def test_proxies_that_refuse() -> None:
    closed = free_port()
    async with tracing({"http_proxy": f"http://127.0.0.1:{closed}"}) as tracer:
        failed(await tracer.traced(request("http://far.test")), "refused", Phase.TCP, "proxy")
    async with tracing({"http_proxy": f"http://user:hunter2@127.0.0.1:{closed}"}) as tracer:
        assert "hunter2" not in repr(await tracer.traced(request("http://far.test")))
    async with (
        serving(connect_proxy(0, code="407 Proxy Authentication Required")) as proxy,
        tracing({"https_proxy": f"http://127.0.0.1:{proxy.port}"}) as tracer,
    ):
        failed(await tracer.traced(request("https://far.test")), "proxy_status_407", Phase.PROXY, "407")


@pytest.mark.parametrize(
    ("steps", "limits", "phase", "text"),
    [
        ((Then.HANG,), {"deadline_seconds": 0.1}, Phase.HEADERS, "the head of an answer"),
        ((HEAD, ROLE, Then.HANG), {"deadline_seconds": 0.1}, Phase.FIRST_TOKEN, "the end of the stream"),
        ((HEAD, words("a"), Then.HANG), {"deadline_seconds": 0.1}, Phase.STREAM, "the end of the stream"),
        ((Then.HANG,), {"first_token_seconds": 0.1}, Phase.HEADERS, "the first token did not come within 0.1 s"),
        ((HEAD, ROLE, Then.HANG), {"first_token_seconds": 0.1}, Phase.FIRST_TOKEN, "the first token"),
        ((HEAD, ROLE, words("a"), Then.HANG), {"idle_seconds": 0.1}, Phase.STREAM, "nothing came for 0.1 s"),
    ],
)
def test_deadlines(steps: tuple[Step, ...], limits: dict[str, float], phase: Phase, text: str) -> None:
    @looped
    async def run() -> None:
        found = await one(*steps, **limits)
        failed(found, "timeout", phase, text)
        assert 0.1 <= found.total < 2.0

    run()


@looped
async def test_a_first_token_in_time_lifts_its_deadline() -> None:
    found = await one(*GOOD[:3], 0.3, *GOOD[3:], first_token_seconds=0.2)
    assert found.failure is None


@looped
async def test_bytes_put_off_the_idle_deadline() -> None:
    assert (await one(*GOOD[:2], *(0.08, b": ping\n\n") * 4, *GOOD[2:], idle_seconds=0.25)).failure is None


@pytest.mark.parametrize(
    "name", ["after_three_tokens", "before_first_event", "clean_eof_without_done", "cut_inside_event"]
)
def test_upstreams_that_die(name: str) -> None:
    reads, close = case("h18_upstream_dies", name)

    @looped
    async def run() -> None:
        steps: list[Step] = [PLAIN]
        for _, data in reads:
            steps += [data, 0.01]
        found = await one(*steps, 0.02, Then.RESET if close == "reset" else Then.CLOSE)
        failed(found, "cut", Phase.STREAM if reads else Phase.FIRST_TOKEN)
        assert found.tpot is None
        assert (found.ttft is not None) is bool(reads)

    run()


@looped
async def test_a_chunked_body_without_its_end() -> None:
    failed(await one(HEAD, ROLE, words("a"), Then.CLOSE), "cut", Phase.STREAM)
    assert (await one(*GOOD, Then.CLOSE)).failure is None, "the answer was whole"
    finished = (HEAD, words("a"), chunk({}, finish="stop"), 0.02, Then.RESET)
    assert (await one(*finished)).failure is None, "finished, and the connection is not the answer"


@looped
async def test_errors_within_the_stream() -> None:
    error = event({"error": {"message": "engine died", "code": 500}})
    failed(await one(HEAD, ROLE, words("a"), error, Then.RESET), "error_event", Phase.STREAM, "engine died")
    failed(await one(HEAD, error), "error_event", Phase.FIRST_TOKEN, "engine died")
    failed(await one(HEAD, b"data: {oh\n\n"), "malformed", Phase.FIRST_TOKEN)
    failed(await one(HEAD, words("a"), body_cap_bytes=10), "too_large", Phase.STREAM, "10 bytes")


@looped
async def test_answers_that_are_no_stream() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    failed(await one(head, b'{"error": {"message": "no"}}'), "error_event", Phase.FIRST_TOKEN, "no")
    failed(await one(head, b'{"choices": []}'), "malformed", Phase.FIRST_TOKEN, "application/json")
    failed(await one(PLAIN), "cut", Phase.FIRST_TOKEN)
    assert (await one(head, *GOOD[1:])).failure is None, "a stream by another name"
    failed(await one(b"SSH-2.0-x\r\n\r\n", Then.CLOSE), "malformed", Phase.HEADERS)


@pytest.mark.parametrize(
    ("code", "body", "text"),
    [
        ("503 Busy", b'{"error": {"message": "no room"}}', "HTTP 503: no room"),
        ("404 Not Found", b'{"object": "error", "message": "no such model"}', "HTTP 404: no such model"),
        ("400 Bad", b'{"detail": "' + b"x" * 900 + b'"}', "x" * 200),
        ("502 Bad", b"<html>no</html>", "HTTP 502 (no content type)"),
        ("422 No", b"", "HTTP 422"),
    ],
)
def test_statuses(code: str, body: bytes, text: str) -> None:
    @looped
    async def run() -> None:
        async with serving(status(code, body)) as server, tracing() as tracer:
            found = await tracer.traced(request(base(server)))
            again = await tracer.traced(request(base(server)))
        failed(found, f"status_{code[:3]}", Phase.HEADERS, text)
        assert found.failure is not None
        assert len(found.failure.detail) < 260
        assert found.status == int(code[:3])
        assert again.reused, "the body was read, so that the connection can be used again"

    run()


@looped
async def test_what_a_server_repeats_of_ours_is_not_told(tmp_path: Path) -> None:
    body = b'{"error": {"message": "bad key sk-secret for \'tell me\\na secret\' (tell me a secret)"}}'
    async with serving(status("401 No", body)) as server, tracing() as tracer:
        access = HttpAccess(api_key_file=secret(tmp_path, "sk-secret"))
        found = await tracer.traced(request(base(server), access=access, prompt="tell me\na secret"))
    failed(found, "status_401", Phase.HEADERS, "bad key …")
    assert "secret" not in repr(found)


@looped
async def test_half_a_prompt_is_not_told_either(tmp_path: Path) -> None:
    told = "My diagnosis is " + "private " * 40
    key = "sk-" + "k" * 40
    long = f'{{"error": {{"message": "bad: {told} key"}}}}'.encode()
    edge = f'{{"error": {{"message": "{"x" * 190} {key}"}}}}'.encode()
    part = b'{"error": {"message": "bad: My diagnosis is private..."}}'
    for body in (long, edge, part):
        async with serving(status("400 Bad", body)) as server, tracing() as tracer:
            access = HttpAccess(api_key_file=secret(tmp_path, key))
            found = await tracer.traced(request(base(server), access=access, prompt=told))
        assert found.failure is not None
        assert "diagnosis" not in repr(found)
        assert "kkk" not in repr(found)
        assert "…" in found.failure.detail


@looped
async def test_numbers_without_measure_are_none() -> None:
    usage = '{"choices": [], "usage": {"completion_tokens": 1%s}, "metrics": {"queue_time_ms": 1.7e308}}' % ("0" * 400)
    found = await one(HEAD, words("a", "b"), f"data: {usage}\n\ndata: [DONE]\n\n".encode())
    assert found.failure is None
    assert found.usage.completion_tokens is None
    assert found.tpot is not None
    assert found.server.source is SplitSource.NONE


@looped
async def test_what_a_server_says_is_fit_for_a_terminal() -> None:
    odd = "\x1b[31m" + "\\ud800" + "x" * 500
    found = await one(HEAD, event({"id": odd, "model": odd, "choices": []}), event({"error": odd}))
    assert found.failure is not None
    for text in (found.response_id, found.response_model, found.failure.detail):
        assert text.isprintable()
        assert len(text) <= 260
    lone = await one(HEAD, b'data: {"error": "\\ud800"}\n\n')
    assert lone.failure is not None
    assert lone.failure.detail == "�"


@looped
async def test_a_status_whose_body_does_not_end() -> None:
    head = b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n"
    failed(await one(head, b"x", Then.HANG, deadline_seconds=0.1), "status_500", Phase.HEADERS)


@looped
async def test_redirects_are_not_followed() -> None:
    async with serving(status("307 Moved", b"", "Location: https://other.test/v1")) as server, tracing() as tracer:
        failed(await tracer.traced(request(base(server))), "redirect", Phase.HEADERS, "other.test")
    assert len(server.heads) == 1
    async with serving(status("307 Moved")) as server, tracing() as tracer:
        failed(await tracer.traced(request(base(server))), "redirect", Phase.HEADERS, "nowhere")


@looped
async def test_a_tracer_that_is_closed() -> None:
    async with tracing(resolver=Names()) as tracer:
        pass
    failed(await tracer.traced(request("http://127.0.0.1:1")), "configuration", None, "closed")
