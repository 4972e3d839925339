"""OTLP over gRPC, in: what vLLM speaks unless told otherwise."""

from __future__ import annotations

import logging

import grpc

from ufwatch.errors import ListenError
from ufwatch.trace.intake import Intake, Refusal
from ufwatch.trace.wire import MalformedError, TooLargeError

logger = logging.getLogger(__name__)

_SERVICE, _METHOD = "opentelemetry.proto.collector.trace.v1.TraceService", "Export"
_MOST_AT_A_TIME = 16
_STOP_SECONDS = 0.5
_PACKED = (b"\x1f\x8b", b"\x78")
"""How gzip and zlib begin. A request begins with the tag of its first list or is empty, so neither can be one."""

# gRPC logs a traceback for each request that its peer gave up on.
logging.getLogger("grpc._cython.cygrpc").setLevel(logging.CRITICAL)


class GrpcReceiver:
    """A gRPC server that has ``intake`` answer. Plain: vLLM offers no TLS over gRPC."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Listens; port 0 lets the system choose. Raises ListenError."""
        server = grpc.aio.server(
            maximum_concurrent_rpcs=_MOST_AT_A_TIME,
            options=(
                # Otherwise a second receiver on the port would quietly get half of the spans.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", self._intake.cap_bytes),
                ("grpc.max_metadata_size", 16 * 1024),
                # We unpack ourselves: gRPC checks the size before it does, so 4 MB may become 4 GB.
                ("grpc.per_message_decompression", 0),
            ),
        )
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler}),))
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = server.add_insecure_port(shown)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {shown}: the system refuses the address or the port") from error
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Lets answers being written end; takes well under a second."""
        if self._server is not None:
            await self._server.stop(_STOP_SECONDS)
            self._server = None

    async def _export(self, body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            return self._intake.take(self._intake.unpacked(body) if body.startswith(_PACKED) else body)
        except MalformedError as error:
            self._intake.refuse(Refusal.MALFORMED)
            return _refused(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TooLargeError as error:
            self._intake.refuse(Refusal.TOO_LARGE)
            return _refused(context, grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except Exception:
            logger.exception("taking spans failed; this is a bug in ufwatch")
            return _refused(context, grpc.StatusCode.INTERNAL, "internal error; the agent's log has more")


def _refused(context: grpc.aio.ServicerContext, code: grpc.StatusCode, why: str) -> bytes:
    context.set_code(code)
    context.set_details(why)
    return b""
