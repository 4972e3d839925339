"""Every name that a span or a trace metric of ours carries, in one place, with the version of its conventions.

Pure. The GenAI names are still in development: they left OpenTelemetry's main conventions for
``open-telemetry/semantic-conventions-genai``, whose main branch already renames the client's metrics. What is released
is the default; ``OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental`` asks for the renamed ones. The names are
written out because the Python constants for them are deprecated as moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

SEMCONV_VERSION = "1.44.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{SEMCONV_VERSION}"

OPT_IN = "OTEL_SEMCONV_STABILITY_OPT_IN"
_GEN_AI_LATEST = "gen_ai_latest_experimental"
CAPTURE_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The conventions' own variable: without ``true`` in it no prompt and no answer leaves."""


class Name(StrEnum):
    """Attributes of spans. Durations are seconds."""

    OPERATION = "gen_ai.operation.name"
    PROVIDER = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    REQUEST_STREAM = "gen_ai.request.stream"
    REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
    REQUEST_TEMPERATURE = "gen_ai.request.temperature"
    REQUEST_TOP_P = "gen_ai.request.top_p"
    REQUEST_SEED = "gen_ai.request.seed"
    RESPONSE_ID = "gen_ai.response.id"
    RESPONSE_MODEL = "gen_ai.response.model"
    FINISH_REASONS = "gen_ai.response.finish_reasons"
    TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
    INPUT_TOKENS = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"

    HTTP_METHOD = "http.request.method"
    HTTP_STATUS = "http.response.status_code"
    URL_FULL = "url.full"
    SERVER_ADDRESS = "server.address"
    SERVER_PORT = "server.port"
    PEER_ADDRESS = "network.peer.address"
    TLS_PROTOCOL = "tls.protocol.name"
    TLS_VERSION = "tls.protocol.version"
    TLS_RESUMED = "tls.resumed"
    ERROR_TYPE = "error.type"
    EXCEPTION_MESSAGE = "exception.message"

    # vLLM's own, of its ``llm_request`` span.
    VLLM_REQUEST_ID = "gen_ai.request.id"
    VLLM_QUEUE = "gen_ai.latency.time_in_queue"
    VLLM_TTFT = "gen_ai.latency.time_to_first_token"
    VLLM_E2E = "gen_ai.latency.e2e"
    VLLM_PREFILL = "gen_ai.latency.time_in_model_prefill"
    VLLM_DECODE = "gen_ai.latency.time_in_model_decode"
    VLLM_INFERENCE = "gen_ai.latency.time_in_model_inference"

    # Ours, where no convention exists.
    REQUEST_ID = "ufwatch.request.id"
    REUSED = "ufwatch.connection.reused"
    PROXIED = "ufwatch.connection.proxied"
    HAPPY_EYEBALLS_DELAY = "ufwatch.connection.happy_eyeballs_delay"
    RETRIED = "ufwatch.connection.retried"
    REFUSED = "ufwatch.refused"
    TTFT = "ufwatch.ttft"
    TIME_TO_FIRST_VISIBLE = "ufwatch.time_to_first_visible"
    TPOT = "ufwatch.tpot"
    MIN_RTT = "ufwatch.network.min_rtt"
    LOOP_LAG = "ufwatch.loop_lag"
    CHUNKS = "ufwatch.chunks"
    FAILED = "ufwatch.failed"
    FAILED_PHASE = "ufwatch.failed_phase"
    SYNTHESIZED = "ufwatch.synthesized"
    INCONSISTENT = "ufwatch.inconsistent"
    DURATION = "ufwatch.duration"
    """The duration as the server told it, where it does not fit between the moments that are known."""
    SPLIT_SOURCE = "ufwatch.split.source"
    SPLIT_EXACT = "ufwatch.split.exact"
    SPLIT_WHY = "ufwatch.split.why"
    SERVER_QUEUE = "ufwatch.server.queue"
    SERVER_PREFILL = "ufwatch.server.prefill"
    SERVER_DECODE = "ufwatch.server.decode"
    SERVER_TTFT = "ufwatch.server.time_to_first_token"
    SERVER_E2E = "ufwatch.server.e2e"
    PRE_ENGINE_WAIT = "ufwatch.server.pre_engine_wait"


class EventName(StrEnum):
    """Events of spans; a token is never a span."""

    FIRST_TOKEN = "ufwatch.first_token"
    ROLE_CHUNK = "ufwatch.role_chunk"
    LOST_ATTEMPT = "ufwatch.connect_attempt_lost"


LLM_REQUEST = "llm_request"
"""What vLLM calls its one span of a request."""
NATIVE_CHILD = "vllm_"
"""What children that vLLM itself sends begin with (vllm#44402); where there are such, none are synthesised."""

DEPRECATED: Mapping[str, Name] = {
    "gen_ai.usage.prompt_tokens": Name.INPUT_TOKENS,
    "gen_ai.usage.completion_tokens": Name.OUTPUT_TOKENS,
    "gen_ai.system": Name.PROVIDER,
    "gen_ai.openai.request.seed": Name.REQUEST_SEED,
}
"""Old names that servers still send (vLLM does), understood when reading, never written."""

CONTENT = (
    *("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.tool.definitions"),
    *("gen_ai.prompt", "gen_ai.completion", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
    *("gen_ai.retrieval.documents", "gen_ai.retrieval.query.text", "input.value", "output.value", "llm.prompts"),
)
"""What may hold a prompt or an answer, also as the beginning of a longer name (``gen_ai.prompt.0.content``)."""


class MetricNames(NamedTuple):
    """Metrics of the conventions, whose names are in flux."""

    client_duration: str
    client_time_to_first_chunk: str
    client_time_per_output_chunk: str
    client_input_tokens: str
    client_output_tokens: str
    server_duration: str = "gen_ai.server.request.duration"
    server_time_to_first_token: str = "gen_ai.server.time_to_first_token"
    server_time_per_output_token: str = "gen_ai.server.time_per_output_token"


RELEASED = MetricNames(
    client_duration="gen_ai.client.operation.duration",
    client_time_to_first_chunk="gen_ai.client.operation.time_to_first_chunk",
    client_time_per_output_chunk="gen_ai.client.operation.time_per_output_chunk",
    # One metric, told apart by gen_ai.token.type.
    client_input_tokens="gen_ai.client.token.usage",
    client_output_tokens="gen_ai.client.token.usage",
)
RENAMED = MetricNames(
    client_duration="gen_ai.client.inference.duration",
    client_time_to_first_chunk="gen_ai.client.inference.time_to_first_chunk",
    client_time_per_output_chunk="gen_ai.client.inference.time_per_output_chunk",
    client_input_tokens="gen_ai.client.inference.usage.input_tokens",
    client_output_tokens="gen_ai.client.inference.usage.output_tokens",
)


def metric_names(environ: Mapping[str, str]) -> MetricNames:
    """The released names, or the renamed ones where the environment opts in."""
    asked = {word.strip() for word in environ.get(OPT_IN, "").split(",")}
    return RENAMED if _GEN_AI_LATEST in asked else RELEASED


def captures_content(environ: Mapping[str, str]) -> bool:
    """Whether prompts and answers may be exported; only by an explicit ``true``."""
    return environ.get(CAPTURE_CONTENT, "").strip().lower() == "true"


def is_content(name: str) -> bool:
    """Whether an attribute of this name may hold a prompt or an answer."""
    return name.startswith(CONTENT)


def current(name: str) -> str:
    """The name of today for one that may be deprecated."""
    return DEPRECATED.get(name, name)
