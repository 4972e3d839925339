"""Our own spans, out through OpenTelemetry's SDK and its OTLP exporters.

Spans are made after their request has ended, with the ids and the moments that they already have: the SDK asks an id
generator for ids and takes both times as arguments, so nothing private of it is used. Nothing here waits for a
collector but :meth:`Export.close`, which is bounded, whatever the SDK does.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision

from ufwatch import __version__
from ufwatch.trace.conventions import SCHEMA_URL, captures_content, is_content
from ufwatch.trace.endpoint import GRPC, Endpoint
from ufwatch.trace.record import MOST_ATTRIBUTES, Kind, SpanRecord
from ufwatch.trace.resource import resource_from, sampler_from

logger = logging.getLogger(__name__)

QUEUE_SPANS = 16_384
"""100 users with 12 spans a request overrun the SDK's own 2048."""
_BATCH_SPANS = 512
_DELAY_MS = 1000
_KINDS = {Kind.INTERNAL: api.SpanKind.INTERNAL, Kind.SERVER: api.SpanKind.SERVER, Kind.CLIENT: api.SpanKind.CLIENT}


class Lost(StrEnum):
    """Why a span of ours did not arrive."""

    QUEUE_FULL = "queue_full"
    FAILED = "failed"
    """The collector could not be reached or refused."""
    SHUTDOWN = "shutdown"
    """Still here when we had to stop."""


class Exported(NamedTuple):
    """Spans, since the start. ``not_sampled`` ones were never meant to be sent."""

    exported: int
    waiting: int
    not_sampled: int
    lost: Mapping[Lost, int]

    @property
    def dropped(self) -> int:
        """All that were lost."""
        return sum(self.lost.values())


class Export:
    """Takes span records at any time and sends them in a thread of the SDK's. ``exporter`` is one of OpenTelemetry's,
    see :func:`exporter_to`; ``environ`` tells sampler, resource and whether prompts may leave."""

    def __init__(self, exporter: SpanExporter, environ: Mapping[str, str], *, queue_spans: int = QUEUE_SPANS) -> None:
        """Raises ConfigError for a sampler or resource attributes that cannot be understood."""
        self._with_content = captures_content(environ)
        self._ids = _GivenIds()
        self._not_sampled = 0
        self._ledger = _Ledger(queue_spans)
        # A collector that is away is said once, by us: the SDK's lines come again and again, some with tracebacks.
        for name in ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal", "opentelemetry.sdk.trace"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._provider = TracerProvider(
            sampler=sampler_from(environ),
            resource=resource_from(environ),
            # At exit the SDK would wait for the collector without our limit.
            shutdown_on_exit=False,
            id_generator=self._ids,
            span_limits=SpanLimits(max_span_attributes=MOST_ATTRIBUTES),
        )
        batches = BatchSpanProcessor(
            _Counted(exporter, self._ledger),
            max_queue_size=max(queue_spans, _BATCH_SPANS),
            schedule_delay_millis=_DELAY_MS,
            max_export_batch_size=_BATCH_SPANS,
        )
        self._provider.add_span_processor(_Gate(batches, self._ledger))
        self._tracer = self._provider.get_tracer("ufwatch", __version__, SCHEMA_URL)
        self._lock = threading.Lock()

    def add(self, records: Iterable[SpanRecord]) -> None:
        """Takes the spans of a request, parents before children. Never waits; what does not fit is counted."""
        with self._lock:
            for record in records:
                self._add(record)

    @property
    def counts(self) -> Exported:
        """What became of the spans so far."""
        exported, waiting, lost = self._ledger.read()
        return Exported(exported, waiting, self._not_sampled, lost)

    def close(self, within: float = 2.0) -> Exported:
        """Sends what waits and stops, after ``within`` seconds at the latest; returns the final counts. Blocks: from a
        running loop call it by ``asyncio.to_thread``."""
        ending = threading.Thread(target=self._provider.shutdown, name="otlp export ending", daemon=True)
        ending.start()
        ending.join(within)
        self._ledger.close()
        return self.counts

    def _add(self, record: SpanRecord) -> None:
        trace_id, span_id = int(record.trace_id, 16), int(record.span_id, 16)
        # Asked of the trace, not of the span: children must not be kept where their root is not.
        decision = self._provider.sampler.should_sample(Context(), trace_id, record.name).decision
        if decision is not Decision.RECORD_AND_SAMPLE:
            self._not_sampled += 1
            return
        self._ids.trace_id, self._ids.span_id = trace_id, span_id
        context = Context()
        if record.parent_id:
            flags = api.TraceFlags(api.TraceFlags.SAMPLED)
            parent = api.SpanContext(trace_id, int(record.parent_id, 16), is_remote=False, trace_flags=flags)
            context = api.set_span_in_context(api.NonRecordingSpan(parent), context)
        span = self._tracer.start_span(
            record.name,
            context,
            kind=_KINDS[record.kind],
            attributes={
                name: value for name, value in record.attributes.items() if self._with_content or not is_content(name)
            },
            start_time=record.start_unix_ns,
        )
        for event in record.events:
            span.add_event(event.name, dict(event.attributes), event.at_unix_ns)
        if record.status.failed:
            span.set_status(api.Status(api.StatusCode.ERROR, record.status.description or None))
        span.end(record.end_unix_ns)


