"""Plain values as block YAML that people can read and edit beside: long texts as literal blocks. Floor 2: pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

Value = str | int | bool | Mapping[str, "Value"] | Sequence["Value"]

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_:./-]*[A-Za-z0-9_]|[0-9]+(ms|[smhdw])", re.ASCII)
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def block_yaml(value: Value) -> str:
    """The document, ending in a line feed. Texts keep every character; keys must be plain words."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Value) -> list[str]:
    if isinstance(value, Mapping):
        return [line for key, inner in value.items() for line in _entry(f"{key}:", inner)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [line for inner in value for line in _item(inner)]
    return [_scalar(value)]


def _entry(key: str, value: Value) -> list[str]:
    if isinstance(value, str) and _is_block(value):
        return [f"{key} |-", *(f"  {line}" if line else "" for line in value.split("\n"))]
    if isinstance(value, str | int) or not value:
        return [f"{key} {_scalar(value)}"]
    return [key, *(f"  {line}" for line in _lines(value))]


def _item(value: Value) -> list[str]:
    first, *rest = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _is_block(text: str) -> bool:
    """Whether a literal block shows the text better than quotes, and can show it at all."""
    if not text.isascii() or ('"' not in text and "\n" not in text):
        return False
    return all(line.strip() == line and line for line in text.split("\n"))


def _scalar(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS and ": " not in value
        return value if plain and not value.endswith(":") else json.dumps(value, ensure_ascii=False)
    return "{}" if isinstance(value, Mapping) else "[]"
