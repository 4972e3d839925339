"""Which form of the page a reader gets, from what it says it accepts. Pure."""

from __future__ import annotations

from ufwatch.render.exposition import Format

CONTENT_TYPES = {
    Format.TEXT: "text/plain; version=0.0.4; charset=utf-8",
    # escaping: our names hold nothing to escape, and Prometheus 3 takes a page without the parameter as such.
    Format.OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
"""Prometheus 3 refuses a page without a type it knows (prometheus issue 15136)."""

_OPENMETRICS_VERSIONS = ("1.0.0", "0.0.1", None)


def negotiate(accept: str | None, accept_encoding: str | None) -> tuple[Format, bool]:
    """The form and whether to compress. The higher weight wins, text at a tie; what is unknown gets text 0.0.4.

    Weights (``q``) are 0–1; one of 0 refuses.
    """
    text, openmetrics = 0.0, 0.0
    for kind, parameters, weight in _parts(accept):
        if kind == "application/openmetrics-text" and parameters.get("version") in _OPENMETRICS_VERSIONS:
            openmetrics = max(openmetrics, weight)
        elif kind in ("text/plain", "text/*", "*/*") and parameters.get("version", "0.0.4") == "0.0.4":
            text = max(text, weight)
    form = Format.OPENMETRICS if openmetrics > text else Format.TEXT
    gzip = any(kind in ("gzip", "*") and weight > 0 for kind, _, weight in _parts(accept_encoding))
    refused = any(kind == "gzip" and weight <= 0 for kind, _, weight in _parts(accept_encoding))
    return form, gzip and not refused


def _parts(header: str | None) -> list[tuple[str, dict[str, str], float]]:
    parts = []
    for item in (header or "").split(","):
        kind, *fields = (field.strip() for field in item.split(";"))
        if not kind:
            continue
        parameters: dict[str, str] = {}
        weight = 1.0
        for field in fields:
            key, _, value = field.partition("=")
            if key.strip().lower() == "q":
                weight = _weight(value)
            else:
                parameters[key.strip().lower()] = value.strip().strip('"')
        parts.append((kind.lower(), parameters, weight))
    return parts


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0.0 <= weight <= 1.0 else 0.0
