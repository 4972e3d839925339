"""OTLP over HTTP with protobuf, in. The application alone: who serves it brings TLS, passwords and limits."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web
from google.rpc.status_pb2 import Status

from ufwatch.sources.body import media_type
from ufwatch.trace.intake import Intake, Refusal
from ufwatch.trace.wire import PROTOBUF, MalformedError

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _UNIMPLEMENTED, _INTERNAL = 3, 8, 12, 13  # of google.rpc.Code
_TYPE = (
    "only application/x-protobuf is spoken here; set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf for the exporter"
)


def build_receiver_app(intake: Intake) -> web.Application:
    """The application. ``/`` takes traces too: vLLM uses its endpoint as it is given, often without the path."""

    async def traces(request: web.Request) -> web.Response:
        if media_type(request.headers.get("Content-Type", "")) != PROTOBUF:
            intake.refuse(Refusal.UNSUPPORTED)
            return _refused(415, _UNIMPLEMENTED, _TYPE)
        try:
            # aiohttp unpacks gzip and deflate piece by piece and stops at the application's size.
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            intake.refuse(Refusal.TOO_LARGE)
            return _closing(_refused(413, _RESOURCE_EXHAUSTED, f"more than {intake.cap_bytes} bytes"))
        except web.HTTPException:
            raise
        except Exception:
            # A broken compression or chunk, by several kinds of error over aiohttp's versions; not our fault.
            intake.refuse(Refusal.MALFORMED)
            return _closing(_refused(400, _INVALID_ARGUMENT, "the body cannot be read as its headers say"))
        try:
            return web.Response(body=intake.take(body), content_type=PROTOBUF)
        except MalformedError as error:
            intake.refuse(Refusal.MALFORMED)
            return _refused(400, _INVALID_ARGUMENT, str(error))

    app = web.Application(middlewares=[_errors], client_max_size=intake.cap_bytes)
    app.router.add_post("/v1/traces", traces)
    app.router.add_post("/", traces)
    app.on_response_prepare.append(_common_headers)
    return app


def _refused(status: int, code: int, why: str) -> web.Response:
    """An error as OTLP wants it: a ``google.rpc.Status``."""
    return web.Response(status=status, body=Status(code=code, message=why).SerializeToString(), content_type=PROTOBUF)


def _closing(response: web.Response) -> web.Response:
    # The rest of such a body is not wanted either.
    response.force_close()
    return response


async def _common_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "ufwatch"
    response.headers.setdefault("X-Content-Type-Options", "nosniff")


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(status=404, text="only traces are taken here, at /v1/traces\n")
    except web.HTTPException as error:
        kept = {key: value for key, value in error.headers.items() if key in ("Allow", "WWW-Authenticate")}
        return web.Response(status=error.status, text=f"{error.status} {error.reason}\n", headers=kept)
    except Exception:
        logger.exception("taking spans failed; this is a bug in ufwatch")
        return _refused(500, _INTERNAL, "internal error; the agent's log has more")
