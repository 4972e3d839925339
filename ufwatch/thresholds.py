"""Where a value becomes an alert. The rules compare with these, and the dashboards draw their bands at them.

Floor 1: pure data. Ratios are 0–1, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """One number for each alert that compares with one; ``ufwatch alerts --set NAME=VALUE`` overrides it by name."""

    jitter: float = 0.060
    """Standard deviation of token intervals, seconds."""
    miss: float = 0.15
    """Page-table misses: a share of look-ups by block, and points above the target's own baseline by token."""
    turnover: float = 1.0
    """Evictions per minute over the number of KV blocks."""
    kv_usage: float = 0.92
    pinned_success: float = 0.99
    compile: float = 120.0
    """Seconds of compile or capture within 30 minutes on an engine that is long past its start."""
    sm_utilization: float = 0.10
    prefill_decode: float = 3.0
    """Prefill over decode by request time."""
    burn_fast: float = 14.4
    """Burn over 5 m and 1 h; over 30 m and 6 h it is 6/14.4 of that."""
    burn_slow: float = 3.0
    """Burn over 2 h and 1 d; over 6 h and 3 d it is a third."""
    stale: float = 60.0
    """Seconds without proof of life, or three intervals if that is longer."""
    breaker_trips: float = 3.0
    """Within 10 minutes."""
    ageing: float = 0.05
    """Drift of a card's step time against its own first weeks."""
