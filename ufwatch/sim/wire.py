"""HTTP/1.1 as much as the simulated server needs: requests with a length, answers whole or chunked. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

_LARGEST_HEAD = 64 * 1024
_LARGEST_BODY = 4 * 1024 * 1024
METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
"""What vLLM sends since prometheus_client 0.22, whatever was asked for."""


class BadRequestError(ValueError):
    """The bytes are no request that is understood here."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def take_request(buffer: bytearray) -> HttpRequest | None:
    """Removes the first whole request from the buffer; None when there is none yet. BadRequestError for nonsense."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > _LARGEST_HEAD:
            raise BadRequestError("the request head is too long")
        return None
    first, *lines = bytes(buffer[:end]).decode("latin-1").split("\r\n")
    try:
        method, target, _ = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        length = int(headers.get("content-length", "0"))
    except ValueError as error:
        raise BadRequestError("the request head cannot be read") from error
    if "transfer-encoding" in headers or not 0 <= length <= _LARGEST_BODY:
        raise BadRequestError("a request needs a Content-Length, of 4 MiB at most")
    start = end + 4
    if len(buffer) < start + length:
        return None
    body = bytes(buffer[start : start + length])
    del buffer[: start + length]
    return HttpRequest(method, target.partition("?")[0], headers, body)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """The status line and headers of an answer."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "server: uvicorn"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def answer(status: int, body: bytes, content_type: str, extra: Mapping[str, str] | None = None) -> bytes:
    """A whole answer with its length."""
    headers = {"content-length": str(len(body)), "content-type": content_type, **(extra or {})}
    return head(status, headers) + body


def json_answer(status: int, value: Any) -> bytes:
    """A whole answer in JSON."""
    return answer(status, json.dumps(value).encode(), "application/json")


def error_answer(status: int, message: str) -> bytes:
    """An error in the form OpenAI's clients read."""
    kind = HTTPStatus(status).phrase.replace(" ", "") + "Error"
    return json_answer(status, {"error": {"message": message, "type": kind, "param": None, "code": status}})


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked answer; of no bytes, the end of it."""
    return b"%x\r\n%s\r\n" % (len(data), data)
