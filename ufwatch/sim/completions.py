"""What the two completion endpoints are asked and answer, as JSON and as server-sent events. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_DEFAULT_MAX_TOKENS = {False: 16, True: 64}


class InvalidRequestError(ValueError):
    """The request is understood as HTTP and refused as a completion; ``status`` says how."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A completion that was asked for."""

    chat: bool
    words: list[str]
    """The prompt, one word a token."""
    max_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """Usage in every event and not at the end alone."""


def read_ask(body: bytes, *, chat: bool, model: str) -> Ask:
    """Reads the body of a request. InvalidRequestError when it is none, or is for another model."""
    try:
        data = json.loads(body)
    except ValueError as error:
        raise InvalidRequestError("the body is not JSON") from error
    if not isinstance(data, dict):
        raise InvalidRequestError("the body is not a JSON object")
    if data.get("model") not in (None, "", model):
        raise InvalidRequestError(f"The model `{data['model']}` does not exist.", 404)
    limit = data.get("max_completion_tokens") or data.get("max_tokens") or _DEFAULT_MAX_TOKENS[chat]
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidRequestError("max_tokens must be at least 1")
    options = data.get("stream_options")
    return Ask(
        chat=chat,
        words=_chat_words(data.get("messages")) if chat else _prompt_words(data.get("prompt")),
        max_tokens=limit,
        stream=data.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
        continuous_usage=isinstance(options, dict) and options.get("continuous_usage_stats") is True,
    )


def _prompt_words(prompt: Any) -> list[str]:
    if isinstance(prompt, list) and prompt:
        # A list of token ids, or of one text.
        return prompt[0].split() if isinstance(prompt[0], str) else [str(token) for token in prompt]
    if isinstance(prompt, str) and prompt.split():
        return prompt.split()
    raise InvalidRequestError("a prompt is required")


def _chat_words(messages: Any) -> list[str]:
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise InvalidRequestError("messages are required")
    words = []
    for message in messages:
        words += [f"<{message.get('role')}>", *str(message.get("content") or "").split()]
    return words


class Reply:
    """Writes the answer to one request; ``text`` of tokens is their numbers, so that a client can check the order."""

    def __init__(self, ask: Ask, *, number: int, model: str, created: int) -> None:
        self._ask = ask
        kind = ("chat.completion.chunk" if ask.stream else "chat.completion") if ask.chat else "text_completion"
        prefix = "chatcmpl" if ask.chat else "cmpl"
        self._base = {"id": f"{prefix}-sim-{number}", "object": kind, "created": created, "model": model}
        self._sent = 0

    def tokens(self, count: int, finish_reason: str | None) -> list[bytes]:
        """The events for the next ``count`` tokens; in a chat the role comes before the first."""
        text = "".join(f" w{number}" for number in range(self._sent, self._sent + count))
        events = []
        if self._ask.chat and not self._sent:
            events.append(self._event([self._choice({"role": "assistant", "content": ""}, None)], self._running()))
        self._sent += count
        content = {"content": text} if self._ask.chat else text
        events.append(self._event([self._choice(content, finish_reason)], self._running()))
        return events

    def end(self) -> list[bytes]:
        """The events after the last token: usage, if asked for, and the end marker."""
        usage = [self._event([], self._usage())] if self._ask.include_usage else []
        return [*usage, b"data: [DONE]\n\n"]

    def whole(self, finish_reason: str) -> dict[str, Any]:
        """The answer to a request that does not stream."""
        self._sent = self._ask.max_tokens
        text = "".join(f" w{number}" for number in range(self._sent))
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
        if self._ask.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return {**self._base, "choices": [choice], "usage": self._usage()}

    def _choice(self, content: Any, finish_reason: str | None) -> dict[str, Any]:
        key = "delta" if self._ask.chat else "text"
        return {"index": 0, key: content, "logprobs": None, "finish_reason": finish_reason}

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        value = {**self._base, "choices": choices}
        if usage is not None:
            value["usage"] = usage
        return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()

    def _running(self) -> dict[str, int] | None:
        return self._usage() if self._ask.include_usage and self._ask.continuous_usage else None

    def _usage(self) -> dict[str, int]:
        prompt = len(self._ask.words)
        return {"prompt_tokens": prompt, "total_tokens": prompt + self._sent, "completion_tokens": self._sent}
