"""One request to be traced, and what goes over the wire for it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

from ufwatch.address import http_url
from ufwatch.config import HttpAccess
from ufwatch.trace.conventions import Name

_RUN_CHARACTERS = 16
"""So much of a prompt in an error is the prompt, not a word that both use."""
_PATHS = {"chat": "/chat/completions", "text_completion": "/completions"}


class Operation(StrEnum):
    """As the GenAI conventions name it."""

    CHAT = "chat"
    COMPLETION = "text_completion"


class Ids(NamedTuple):
    """What one request is known by: 32 and 16 hex digits, and the ``X-Request-Id``."""

    trace_id: str
    span_id: str
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """A streaming request. ``url`` is the base address of a server, with or without ``/v1`` or ``/metrics``, or the
    whole address of the operation. Raises ValueError, without credentials in it, where it is none.

    ``messages`` wins over ``prompt`` for chat. ``extra`` is added to the body and wins over all but ``stream``.
    """

    url: str
    model: str
    """Empty: not named, which vLLM takes for the model it serves."""
    prompt: str = field(default="Say hello.", repr=False)
    messages: Sequence[Mapping[str, object]] | None = field(default=None, repr=False)
    operation: Operation = Operation.CHAT
    max_tokens: int | None = 64
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    choices: int = 1
    include_usage: bool = True
    """``stream_options.include_usage``: without it there is no token count and no split in the body."""
    continuous_usage: bool = False
    """``stream_options.continuous_usage_stats`` (vLLM): tokens of every chunk, at the price of larger ones."""
    extra: Mapping[str, object] = field(default_factory=dict, repr=False)
    access: HttpAccess = field(default_factory=HttpAccess)
    sampled: bool = True
    """Whether the server is to send its span."""
    fresh_connection: bool = False
    """Over a connection of its own, so that every phase of connecting is measured."""
    deadline_seconds: float = 120.0
    first_token_seconds: float | None = None
    """Counted, as the deadline is, from the moment at which the request is wanted."""
    idle_seconds: float | None = None
    """The longest without a byte once the request is on its way."""
    body_cap_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        http_url(self.url)
        if self.choices < 1:
            raise ValueError("choices is not 1 or more")
        if self.deadline_seconds <= 0:
            raise ValueError("deadline_seconds is not over 0")

    @property
    def endpoint(self) -> str:
        """The address that is asked."""
        parts = urlsplit(http_url(self.url))
        tail = _PATHS[self.operation]
        path = parts.path.rstrip("/")
        for known in (*_PATHS.values(), "/metrics"):
            path = path.removesuffix(known)
        path = path if path.endswith("/v1") else f"{path}/v1"
        return urlunsplit(parts._replace(path=f"{path}{tail}"))

    @property
    def base_url(self) -> str:
        """The address that ``/v1``, ``/metrics`` and ``/health`` stand below."""
        return self.endpoint.removesuffix(_PATHS[self.operation]).removesuffix("/v1")

    @property
    def health_url(self) -> str:
        """Where the server is asked for nothing but an answer."""
        return f"{self.base_url}/health"

    @property
    def attributes(self) -> dict[str, str | int | float | bool]:
        """Of the GenAI conventions, for the span; never the prompt."""
        maybe = {
            Name.REQUEST_MAX_TOKENS: self.max_tokens,
            Name.REQUEST_TEMPERATURE: self.temperature,
            Name.REQUEST_TOP_P: self.top_p,
            Name.REQUEST_SEED: self.seed,
            "gen_ai.request.choice.count": self.choices if self.choices > 1 else None,
        }
        return {str(name): value for name, value in maybe.items() if value is not None}

    def body(self) -> bytes:
        """The JSON of the request."""
        fields: dict[str, object] = {"model": self.model} if self.model else {}
        if self.operation is Operation.CHAT:
            fields["messages"] = (
                [{"role": "user", "content": self.prompt}] if self.messages is None else list(self.messages)
            )
        else:
            fields["prompt"] = self.prompt
        optional = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "n": self.choices if self.choices > 1 else None,
        }
        fields |= {name: value for name, value in optional.items() if value is not None}
        if self.include_usage:
            fields["stream_options"] = {
                "include_usage": True,
                **({"continuous_usage_stats": True} if self.continuous_usage else {}),
            }
        return json.dumps({**fields, **self.extra, "stream": True}).encode()

    def headers(self, ids: Ids) -> dict[str, str]:
        """Without credentials. With the flag 00 of ``traceparent`` vLLM makes no span."""
        return {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            # A compressed stream comes in blocks, and its first token when the first block is full.
            "Accept-Encoding": "identity",
            "traceparent": f"00-{ids.trace_id}-{ids.span_id}-{'01' if self.sampled else '00'}",
            "X-Request-Id": ids.request_id,
        }

    def without_words(self, text: str) -> str:
        """``text`` without the prompt, which servers like to repeat in their errors."""
        for words in self._words():
            for spelling in (words, json.dumps(words)[1:-1], " ".join(words.split())):
                text = text.replace(spelling, "…")
        return text

    def without_runs(self, text: str) -> str:
        """``text``, a short one, without longer pieces of the prompt, of which servers repeat only some."""
        for words in (" ".join(words.split()) for words in self._words()):
            kept, at = "", 0
            while at < len(text):
                end = at + _RUN_CHARACTERS
                if end <= len(text) and text[at:end] in words:
                    while end < len(text) and text[at : end + 1] in words:
                        end += 1
                    kept, at = f"{kept}…", end
                else:
                    kept, at = kept + text[at], at + 1
            text = kept
        return text

    def _words(self) -> list[str]:
        told = [self.prompt, *(message.get("content") for message in self.messages or ())]
        return [words for words in told if isinstance(words, str) and words.strip()]
