"""What the environment sets. A value that makes no sense is said in the log, and the default holds."""

from __future__ import annotations

import logging
import os
import re
from typing import NamedTuple

LOG = logging.getLogger("ufwatch")

WITH_STATS = "UFWATCH_WITH_STATS"
MOST_THRESHOLDS = 8
"""Each threshold is a series for each engine."""


class Settings(NamedTuple):
    """All in seconds."""

    ttft: tuple[float, ...]
    jitter: tuple[float, ...]
    slice: float


def read() -> Settings:
    """From ``UFWATCH_TTFT_SECONDS``, ``UFWATCH_JITTER_SECONDS`` (lists) and ``UFWATCH_SLICE_SECONDS``."""
    return Settings(
        ttft=_numbers("UFWATCH_TTFT_SECONDS", (0.8, 2.3)),
        jitter=_numbers("UFWATCH_JITTER_SECONDS", (0.08,)),
        slice=_numbers("UFWATCH_SLICE_SECONDS", (10.0,))[0],
    )


def with_stats() -> bool:
    """Whether the user asks for statistics even under ``--disable-log-stats``."""
    return os.environ.get(WITH_STATS, "").strip().lower() in ("1", "true", "yes", "on")


def _numbers(name: str, default: tuple[float, ...]) -> tuple[float, ...]:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        numbers = tuple(sorted({float(word) for word in text.split(",")}))
    except ValueError:
        numbers = ()
    if 0 < len(numbers) <= MOST_THRESHOLDS and all(_readable(number) for number in numbers):
        return numbers
    LOG.warning(
        "ufwatch: %s is %r, not up to %d positive seconds of six digits; using %s", name, text, MOST_THRESHOLDS, default
    )
    return default


def _readable(seconds: float) -> bool:
    """Whether the agent's reader takes it as a label, and as no other one."""
    text = f"{seconds:g}"
    return seconds > 0.0 and float(text) == seconds and re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) is not None
