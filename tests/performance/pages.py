"""Pages as a server would go on to write them, made from a recorded one.

``busy``: every vLLM counter and histogram moves from page to page and the gauges wander. ``idle``: two ``process_``
lines move. Names of real models are longer than the recordings' ``tiny``, and every line carries one: it is made 33
letters long.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

CAPTURE = Path(__file__).parents[1] / "captures" / "vllm" / "metrics-0.32.0-load.prom"
MODEL = "meta-llama/Llama-3.3-70B-Instruct"

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)")
_SERIES = re.compile(r',?le="[^"]*"')


def recorded(path: Path = CAPTURE, model: str = MODEL) -> str:
    """Return a recorded page with the model's name replaced."""
    return path.read_text(encoding="utf-8").replace('model_name="tiny"', f'model_name="{model}"')


def sequence(text: str, pages: int, *, busy: bool, seed: int = 1) -> list[bytes]:
    """Return successive pages of the same shape; counters only grow and buckets stay cumulative."""
    rnd = random.Random(seed)
    lines: list[str | _Moving] = []
    gained: dict[str, float] = {}
    for line in text.split("\n"):
        sample = _SAMPLE.fullmatch(line)
        step = _step(sample[1], busy) if sample is not None else None
        if sample is None or step is None:
            lines.append(line)
        else:
            labels = sample[2] or ""
            series = sample[1] + _SERIES.sub("", labels) if sample[1].endswith("_bucket") else ""
            lines.append(_Moving(f"{sample[1]}{labels} ", float(sample[3]), step, series))
    made = []
    for _ in range(pages):
        gained.clear()
        made.append("\n".join([line if isinstance(line, str) else line.moved(rnd, gained) for line in lines]).encode())
    return made


class _Moving:
    """A sample whose value changes from page to page."""

    def __init__(self, prefix: str, value: float, step: Callable[[random.Random, float], float], series: str) -> None:
        self.prefix, self.value, self.step, self.series = prefix, value, step, series

    def moved(self, rnd: random.Random, gained: dict[str, float]) -> str:
        before = self.value
        self.value = self.step(rnd, before)
        if self.series:  # what a lower bucket gained, this one gained too
            gained[self.series] = gained.get(self.series, 0.0) + self.value - before
            self.value = before + gained[self.series]
        return f"{self.prefix}{self.value!r}"


def _step(name: str, busy: bool) -> Callable[[random.Random, float], float] | None:
    """Return how a sample's value moves, None when it does not."""
    if name in ("process_cpu_seconds_total", "process_resident_memory_bytes"):
        return lambda rnd, value: value + round(0.01 + rnd.random(), 2)
    if not busy or not name.startswith("vllm:"):
        return None
    if name.endswith("_bucket"):
        return lambda rnd, value: value + rnd.choice((0.0, 0.0, 1.0, 3.0))
    if name.endswith("_sum"):
        return lambda rnd, value: value + 3.0 * rnd.random()
    if name.endswith(("_count", "_total")):
        return lambda rnd, value: value + rnd.randint(1, 40)
    if name == "vllm:kv_cache_usage_perc":
        return lambda rnd, _: rnd.random()
    if name.startswith("vllm:num_requests"):
        return lambda rnd, _: float(rnd.randint(0, 200))
    return None


def share_of_lines_moved(pages: Sequence[bytes]) -> float:
    """Return how many lines differ from one page to the next, on average, as a ratio of all lines."""
    pairs = [(a.split(b"\n"), b.split(b"\n")) for a, b in pairwise(pages)]
    return sum(a != b for old, new in pairs for a, b in zip(old, new, strict=True)) / sum(len(old) for old, _ in pairs)
