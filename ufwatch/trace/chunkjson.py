"""One OpenAI chunk's JSON, as it is found in the wild, read into values. Pure; nothing here raises."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ufwatch.trace.model import Usage

DETAIL_CHARACTERS = 200
_MOST_TOKENS = 10**12
"""More are none: JSON knows integers that no float and no 64 bits hold."""


class Content(NamedTuple):
    """What a chunk brings of one choice."""

    characters: int
    visible: bool
    """Not reasoning alone."""


def error_text(body: Mapping[str, object]) -> str | None:
    """What an error object says, on one line, in the shapes that servers use; None where there is none. Whole: cut
    here, what is left of a prompt or a key in it would no longer be known for one."""
    error = body.get("error")
    source = error if isinstance(error, Mapping) else body
    for key in ("message", "detail", "error"):
        found = source.get(key)
        if found and isinstance(found, str):
            return " ".join(found.split())
    return None


def json_object(text: str) -> Mapping[str, object] | None:
    """The JSON object that ``text`` is, if it is one."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def error_of(body: Mapping[str, object], kind: str) -> str | None:
    """The message of an event that tells of an error; ``kind`` is its ``event`` field. None for every other event."""
    if body.get("error") or body.get("object") == "error" or (kind == "error" and "choices" not in body):
        return error_text(body) or "an error without a message"
    return None


def content_of(choice: Mapping[str, object], delta: Mapping[str, object]) -> Content | None:
    """None where it brings nothing but a role, a finish reason or empty texts."""
    shown = _length(choice.get("text")) + _length(delta.get("content")) + _length(delta.get("refusal"))
    call = delta.get("function_call")
    for tool in [*as_list(delta.get("tool_calls")), {"function": call}]:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if isinstance(function, Mapping):
            shown += _length(function.get("name")) + _length(function.get("arguments"))
    # Some servers send the same reasoning under both names.
    reasoning = max(_length(delta.get("reasoning")), _length(delta.get("reasoning_content")))
    return Content(shown + reasoning, shown > 0) if shown or reasoning else None


def _length(value: object) -> int:
    """Characters of a text, or of a list of parts that have one."""
    if isinstance(value, str):
        return len(value)
    return sum(len(as_text(part.get("text"))) for part in as_list(value) if isinstance(part, Mapping))


def own_count(choice: Mapping[str, object]) -> int | None:
    """Tokens of a chunk by what lies in it: ids, or log probabilities, one a token."""
    ids = choice.get("token_ids")
    if isinstance(ids, list):
        return len(ids)
    probabilities = choice.get("logprobs")
    if isinstance(probabilities, Mapping):
        for key in ("content", "tokens"):
            found = probabilities.get(key)
            if isinstance(found, list) and found:
                return len(found)
    return None


def usage_of(body: Mapping[str, object]) -> Usage:
    """A ``usage`` object; what is no count is None."""
    details = body.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(_count(body.get("prompt_tokens")), _count(body.get("completion_tokens")), _count(cached))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None


def finite(value: object) -> float | None:
    """The value as a number; None for anything else, and for NaN and the infinities."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_text(value: object) -> str:
    """The value, if it is a text; otherwise an empty one."""
    return value if isinstance(value, str) else ""


def as_list(value: object) -> Sequence[object]:
    """The value, if it is a list; otherwise an empty one."""
    return value if isinstance(value, list) else ()
