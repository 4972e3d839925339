"""Streams of chunks to test with: recorded cases, and the words of a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "cases"
DONE = b"data: [DONE]\n\n"


def event(body: object) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def chunk(delta: object, *, finish: str | None = None, index: int = 0, **more: object) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return event({"id": "c1", "model": "m", "choices": [choice], **more})


def usage(completion: int, prompt: int = 7, **more: object) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"id": "c1", "model": "m", "choices": [], "usage": counts, **more})


ROLE = chunk({"role": "assistant", "content": ""})


def words(*texts: str) -> bytes:
    return b"".join(chunk({"content": text}) for text in texts)


def case(folder: str, name: str) -> tuple[list[tuple[float, bytes]], str]:
    """The reads of a case and how it was closed (empty: not said)."""
    lines = [json.loads(line) for line in (CASES / folder / f"{name}.jsonl").read_text().splitlines()]
    reads = [(line["t"], line["data"].encode()) for line in lines if "data" in line]
    return reads, next((line["close"] for line in lines if "close" in line), "")


def expected(folder: str) -> Any:
    return json.loads((CASES / folder / "expected.json").read_text())
