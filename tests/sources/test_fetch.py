"""Every way in which a server answers, or does not."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
import zlib

import pytest

from tests.sources.loopback import (
    PAGE,
    Names,
    answer,
    fetching,
    get,
    hang,
    looped,
    one,
    refused,
    reset,
    saying,
    serving,
    text,
)
from ufwatch.model import UP, Reason


def packed(body: bytes) -> bytes:
    return gzip.compress(body, 6, mtime=0)


@looped
async def test_a_page_arrives_whole_over_the_clients_connection_and_then_over_a_kept_line() -> None:
    async with serving(saying(text())) as server, fetching() as fetcher:
        for _ in range(3):
            fetched = await get(fetcher, server.url)
            assert fetched.health == UP
            assert (fetched.body, fetched.status, fetched.wire_bytes) == (PAGE, 200, len(PAGE))
            assert fetched.content_type.startswith("text/plain")
            assert not fetched.openmetrics
            assert fetched.seconds > 0
        assert server.connections == 2


@looped
async def test_the_request_asks_for_text_and_on_loopback_not_for_gzip() -> None:
    async with serving(saying(text())) as server, fetching(resolver=Names(model_test="127.0.0.1")) as fetcher:
        await get(fetcher, server.url)
        await get(fetcher, f"http://model.test:{server.port}/metrics?a=b%20c")
    here, there = (head.decode().lower() for head in server.heads)
    assert "accept: text/plain;version=0.0.4," in here
    # prometheus_client answers in OpenMetrics as soon as it is named, whatever its q.
    assert "openmetrics" not in here
    assert "accept-encoding: identity\r\n" in here
    assert "accept-encoding: gzip\r\n" in there
    assert there.startswith("get /metrics?a=b%20c http/1.1")
    assert "authorization" not in here
    assert "user-agent: ufwatch/" in here


@pytest.mark.parametrize(
    ("content_type", "body", "openmetrics"),
    [
        ("text/plain", PAGE, False),
        ("text/plain; charset=", PAGE, False),
        ("text/plain; charset=klingon; version=0.0.4", PAGE, False),
        ("TEXT/PLAIN;version=1.0.0", PAGE, False),
        ("", PAGE, False),
        ("text/plain", b'{"a.b",c="d"} 1\n', False),
        ("text/plain", b'{"a.b"} 1\n', False),
        ("text/plain", b"\n\na 1\n", False),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", PAGE + b"# EOF\n", True),
        ("application/openmetrics-text", PAGE + b"# EOF", True),
        ("application/openmetrics-text", b"# EOF\n", True),
    ],
)
def test_types_and_pages_that_are_read(content_type: str, body: bytes, openmetrics: bool) -> None:
    fetched = asyncio.run(one(saying(answer(body, f"Content-Type: {content_type}"))))
    assert fetched.health == UP
    assert (fetched.body, fetched.openmetrics) == (body, openmetrics)


@looped
async def test_no_content_type_at_all_is_read() -> None:
    assert (await one(saying(answer()))).body == PAGE


@looped
async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    old = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + PAGE
    assert (await one(saying(old, keep=False))).body == PAGE


@looped
async def test_a_large_chunked_page_arrives_whole() -> None:
    body = b"a 1\n" * 500_000
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:1_000_000], body[1_000_000:]))
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    fetched = await one(saying(head + chunks + b"0\r\n\r\n"))
    assert fetched.body == body
    assert fetched.wire_bytes == len(body)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("Content-Type: text/plain\r\nContent-Length: 100", b"a 1\n"),
        ("Content-Type: text/plain\r\nContent-Length: 100", b""),
        ("Content-Type: text/plain\r\nContent-Length: 6", b"a 9876"),
        ("Content-Type: text/plain\r\nConnection: close", b"a 1\nb 98"),
        ("Content-Type: text/plain\r\nTransfer-Encoding: chunked", b"4\r\na 1\n\r\n"),
        ("Content-Type: application/openmetrics-text\r\nContent-Length: 4", b"a 1\n"),
        ("Content-Type: application/openmetrics-text\r\nContent-Length: 9", b"a 1# EOF\n"),
        ("Content-Type: application/openmetrics-text\r\nContent-Length: 5", b"# EOF"[:4] + b"\n"),
    ],
)
def test_a_cut_page_is_truncated(head: str, body: bytes) -> None:
    fetched = asyncio.run(one(saying(b"HTTP/1.1 200 OK\r\n" + head.encode() + b"\r\n\r\n" + body, keep=False)))
    refused(fetched, Reason.TRUNCATED)
    assert fetched.status == 200


@pytest.mark.parametrize("head", ["Connection: close", "Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_reset_within_a_body_is_no_end(head: str) -> None:
    async def turn(_: bytes, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        body = b"%x\r\n%s\r\n" % (len(PAGE), PAGE) if "chunked" in head else PAGE
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{head}\r\n\r\n".encode() + body)
        return reset(writer)

    refused(asyncio.run(one(turn)), Reason.TRUNCATED)


@pytest.mark.parametrize(
    ("content_type", "body", "parts"),
    [
        ("text/html; charset=utf-8", b"<!DOCTYPE html>\n<title>Sign in</title>", ("text/html", "<title>Sign in")),
        ("text/plain", b"  <html>gateway</html>\n", ("HTML", "<html>gateway")),
        ("", b"<html></html>\n", ("HTML",)),
        ("application/json", b'{"detail": "Not Found"}', ("application/json", "Not Found")),
        ("text/plain", b'{"detail": "Not Found"}\n', ("JSON", "Not Found")),
        ("text/plain", b"{}\n", ("JSON",)),
        ("text/plain", b'[{"a": 1}]\n', ("JSON",)),
        ("text/plain", b"a\0b\n", ("binary",)),
        ("application/vnd.google.protobuf", b"\x0a\x02", ("protobuf",)),
        ("text/plain", b"", ("empty body",)),
        ("text/plain", b"\n \n", ("empty body",)),
        ("application/openmetrics-text", b"", ("empty body",)),
    ],
)
def test_what_is_no_exposition_is_refused_by_name(content_type: str, body: bytes, parts: tuple[str, ...]) -> None:
    fetched = asyncio.run(one(saying(answer(body, f"Content-Type: {content_type}"))))
    refused(fetched, Reason.CONTENT, *parts)


@looped
async def test_html_inside_gzip_is_shown_as_text() -> None:
    page = answer(packed(b"<html>Sign in</html>"), "Content-Type: text/html", "Content-Encoding: gzip")
    refused(await one(saying(page)), Reason.CONTENT, "<html>Sign in")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("500 Internal Server Error", Reason.STATUS),
        ("404 Not Found", Reason.STATUS),
        ("206 Partial Content", Reason.STATUS),
        ("401 Unauthorized", Reason.PERMISSION),
        ("403 Forbidden", Reason.PERMISSION),
    ],
)
def test_other_statuses_are_named_and_keep_the_connection(status: str, reason: Reason) -> None:
    async def run() -> None:
        async with serving(saying(answer(b"oh\ndear", status=status), text())) as server, fetching() as fetcher:
            fetched = await get(fetcher, server.url)
            refused(fetched, reason, status[:3], "oh dear")
            assert fetched.status == int(status[:3])
            assert (await get(fetcher, server.url)).health == UP
            assert server.connections == 1

    asyncio.run(run())


@looped
async def test_no_content_is_a_status() -> None:
    refused(await one(saying(b"HTTP/1.1 204 No Content\r\n\r\n")), Reason.STATUS, "204")


@looped
async def test_another_protocol_is_no_answer() -> None:
    refused(await one(saying(b"SSH-2.0-OpenSSH_9.2\r\n", keep=False)), Reason.CONTENT, "not HTTP")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (packed(PAGE), ("Content-Encoding: gzip",)),
        (packed(PAGE), ("Content-Encoding: X-GZIP",)),
        (packed(PAGE), ()),
        (packed(PAGE), ("Content-Encoding: identity",)),
        (packed(PAGE[:9]) + packed(PAGE[9:]) + b"\0\0", ("Content-Encoding: gzip",)),
    ],
)
def test_gzip_is_decoded_with_and_without_its_header(body: bytes, headers: tuple[str, ...]) -> None:
    fetched = asyncio.run(one(saying(text(body, *headers))))
    assert fetched.body == PAGE
    assert fetched.wire_bytes == len(body)


@looped
async def test_a_large_gzip_page_is_decoded_off_the_loop() -> None:
    body = b"".join(b"a%d %d\n" % (i, i * i) for i in range(50_000))
    assert (await one(saying(text(packed(body), "Content-Encoding: gzip")))).body == body


@pytest.mark.parametrize(
    ("body", "encoding", "reason"),
    [
        (b"\x8b\x03", "br", Reason.CONTENT),
        (zlib.compress(PAGE), "deflate", Reason.CONTENT),
        (packed(packed(PAGE)), "gzip, gzip", Reason.CONTENT),
        (packed(packed(PAGE)), "gzip", Reason.CONTENT),
        (PAGE, "gzip", Reason.CONTENT),
        (packed(PAGE)[:-4], "gzip", Reason.TRUNCATED),
        (packed(PAGE)[:-1] + b"x", "gzip", Reason.CONTENT),
        (packed(PAGE) + b"junk", "gzip", Reason.CONTENT),
        (packed(b""), "gzip", Reason.CONTENT),
        (packed(PAGE[:-1]), "gzip", Reason.TRUNCATED),
    ],
)
def test_encodings_that_are_refused(body: bytes, encoding: str, reason: Reason) -> None:
    refused(asyncio.run(one(saying(text(body, f"Content-Encoding: {encoding}")))), reason)


def bomb() -> bytes:
    """A megabyte of gzip that says a gigabyte of zeros, made of one block over and over."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packer.compress(b"\0" * 65_536)
    packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b"\0" * (16 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * 64


@pytest.mark.parametrize("headers", [("Content-Encoding: gzip",), ()])
def test_a_gzip_bomb_is_refused_without_being_inflated(headers: tuple[str, ...]) -> None:
    packed = bomb()
    assert 900_000 < len(packed) < 1_200_000
    tracemalloc.start()
    try:
        fetched = asyncio.run(one(saying(text(packed, *headers)), cap=2 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    refused(fetched, Reason.CONTENT, "after decompression")
    assert peak < 16 << 20


@pytest.mark.parametrize("head", ["Content-Length: 4000", "Connection: close"])
def test_a_body_over_the_cap_is_refused(head: str) -> None:
    page = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{head}\r\n\r\n".encode() + b"a 1\n" * 1000
    refused(asyncio.run(one(saying(page, keep=False), cap=3999)), Reason.CONTENT, "3999")
    assert asyncio.run(one(saying(page, keep=False), cap=4000)).health == UP


@looped
async def test_a_silent_server_is_a_timeout() -> None:
    fetched = await one(lambda _, reader, __: hang(reader), deadline=0.05)
    refused(fetched, Reason.TIMEOUT, "no answer within 0.05 s")
    assert fetched.status is None
    assert 0.04 < fetched.seconds < 5


@looped
async def test_a_body_that_never_ends_is_a_timeout() -> None:
    async def turn(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer(PAGE, length=1000))
        return await hang(reader)

    refused(await one(turn, deadline=0.2), Reason.TIMEOUT, f"{len(PAGE)} bytes")


@looped
async def test_a_status_whose_body_never_ends_is_still_that_status() -> None:
    async def turn(_: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer(b"", status="503 Busy", length=1000))
        return await hang(reader)

    refused(await one(turn, deadline=0.2), Reason.STATUS, "503")


@looped
async def test_a_slow_server_does_not_delay_another() -> None:
    async with (
        serving(lambda _, reader, __: hang(reader)) as slow,
        serving(saying(text())) as good,
        fetching() as fetcher,
    ):
        waiting = asyncio.create_task(get(fetcher, slow.url, deadline=5))
        assert (await get(fetcher, good.url)).health == UP
        assert not waiting.done()
        while not slow.heads:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # The cancelled request's connection is gone, not left to hang.
        await slow.ended.wait()
