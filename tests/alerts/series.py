"""Pages over time as promtool's input series: one list of samples per series, written in its run notation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Sample = float | str | None
"""A number, ``"NaN"``, ``"stale"`` for a series that left the page, or None for no sample."""
Page = dict[str, list[Sample]]

HOST = "host:9817"
AGENT = f'job="ufwatch",instance="{HOST}"'
TARGET = f'{AGENT},target="chat",model_name="m"'
ENGINE = f'{TARGET},engine="0"'
CARD = f'{AGENT},gpu="0",uuid="GPU-1",mig=""'
UP = f"up{{{AGENT}}}"


def series(name: str, labels: str = ENGINE, **more: str) -> str:
    """The name and labels of one of our series."""
    extra = "".join(f',{key}="{value}"' for key, value in more.items())
    return f"ufwatch_{name}{{{labels}{extra}}}"


def exact(value: float) -> float:
    """The nearest multiple of 1/1024: sums of such are exact, so no rounding makes a counter fall."""
    return round(value * 1024) / 1024


def counter(samples: int, step: float, per_second: float | Callable[[float], float]) -> list[Sample]:
    """A counter from 0; ``per_second`` may depend on the time in seconds."""
    found: list[Sample] = [0.0]
    total = 0.0
    for n in range(1, samples):
        rate = per_second(n * step) if callable(per_second) else per_second
        total += exact(rate * step)
        found.append(total)
    return found


def gauge(samples: int, value: float) -> list[Sample]:
    return [value] * samples


def missed(page: Mapping[str, Iterable[Sample]], at: int) -> Page:
    """The page with one failed scrape: every series is marked stale, and ``up`` is 0."""
    return {
        name: [(0.0 if name == UP else "stale") if n == at else value for n, value in enumerate(values)]
        for name, values in page.items()
    }


def restarted(page: Mapping[str, Iterable[Sample]], at: int) -> Page:
    """The page of an agent that starts again at ``at``, two scrapes late: its counters begin at 0 once more."""
    found: Page = {}
    for name, values in page.items():
        kept = list(values)
        late = ["stale", "stale"] if name != UP else [0.0, 0.0]
        again = kept[: len(kept) - at - 2] if "_total{" in name else kept[at + 2 :]
        found[name] = [*kept[:at], *late, *again]
    return found


def not_numbers(page: Mapping[str, Iterable[Sample]]) -> Page:
    """The page with NaN for every value but ``up``."""
    return {name: list(values) if name == UP else ["NaN" for _ in values] for name, values in page.items()}


def idle(page: Mapping[str, Iterable[Sample]]) -> Page:
    """The page of nothing happening: counters stand, gauges are 0 but for ``up`` and what is configured."""
    kept = (UP, "kv_blocks", "objective", "target_gpu_info", "start_time", "baseline")
    found: Page = {}
    for name, values in page.items():
        size = len(list(values))
        if any(part in name for part in kept):
            found[name] = list(values)
        else:
            found[name] = gauge(size, 0.0)
    return found


def written(page: Mapping[str, list[Sample]]) -> list[dict[str, Any]]:
    """``input_series`` of a promtool test."""
    return [{"series": name, "values": " ".join(_runs(values))} for name, values in page.items()]


def _runs(values: list[Sample]) -> Iterable[str]:
    at = 0
    while at < len(values):
        first = values[at]
        if first is None or isinstance(first, str):
            yield "_" if first is None else first
            at += 1
            continue
        end, step = at + 1, 0.0
        while end < len(values):
            before, value = values[end - 1], values[end]
            if not isinstance(value, float) or not isinstance(before, float):
                break
            if end == at + 1:
                step = value - before
            elif value - before != step:
                break
            end += 1
        sign = "-" if step < 0 else "+"
        yield f"{first:.17g}" if end == at + 1 else f"{first:.17g}{sign}{abs(step):.17g}x{end - at - 1}"
        at = end
