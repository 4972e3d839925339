"""What our spans say of us, and which of them are sampled, by OpenTelemetry's variables. Pure but for its library."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased

from ufwatch import __version__
from ufwatch.errors import ConfigError
from ufwatch.trace.conventions import SCHEMA_URL

_SAMPLER, _ARGUMENT = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
_ATTRIBUTES = "OTEL_RESOURCE_ATTRIBUTES"
_KINDS = ("always_on", "always_off", "traceidratio")


def resource_from(environ: Mapping[str, str]) -> Resource:
    """``service.name`` is ``ufwatch`` unless ``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES`` names another.

    Raises ConfigError where the attributes are not ``key=value,key=value``.
    """
    attributes = {"service.name": "ufwatch", "service.version": __version__}
    for entry in filter(None, (part.strip() for part in environ.get(_ATTRIBUTES, "").split(","))):
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise ConfigError(_ATTRIBUTES, [f'"{entry[:40]}" is not key=value; separate entries by commas'])
        attributes[unquote(name.strip())] = unquote(value.strip())
    if environ.get("OTEL_SERVICE_NAME", "").strip():
        attributes["service.name"] = environ["OTEL_SERVICE_NAME"].strip()
    return Resource(attributes, SCHEMA_URL)


def sampler_from(environ: Mapping[str, str]) -> Sampler:
    """The sampler; ``parentbased_always_on`` where none is named. Raises ConfigError for an unknown one or a ratio
    that is none."""
    asked = environ.get(_SAMPLER, "").strip().lower() or "parentbased_always_on"
    kind = asked.removeprefix("parentbased_")
    if kind not in _KINDS:
        choices = ", ".join((*_KINDS, *(f"parentbased_{name}" for name in _KINDS)))
        raise ConfigError(_SAMPLER, [f'"{asked[:40]}" is no sampler that is known here; write one of {choices}'])
    if kind == "traceidratio":
        sampler: Sampler = TraceIdRatioBased(_ratio(environ.get(_ARGUMENT, "").strip()))
    else:
        sampler = ALWAYS_ON if kind == "always_on" else ALWAYS_OFF
    return ParentBased(sampler) if asked.startswith("parentbased_") else sampler


def _ratio(text: str) -> float:
    try:
        ratio = float(text or "1")
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise ConfigError(_ARGUMENT, [f'"{text[:20]}" is no share from 0 to 1'])
    return ratio
