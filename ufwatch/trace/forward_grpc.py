"""Sends OTLP requests to a backend over gRPC, as the bytes they are."""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from ufwatch.errors import ConfigError
from ufwatch.sources.body import printable, redact
from ufwatch.trace.endpoint import Endpoint
from ufwatch.trace.forward import Outcome, Verdict
from ufwatch.trace.wire import MalformedError, rejected_in

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_RETRYABLE = frozenset(
    grpc.StatusCode[name]
    for name in ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS")
)
_OPTIONS = (
    # gRPC waits up to two minutes between connections otherwise; our own pauses are shorter.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.max_receive_message_length", 64 * 1024),
)


class GrpcTransport:
    """One channel to the endpoint, made when it is first used. ``proxied`` False: never through a proxy, which gRPC
    would otherwise take from the environment for local addresses too."""

    def __init__(self, endpoint: Endpoint, *, proxied: bool = False) -> None:
        """Raises ConfigError where a certificate cannot be read."""
        self._endpoint = endpoint
        self._options = (*_OPTIONS, ("grpc.enable_http_proxy", int(proxied)))
        self._credentials = credentials(endpoint) if endpoint.tls else None
        self._secrets = [value for _, value in endpoint.headers]
        self._channel: grpc.aio.Channel | None = None

    async def send(self, payload: bytes) -> Outcome:
        """See :class:`~ufwatch.trace.forward.Transport`."""
        try:
            call = self._open().unary_unary(_METHOD)
            body = await call(payload, timeout=self._endpoint.timeout, metadata=self._endpoint.headers)
        except grpc.aio.AioRpcError as error:
            return self._failed(error)
        except (ValueError, TypeError, grpc.RpcError) as error:
            # A header that gRPC does not allow, for one: it would be refused the next time too.
            return Outcome(Verdict.REJECTED, why=self._told(str(error)))
        try:
            rejected, why = rejected_in(body)
        except MalformedError as error:
            return Outcome(Verdict.REJECTED, why=str(error))
        return Outcome(Verdict.DELIVERED, rejected, why=self._told(why))

    async def close(self) -> None:
        """Ends the channel with whatever is on it."""
        if self._channel is not None:
            await self._channel.close(None)

    def _open(self) -> grpc.aio.Channel:
        # Here, not at the start: a channel belongs to the loop that runs when it is made.
        if self._channel is None:
            packed = grpc.Compression.Gzip if self._endpoint.gzip else None
            target, options = self._endpoint.target, self._options
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(target, options=options, compression=packed)
            else:
                self._channel = grpc.aio.secure_channel(target, self._credentials, options=options, compression=packed)
        return self._channel

    def _failed(self, error: grpc.aio.AioRpcError) -> Outcome:
        code, told = error.code(), error.details() or ""
        why = f"{code.name}: {self._told(told)}"
        after = _retry_after(dict(error.trailing_metadata() or ()))
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in told:
            return Outcome(Verdict.TOO_LARGE, why=why)
        # Exhausted is only worth another try where the backend says when, as OTLP has it.
        if code in _RETRYABLE or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and after is not None):
            return Outcome(Verdict.RETRY, after=after, why=why)
        return Outcome(Verdict.REJECTED, why=why)

    def _told(self, text: str) -> str:
        return redact(printable(text.encode()), self._secrets)


def credentials(endpoint: Endpoint) -> grpc.ChannelCredentials:
    """What TLS to the endpoint is checked with. Raises ConfigError where a file cannot be read."""

    def content(path: object) -> bytes | None:
        return None if path is None else endpoint_file(str(path))

    return grpc.ssl_channel_credentials(
        root_certificates=content(endpoint.ca_file),
        private_key=content(endpoint.client_key_file),
        certificate_chain=content(endpoint.client_cert_file),
    )


def endpoint_file(path: str) -> bytes:
    """A certificate's or key's bytes. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(path, [f"cannot be read: {error.strerror}"]) from error


def _retry_after(trailing: Mapping[str, str | bytes]) -> float | None:
    """Seconds that the backend asks to wait, from either place where it may say so."""
    bare = trailing.get("google.rpc.retryinfo-bin")
    full = trailing.get("grpc-status-details-bin")
    try:
        if isinstance(bare, bytes):
            return _seconds(RetryInfo.FromString(bare))
        if isinstance(full, bytes):
            for detail in Status.FromString(full).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    return _seconds(info)
    except DecodeError:
        pass
    return None


def _seconds(info: RetryInfo) -> float:
    return max(0.0, float(info.retry_delay.seconds) + float(info.retry_delay.nanos) / 1e9)
