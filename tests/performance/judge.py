"""Whether what an agent's page says can be true: for :mod:`tests.performance.endurance`."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.performance.faulty_fleet import Figures

CEILINGS: Mapping[str, tuple[str, ...]] = {
    "prefill_tokens_total": ("prefill_tokens_computed",),
    "decode_tokens_total": ("decode_tokens",),
    "prefill_seconds_total": ("prefill_seconds",),
    "decode_seconds_total": ("decode_seconds",),
    "page_table_lookups_total": ("prefill_tokens_computed", "prefill_tokens_cached"),
    "page_table_misses_total": ("prefill_tokens_computed",),
    "token_intervals_total": ("interval_count",),
    "token_interval_seconds_total": ("interval_sum",),
    "token_interval_squared_low_total": ("interval_square_sum",),
    "kv_evictions_total": ("recycles",),
    "preemptions_total": ("preemptions",),
}
"""Of each exported counter, the truths whose sum it must not be above."""

_SAMPLE = re.compile(r"ufwatch_(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class Judge:
    """What is wrong so far."""

    alone: Mapping[str, bool]
    invented: int = 0
    unanswered: int = 0
    """The agent's page could not be read, which ends the run."""
    checked: int = 0
    highest: dict[str, float] = field(default_factory=dict)
    """Each counter's value when it was last on the page."""
    totals: dict[str, float] = field(default_factory=dict)

    def page(self, text: str, truth: list[list[Figures]], attempts: float) -> None:
        """One page, read before the truth was asked for."""
        totals: dict[str, float] = defaultdict(float)
        for line in text.splitlines():
            sample = _SAMPLE.fullmatch(line)
            if sample is None:
                continue
            name, labels, value = sample[1], dict(_LABEL.findall(sample[2] or "")), float(sample[3])
            series = line.rpartition(" ")[0]
            overspent = name == "slo_error_budget_remaining_ratio"  # the one value that may be below 0
            self.hold((overspent or value >= 0.0) and math.isfinite(value), f"{line}")
            if name.endswith("_total"):
                before = self.highest.get(series, 0.0)
                self.hold(value >= before, f"{line} was {before}")
                self.highest[series] = value
                totals[name] += value
            if name in CEILINGS:
                figures = truth[int(labels["target"].removeprefix("sim-"))][int(labels["engine"])]
                ceiling = sum(figures[part] for part in CEILINGS[name])
                self.hold(value <= ceiling * (1 + 1e-9) + 1e-6, f"{line} is above {ceiling}", counts=True)
            if name == "pinned_alloc_attempts_total":
                self.hold(value <= attempts, f"{line} is above {attempts}", counts=True)
        self.totals = totals

    def rate(self, said: Mapping[str, Any], most: Figures, least: Figures) -> None:
        """One engine's window, and the truth of a slightly longer and a slightly shorter one."""
        if not self.alone[said["target"]]:
            return
        tokens, low, high = said["decode_tokens"], said["interval_square_sum_low"], said["interval_square_sum_high"]
        within = least["decode_tokens"] - 1e-6 <= tokens <= most["decode_tokens"] + 1e-6
        self.hold(within, f"{said} is not from {least} to {most}", counts=True)
        self.hold(low <= most["interval_square_sum"] * (1 + 1e-9) + 1e-9, f"{said} is above {most}", counts=True)
        self.hold(high >= least["interval_square_sum"] * (1 - 1e-9) - 1e-9, f"{said} is below {least}", counts=True)

    def hold(self, good: bool, text: str, *, counts: bool = False) -> None:
        self.checked += counts
        if not good:
            self.invented += 1
            if self.invented <= 20:
                print(f"INVENTED {text}", flush=True)
