"""The names are those of the conventions, switchable where they are in flux."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas

from ufwatch.trace.conventions import (
    CAPTURE_CONTENT,
    CONTENT,
    DEPRECATED,
    OPT_IN,
    RELEASED,
    RENAMED,
    SCHEMA_URL,
    Name,
    captures_content,
    current,
    is_content,
    metric_names,
)

LIGHT = ("conventions", "record", "spans", "server_spans", "endpoint", "joins", "forward")
VLLMS_OWN = {name for name in Name if name.name.startswith("VLLM_")}


def test_every_genai_name_is_one_that_the_conventions_know() -> None:
    known = {value for key, value in vars(gen_ai_attributes).items() if key.startswith("GEN_AI_")}
    ours = {name.value for name in Name if name.startswith("gen_ai.")} - {name.value for name in VLLMS_OWN}
    assert ours <= known
    assert not {name.value for name in VLLMS_OWN} & known


def test_the_schema_is_one_that_was_published() -> None:
    assert SCHEMA_URL in {schema.value for schema in Schemas}


@pytest.mark.parametrize(
    ("opt_in", "expected"),
    [
        ("", RELEASED),
        ("http", RELEASED),
        ("gen_ai_latest_experimental", RENAMED),
        ("http/dup, gen_ai_latest_experimental", RENAMED),
    ],
)
def test_renamed_metrics_are_opted_into(opt_in: str, expected: object) -> None:
    assert metric_names({OPT_IN: opt_in}) == expected
    assert metric_names({}) == RELEASED


def test_both_sets_of_names_are_as_the_conventions_have_them() -> None:
    assert RELEASED.client_duration == "gen_ai.client.operation.duration"
    assert RENAMED.client_duration == "gen_ai.client.inference.duration"
    assert RENAMED.client_input_tokens == "gen_ai.client.inference.usage.input_tokens"
    assert RELEASED.server_time_to_first_token == RENAMED.server_time_to_first_token


def test_deprecated_names_are_read_and_never_written() -> None:
    assert current("gen_ai.usage.prompt_tokens") == "gen_ai.usage.input_tokens"
    assert current("gen_ai.usage.completion_tokens") == "gen_ai.usage.output_tokens"
    assert current("something.else") == "something.else"
    assert not DEPRECATED.keys() & {name.value for name in Name}


def test_content_is_off_unless_it_is_asked_for() -> None:
    assert not captures_content({})
    assert not captures_content({CAPTURE_CONTENT: "1"})
    assert captures_content({CAPTURE_CONTENT: "True"})
    assert is_content("gen_ai.prompt.0.content")
    assert not any(is_content(name) for name in Name)
    assert all(is_content(name) for name in CONTENT)


def test_what_the_doors_need_of_traces_imports_no_opentelemetry() -> None:
    modules = ", ".join(f"ufwatch.trace.{name}" for name in LIGHT)
    code = (
        f"import sys, {modules}; print(*[m for m in ('grpc', 'opentelemetry', 'google.protobuf') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == []
