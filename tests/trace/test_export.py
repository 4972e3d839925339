"""Our own spans through the real SDK and its exporters: ids and moments as given, drops counted, a bounded end."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tests.sources.loopback import hang, looped, serving
from tests.trace.otlp import Backend, http_backend, receiving, spans_in, until
from tests.trace.test_forward_backends import closed_port, over_grpc, over_http
from tests.trace.test_spans import ORIGIN, WHOLE, tree
from ufwatch.errors import ConfigError
from ufwatch.trace.conventions import CAPTURE_CONTENT, SCHEMA_URL
from ufwatch.trace.export import Export, Lost, exporter_to
from ufwatch.trace.record import EventRecord, SpanRecord
from ufwatch.trace.record import Status as OurStatus
from ufwatch.trace.resource import resource_from
from ufwatch.trace.wire import Request


class Kept(SpanExporter):
    """Keeps what it gets; may be held up or made to fail."""

    def __init__(self, *, fails: bool = False, held: bool = False) -> None:
        self.spans: list[ReadableSpan] = []
        self.fails = fails
        self.go = threading.Event()
        self.came = threading.Event()
        if not held:
            self.go.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.came.set()
        self.go.wait()
        if self.fails:
            raise RuntimeError("bug")
        self.spans += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def record(number: int = 1, **changes: object) -> SpanRecord:
    known: dict[str, object] = {
        "name": "chat tiny",
        "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}",
        "parent_id": None,
        "start_unix_ns": ORIGIN,
        "end_unix_ns": ORIGIN + 5,
    }
    return SpanRecord(**{**known, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("packing", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_tree_arrives_as_it_was(protocol: str, packing: bool) -> None:
    @looped
    async def run() -> None:
        collected = Backend()
        async with receiving(collected) as receiver:
            endpoint = (
                over_grpc(f"127.0.0.1:{receiver.grpc_port}", gzip=packing)
                if protocol == "grpc"
                else over_http(f"http://127.0.0.1:{receiver.http_port}/v1/traces", gzip=packing)
            )
            made = Export(exporter_to(endpoint), {"OTEL_RESOURCE_ATTRIBUTES": "host.name=gpu%2D7,team=a"})
            records = tree(WHOLE)
            made.add(records)
            counts = await asyncio.to_thread(made.close)
            assert (counts.exported, counts.waiting, counts.dropped) == (len(records), 0, 0)
            await until(lambda: bool(collected.payloads))
        payload = collected.payloads[0]
        (resource,) = Request.FromString(payload).resource_spans
        told = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
        assert (told["service.name"], told["host.name"], told["team"]) == ("ufwatch", "gpu-7", "a")
        assert resource.scope_spans[0].schema_url == SCHEMA_URL
        arrived = {span.span_id.hex(): span for span in spans_in(payload)}
        assert len(arrived) == len(records)
        for sent in records:
            span = arrived[sent.span_id]
            assert span.trace_id.hex() == sent.trace_id
            assert span.parent_span_id.hex() == (sent.parent_id or "")
            assert (span.name, span.start_time_unix_nano, span.end_time_unix_nano) == (
                *(sent.name, sent.start_unix_ns, sent.end_unix_ns),
            )
            assert {pair.key for pair in span.attributes} == {str(name) for name in sent.attributes}
            assert [(event.name, event.time_unix_nano) for event in span.events] == [
                (event.name, event.at_unix_ns) for event in sent.events
            ]
        assert arrived[WHOLE.span_id].kind == WireSpan.SPAN_KIND_CLIENT

    run()


@looped
async def test_a_failure_and_its_reason_arrive() -> None:
    collected = Backend()
    async with receiving(collected) as receiver:
        made = Export(exporter_to(over_http(f"http://127.0.0.1:{receiver.http_port}/v1/traces")), {})
        made.add([record(status=OurStatus(True, "refused: nobody"), events=(EventRecord("e", ORIGIN + 1, {"a": 1}),))])
        await asyncio.to_thread(made.close)
        await until(lambda: bool(collected.payloads))
    (span,) = spans_in(collected.payloads[0])
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "refused: nobody")
    assert span.events[0].attributes[0].key == "a"


def test_what_does_not_fit_is_counted_exactly() -> None:
    kept = Kept(held=True)
    made = Export(kept, {}, queue_spans=1000)
    made.add([record(number) for number in range(1, 601)])
    assert kept.came.wait(10)
    made.add([record(number) for number in range(601, 1601)])
    counts = made.counts
    assert (counts.waiting, counts.lost[Lost.QUEUE_FULL]) == (1000, 600)
    kept.go.set()
    final = made.close()
    assert (final.exported, final.waiting, final.dropped) == (1000, 0, 600)
    assert len(kept.spans) == 1000


def test_an_exporter_that_fails_is_counted_and_no_traceback_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    made = Export(Kept(fails=True), {})
    made.add([record(1), record(2)])
    final = made.close()
    assert (final.exported, final.lost[Lost.FAILED]) == (0, 2)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_the_end_is_bounded_whatever_the_exporter_does() -> None:
    kept = Kept(held=True)
    made = Export(kept, {})
    made.add([record(number) for number in range(1, 11)])
    began = time.monotonic()
    final = made.close(0.2)
    assert time.monotonic() - began < 2
    assert (final.exported, final.waiting, final.lost[Lost.SHUTDOWN]) == (0, 0, 10)
    kept.go.set()
    made.add([record(99)])
    assert made.counts.dropped == 11


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_dead_collector_does_not_hold_the_exit(protocol: str) -> None:
    port = closed_port()
    endpoint = over_grpc(f"127.0.0.1:{port}") if protocol == "grpc" else over_http(f"http://127.0.0.1:{port}/v1/traces")
    made = Export(exporter_to(endpoint), {})
    made.add([record(1), record(2)])
    began = time.monotonic()
    final = made.close(1.0)
    assert time.monotonic() - began < 3
    assert (final.exported, final.dropped) == (0, 2)


def test_a_process_with_a_silent_collector_ends_in_time() -> None:
    """Threads of the SDK's and of gRPC's must not keep the interpreter either."""

    @looped
    async def run() -> None:
        async with serving(lambda _, reader, __: hang(reader)) as silent:
            code = (
                "import time\n"
                "from tests.trace.test_export import Export, exporter_to, over_grpc, over_http, record\n"
                f"ends = [over_grpc('127.0.0.1:{silent.port}'), over_http('http://127.0.0.1:{silent.port}/v1/traces')]\n"
                "made = [Export(exporter_to(end), {}) for end in ends]\n"
                "for one in made: one.add([record(1)])\n"
                "began = time.monotonic()\n"
                "print(*[one.close(0.3).dropped for one in made], flush=True)\n"
                "import atexit; atexit.register(lambda: print(time.monotonic() - began < 3, flush=True))\n"
            )
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", code), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            out, errors = await process.communicate()
            assert out.split() == [b"1", b"1", b"True"], errors.decode()
            assert b"Traceback" not in errors
            assert process.returncode == 0

    run()


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        ("", "", 40),
        ("always_on", "", 40),
        ("always_off", "", 0),
        ("parentbased_always_off", "", 0),
        ("traceidratio", "0", 0),
        ("parentbased_traceidratio", "1", 40),
    ],
)
def test_sampling_by_the_standard_variables(sampler: str, argument: str, expected: int) -> None:
    kept = Kept()
    made = Export(kept, {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument})
    made.add(record(number) for number in range(1, 41))
    final = made.close()
    assert (final.exported, final.not_sampled, final.dropped) == (expected, 40 - expected, 0)


@pytest.mark.parametrize("sampler", ["traceidratio", "parentbased_traceidratio"])
def test_a_trace_is_sampled_as_a_whole(sampler: str) -> None:
    kept = Kept()
    made = Export(kept, {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": "0.5"})
    for number in range(1, 101):
        trace_id = f"{number * 0x9E3779B97F4A7C15 % 2**64:032x}"
        made.add([record(2 * number, trace_id=trace_id)])
        made.add([record(2 * number + 1, trace_id=trace_id, parent_id=f"{2 * number:016x}")])
    made.close()
    traces: dict[int, int] = {}
    for span in kept.spans:
        traces[span.context.trace_id] = traces.get(span.context.trace_id, 0) + 1
    assert 25 < len(traces) < 75
    assert set(traces.values()) == {2}


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "OTEL_TRACES_SAMPLER_ARG"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half"}, "OTEL_TRACES_SAMPLER_ARG"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "nonsense"}, "OTEL_RESOURCE_ATTRIBUTES"),
    ],
)
def test_a_bad_variable_is_one_line(environ: dict[str, str], variable: str) -> None:
    with pytest.raises(ConfigError, match=variable) as failure:
        Export(Kept(), environ)
    assert len(str(failure.value).splitlines()) == 1


def test_the_service_has_a_name_and_may_have_another() -> None:
    assert resource_from({}).attributes["service.name"] == "ufwatch"
    named = {"OTEL_RESOURCE_ATTRIBUTES": "service.name=a"}
    assert resource_from(named).attributes["service.name"] == "a"
    assert resource_from({**named, "OTEL_SERVICE_NAME": "b"}).attributes["service.name"] == "b"


@pytest.mark.parametrize("opted", [False, True])
def test_prompts_leave_only_by_an_explicit_wish(opted: bool) -> None:
    kept = Kept()
    made = Export(kept, {CAPTURE_CONTENT: "true"} if opted else {})
    made.add([record(attributes={"gen_ai.input.messages": "hello", "gen_ai.operation.name": "chat"})])
    made.close()
    known = dict(kept.spans[0].attributes or {})
    assert ("gen_ai.input.messages" in known) is opted
    assert known["gen_ai.operation.name"] == "chat"


@looped
async def test_headers_reach_the_collector() -> None:
    async with http_backend() as backend:
        endpoint = over_http(f"{backend.url}/v1/traces", headers=(("authorization", "Bearer x"),))
        made = Export(exporter_to(endpoint), {})
        made.add([record()])
        assert (await asyncio.to_thread(made.close)).exported == 1
        assert backend.heads[0]["authorization"] == "Bearer x"


@looped
async def test_a_change_is_said_once_and_not_with_every_batch(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    kept = Kept(fails=True)
    made = Export(kept, {}, queue_spans=512)
    # More than two batches.
    made.add(record(number) for number in range(1, 1300))
    await asyncio.to_thread(made.close)
    lines = [entry.getMessage() for entry in caplog.records if entry.name.startswith("ufwatch")]
    assert lines == ["the trace backend does not take our spans"]
