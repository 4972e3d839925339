"""Where spans go, by the variables that every exporter reads a little differently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ufwatch.errors import ConfigError
from ufwatch.trace.endpoint import GRPC, HTTP, Endpoint, endpoint_from

CASES = json.loads((Path(__file__).parents[1] / "cases/g06_otlp_endpoints.json").read_text(encoding="utf-8"))["cases"]
BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
OWN = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"


def named(flag: str | None = None, **environ: str) -> Endpoint:
    found = endpoint_from(
        {key if key.startswith("OTEL") else f"OTEL_EXPORTER_OTLP_{key}": v for key, v in environ.items()}, flag
    )
    assert found is not None
    return found


def test_the_configurations_endpoint_gives_way_to_variables_and_flag() -> None:
    file = "http://file.test:4318"
    assert endpoint_from({}) is None
    for environ, flag, target in (
        ({}, None, "http://file.test:4318/v1/traces"),
        ({BASE: "http://base.test:4318"}, None, "http://base.test:4318/v1/traces"),
        ({OWN: "http://own.test/x"}, None, "http://own.test/x"),
        ({OWN: "http://own.test/x"}, "http://flag.test:4318", "http://flag.test:4318/v1/traces"),
    ):
        found = endpoint_from(environ, flag, file=file)
        assert found is not None
        assert found.target == target
    assert endpoint_from({"OTEL_SDK_DISABLED": "true"}, file=file) is None
    with pytest.raises(ConfigError, match=r"^otlp.endpoint: "):
        endpoint_from({}, file="ftp://c")


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_endpoint_matrix(case: dict[str, dict[str, str | bool | None]]) -> None:
    environ = {name: str(value) for name, value in case["env"].items()}
    expected = case["expect"]
    if expected["protocol"] is None:
        with pytest.raises(ConfigError) as failure:
            endpoint_from(environ)
        assert str(failure.value).splitlines() == [str(failure.value)]
        assert PROTOCOL in str(failure.value)
        return
    found = endpoint_from(environ)
    assert found is not None
    assert (found.protocol, found.target, found.tls) == (expected["protocol"], expected["target"], expected["tls"])


@pytest.mark.parametrize(
    ("flag", "protocol", "target", "tls"),
    [
        ("http://c.test:4318", HTTP, "http://c.test:4318/v1/traces", False),
        ("http://c.test:4318/v1/traces", HTTP, "http://c.test:4318/v1/traces", False),
        ("https://c.test/otlp/", HTTP, "https://c.test/otlp/v1/traces", True),
        ("http://c.test:4317", GRPC, "c.test:4317", False),
        ("grpc://c.test", GRPC, "c.test:4317", False),
        ("grpcs://c.test:443", GRPC, "c.test:443", True),
        ("c.test:4317", GRPC, "c.test:4317", True),
        ("http://[::1]:4317", GRPC, "[::1]:4317", False),
    ],
)
def test_a_flag_needs_no_variable(flag: str, protocol: str, target: str, tls: bool) -> None:
    found = named(flag, ENDPOINT="http://other.test")
    assert (found.protocol, found.target, found.tls) == (protocol, target, tls)


@pytest.mark.parametrize(
    ("endpoint", "insecure", "tls"),
    [
        ("http://c.test:4317", "false", False),
        ("https://c.test:4317", "true", True),
        ("c.test:4317", "true", False),
        ("c.test:4317", "false", True),
    ],
)
def test_the_scheme_decides_and_the_flag_only_without_one(endpoint: str, insecure: str, tls: bool) -> None:
    found = named(ENDPOINT=endpoint, PROTOCOL="grpc", INSECURE=insecure)
    assert (found.target, found.tls) == ("c.test:4317", tls)


@pytest.mark.parametrize("text", ["authorization=Bearer x", "Authorization=Bearer%20x", " authorization = Bearer x ,"])
def test_headers_plain_or_encoded_are_the_same_on_the_wire(text: str) -> None:
    assert named(ENDPOINT="http://c.test", HEADERS=text).headers == (("authorization", "Bearer x"),)


def test_headers_of_the_signal_replace_the_general_ones() -> None:
    found = named(ENDPOINT="http://c.test", HEADERS="a=1", TRACES_HEADERS="b=c=d")
    assert found.headers == (("b", "c=d"),)


@pytest.mark.parametrize("text", ["secret", "a=b%0d%0ax: y", "na me=secret", "=secret"])
def test_a_bad_header_is_one_line_without_its_secret(text: str) -> None:
    with pytest.raises(ConfigError) as failure:
        named(ENDPOINT="http://c.test", HEADERS=text)
    assert "OTEL_EXPORTER_OTLP_HEADERS" in str(failure.value)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize(("text", "seconds"), [("", 10.0), ("10000", 10.0), ("10", 1.0), ("9999999", 60.0)])
def test_time_limits_are_milliseconds_and_bearable(text: str, seconds: float) -> None:
    assert named(ENDPOINT="http://c.test", TIMEOUT=text).timeout == seconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMEOUT", "soon"),
        ("TIMEOUT", "nan"),
        ("TIMEOUT", "-1"),
        ("COMPRESSION", "zstd"),
        ("CERTIFICATE", "/nowhere/ca.pem"),
        ("ENDPOINT", "http://user:pass@c.test"),
        ("ENDPOINT", "ftp://c.test"),
        ("ENDPOINT", "http://"),
        ("TRACES_ENDPOINT", "http://c.test/x?y"),
    ],
)
def test_a_bad_variable_is_one_line_that_names_it(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as failure:
        named(**{"ENDPOINT": "http://c.test", name: value})
    assert f"OTEL_EXPORTER_OTLP_{name}" in str(failure.value)
    assert len(str(failure.value).splitlines()) == 1
    assert "pass" not in str(failure.value)


def test_nothing_is_sent_where_nothing_is_named_or_it_is_switched_off() -> None:
    assert endpoint_from({}) is None
    assert endpoint_from({BASE: " ", OWN: ""}) is None
    assert endpoint_from({BASE: "http://c.test", "OTEL_SDK_DISABLED": "true"}) is None
    assert endpoint_from({BASE: "http://c.test", "OTEL_TRACES_EXPORTER": "none"}) is None
    assert endpoint_from({"OTEL_SDK_DISABLED": "true"}, "http://c.test") is not None


def test_the_default_is_what_the_specification_says_but_for_the_port_of_grpc() -> None:
    assert named(ENDPOINT="http://c.test:4318").protocol == HTTP
    assert named(ENDPOINT="http://c.test:4317").protocol == GRPC
    assert named(ENDPOINT="http://c.test:4317", PROTOCOL="http/protobuf").protocol == HTTP
