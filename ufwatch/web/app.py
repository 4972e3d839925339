"""What the agent serves: the page, its health, its readings as JSON, and an index for people."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiohttp import web

from ufwatch.web.index import index_html

_LOG = logging.getLogger("ufwatch.web")


class Answers(Protocol):
    """Where the page comes from."""

    def answer(self, accept: str | None, accept_encoding: str | None) -> tuple[bytes, str, bool]: ...


class Readiness(Protocol):
    def ready(self) -> tuple[bool, str]: ...


_HTML = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
}
"""The index runs nothing and loads nothing, whatever a label holds."""

Readings = Callable[[], dict[str, Any]]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(page: Answers, readiness: Readiness, readings: Readings, slos: Readings | None = None) -> web.Application:
    """The application. No handler waits for a source; one that fails answers 500 with one line and is logged."""

    async def metrics(request: web.Request) -> web.Response:
        body, content_type, gzip = page.answer(_joined(request, "Accept"), _joined(request, "Accept-Encoding"))
        # A proxy that keeps pages must not hand a compressed or OpenMetrics body to a reader that asked for neither.
        answer = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip:
            answer["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=answer)

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ufwatch is healthy\n")

    async def ready(_: web.Request) -> web.Response:
        good, why = readiness.ready()
        return web.Response(text="ufwatch is ready\n" if good else f"{why}\n", status=200 if good else 503)

    async def health(_: web.Request) -> web.Response:
        good, why = readiness.ready()
        targets = [{key: t[key] for key in ("target", "up", "state", "reason")} for t in readings()["targets"]]
        return _json({"ready": good, "reason": why or None, "targets": targets})

    async def all_readings(_: web.Request) -> web.Response:
        return _json(readings())

    async def all_slos(_: web.Request) -> web.Response:
        return _json(slos() if slos is not None else {"targets": []})

    async def index(_: web.Request) -> web.Response:
        body = index_html(readings()["targets"]).encode("utf-8", "replace")
        return web.Response(body=body, headers=_HTML)

    app = web.Application(middlewares=[_errors])
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/-/healthy", healthy)
    app.router.add_get("/-/ready", ready)
    app.router.add_get("/health", health)
    app.router.add_get("/api/v1/readings", all_readings)
    app.router.add_get("/api/v1/slo", all_slos)
    app.router.add_get("/", index)
    app.on_response_prepare.append(_common_headers)
    return app


def _json(document: object) -> web.Response:
    # NaN is no JSON; it is our bug and must not pass as a number.
    return web.Response(text=json.dumps(document, allow_nan=False) + "\n", content_type="application/json")


def _joined(request: web.Request, name: str) -> str | None:
    """A header that may be sent on several lines, as one."""
    return ",".join(request.headers.getall(name, ())) or None


async def _common_headers(_: web.Request, response: web.StreamResponse) -> None:
    # Otherwise every answer tells which versions of aiohttp and Python are to be attacked.
    response.headers["Server"] = "ufwatch"
    response.headers.setdefault("X-Content-Type-Options", "nosniff")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as answer:
        return web.Response(text=f"{answer.status} {answer.reason}\n", status=answer.status, headers=_kept(answer))
    except Exception:
        _LOG.exception("an answer failed; this is a bug in ufwatch", extra={"fields": {"path": request.path}})
        return web.Response(text="500 internal error; the agent's log has more\n", status=500)


def _kept(answer: web.HTTPException) -> dict[str, str]:
    return {key: value for key, value in answer.headers.items() if key in ("Allow", "WWW-Authenticate")}