def exporter_to(endpoint: Endpoint) -> SpanExporter:
    """OpenTelemetry's exporter for an endpoint. Raises ConfigError where a certificate cannot be read."""
    ca, key, cert = (
        None if path is None else str(path)
        for path in (endpoint.ca_file, endpoint.client_key_file, endpoint.client_cert_file)
    )
    if endpoint.protocol == GRPC:
        import grpc
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        from ufwatch.trace.forward_grpc import credentials

        return GrpcExporter(
            endpoint=endpoint.target,
            insecure=not endpoint.tls,
            credentials=credentials(endpoint) if endpoint.tls else None,
            headers=endpoint.headers,
            timeout=endpoint.timeout,
            compression=grpc.Compression.Gzip if endpoint.gzip else grpc.Compression.NoCompression,
        )
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(
        endpoint=endpoint.target,
        certificate_file=ca,
        client_key_file=key,
        client_certificate_file=cert,
        headers=dict(endpoint.headers),
        timeout=endpoint.timeout,
        compression=Compression.Gzip if endpoint.gzip else Compression.NoCompression,
    )


class _GivenIds(IdGenerator):
    """Gives the SDK the ids that a span already has."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class _Ledger:
    """Who has which span. The SDK drops in silence; so no span enters its queue that does not fit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting = self._exported = 0
        self._lost: Counter[Lost] = Counter(dict.fromkeys(Lost, 0))
        self._closed = self._failing = False

    def enter(self) -> bool:
        with self._lock:
            if self._closed or self._waiting >= self._most:
                self._lost[Lost.SHUTDOWN if self._closed else Lost.QUEUE_FULL] += 1
                return False
            self._waiting += 1
            return True

    def leave(self, spans: int, *, delivered: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._waiting -= spans
            if delivered:
                self._exported += spans
            else:
                self._lost[Lost.FAILED] += spans
            changed, self._failing = self._failing is delivered, not delivered
        if changed:
            log = logger.info if delivered else logger.warning
            log("the trace backend takes our spans again" if delivered else "the trace backend does not take our spans")

    def close(self) -> None:
        """Whatever is not out by now is lost, also if it arrives yet."""
        with self._lock:
            self._lost[Lost.SHUTDOWN] += self._waiting
            self._waiting, self._closed = 0, True

    def read(self) -> tuple[int, int, dict[Lost, int]]:
        with self._lock:
            return self._exported, self._waiting, dict(self._lost)


class _Gate(SpanProcessor):
    """Lets a span into the batches where there is room."""

    def __init__(self, batches: BatchSpanProcessor, ledger: _Ledger) -> None:
        self._batches, self._ledger = batches, ledger

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        if self._ledger.enter():
            self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # the SDK wrote no types for this one

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)


class _Counted(SpanExporter):
    """An exporter whose results are counted."""

    def __init__(self, inner: SpanExporter, ledger: _Ledger) -> None:
        self._inner, self._ledger = inner, ledger

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            self._ledger.leave(len(spans), delivered=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
