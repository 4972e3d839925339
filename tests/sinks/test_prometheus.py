"""Negotiation as scrapers ask, and the sinks."""

from __future__ import annotations

import gzip

import pytest

from ufwatch.model import Sample
from ufwatch.render.exposition import Format, Page
from ufwatch.sinks.memory import MemorySink
from ufwatch.sinks.negotiation import CONTENT_TYPES, negotiate
from ufwatch.sinks.prometheus import PrometheusSink
from ufwatch.spec import Kind, MetricSpec

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_2_42_NATIVE = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, Format.TEXT),
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        ("text/plain", Format.TEXT),
        ("text/plain;version=0.0.4", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0", Format.OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", Format.OPENMETRICS),
        ('Application/OpenMetrics-Text;Version="1.0.0"', Format.OPENMETRICS),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ("application/openmetrics-text;version=2.0.0", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.3,text/plain;q=0.7", Format.TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.7,text/plain;q=0.3", Format.OPENMETRICS),
        ("application/openmetrics-text;q=nan", Format.TEXT),
        ("application/openmetrics-text;q=rubbish", Format.TEXT),
        ("application/json", Format.TEXT),
        (",;,;;=", Format.TEXT),
        (PROMETHEUS_2_42, Format.OPENMETRICS),
        (PROMETHEUS_2_42_NATIVE, Format.OPENMETRICS),
        (PROMETHEUS_3, Format.OPENMETRICS),
        (BROWSER, Format.TEXT),
    ],
)
def test_form(accept: str | None, form: Format) -> None:
    assert negotiate(accept, None) == (form, False)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (None, False),
        ("gzip", True),
        ("gzip, deflate, br", True),
        ("GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
        ("br", False),
    ],
)
def test_compression_only_when_asked(encoding: str | None, expected: bool) -> None:
    assert negotiate(None, encoding)[1] is expected


def test_content_types_are_those_that_prometheus_3_knows() -> None:
    assert CONTENT_TYPES == {
        Format.TEXT: "text/plain; version=0.0.4; charset=utf-8",
        Format.OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
    }


SPEC = MetricSpec(name="things_total", kind=Kind.COUNTER, labels=("target",), help="Things.")
SAMPLE = Sample("things_total", (("target", "a"),), 1.0)


def test_the_sink_answers_with_the_newest_page() -> None:
    sink = PrometheusSink(Page((SPEC,)))
    sink.publish("target:a", iter([SAMPLE]))
    body, kind, zipped = sink.answer(None, "gzip")
    assert gzip.decompress(body).endswith(b'ufwatch_things_total{target="a"} 1.0\n')
    assert (kind, zipped) == (CONTENT_TYPES[Format.TEXT], True)
    body, kind, zipped = sink.answer(PROMETHEUS_3, None)
    assert body.startswith(b"# HELP ufwatch_things Things.\n")
    assert (kind, zipped) == (CONTENT_TYPES[Format.OPENMETRICS], False)
    sink.forget("target:a")
    assert sink.answer(None, None)[0] == b""


def test_the_memory_sink_keeps_what_it_is_given() -> None:
    sink = MemorySink()
    sink.publish("target:a", [SAMPLE])
    assert sink.samples == {"target:a": (SAMPLE,)}
    sink.forget("target:a")
    sink.forget("target:a")
    assert sink.samples == {}
