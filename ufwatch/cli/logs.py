"""How our own log is written: one line per event, logfmt or JSON, and never a secret.

A caller logs a message and fields: ``log.info("target is down", extra={"fields": {"target": name}})``.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

_SECRET_KEYS = frozenset({"api_key", "authorization", "cookie", "password", "secret"})
_HIDDEN = "[redacted]"
_SECRETS = (
    (re.compile(r"(//)[^/\s\"']*@"), rf"\1{_HIDDEN}@"),
    (re.compile(r"\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1\2{_HIDDEN}"),
    (re.compile(r"([?&](?:api_?key|token|password|secret)=)[^&\s\"']+", re.IGNORECASE), rf"\1{_HIDDEN}"),
)
_NOT_A_KEY = re.compile(r"[^A-Za-z0-9_.-]")


def setup_logging(level: str, format: str, stream: TextIO = sys.stderr) -> None:
    """Sends the log of the whole process to ``stream``; calling it again replaces what was set up before.

    ``level`` and ``format`` are those of :class:`ufwatch.precedence.LogSettings`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if format == "json" else LogFmt())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class LogFmt(logging.Formatter):
    """``ts=… level=… msg=… key=value``, each value quoted where it must be; always a single line."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{_NOT_A_KEY.sub('_', key)}={_logfmt(value)}" for key, value in _fields(record).items())


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(record))


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Returns the event's fields in order, redacted; the ones every event has cannot be overwritten."""
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    found: dict[str, object] = {
        "ts": when.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "msg": _clean(record.getMessage()),
    }
    extra = getattr(record, "fields", None)
    for key, value in extra.items() if isinstance(extra, Mapping) else ():
        found.setdefault(str(key), _HIDDEN if str(key).lower() in _SECRET_KEYS else _plain(value))
    if record.exc_info:
        found.setdefault("traceback", _clean(logging.Formatter().formatException(record.exc_info)))
    if record.levelno <= logging.DEBUG or record.exc_info:
        found.setdefault("logger", record.name)
    return found


def _plain(value: object) -> object:
    """Returns a value that JSON has; what it does not have becomes text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return _clean(str(value))


def _clean(text: str) -> str:
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _logfmt(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if value and value.isprintable() and not any(mark in value for mark in ' ="\\'):
        return value
    # Escaping keeps a line break in a foreign text from faking a line of ours.
    return json.dumps(value, ensure_ascii=not value.isprintable())
