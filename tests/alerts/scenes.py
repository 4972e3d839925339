"""What each of the twelve must fire on, and when; and what is near to it and must stay silent.

Every scene is a page over time at a scrape interval. From one that fires, the harness makes the same with one missed
scrape (fires at the same moment), idle, absent, restarted and not-a-number variants (silent).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.alerts import scenes_agent as agent
from tests.alerts import scenes_serving as serving
from tests.alerts.scenes_serving import engine_state
from tests.alerts.series import AGENT, CARD, Page, Sample, missed, restarted, series
from tests.alerts.stage import Scene, Stage

_MAKERS = (
    *(serving.jitter, serving.miss, serving.thrashing, serving.pinned, serving.compile, serving.stalled),
    *(serving.imbalance, agent.burn, agent.stale, agent.breaker, agent.ageing),
)


def scenes(step: float) -> Iterator[Scene]:
    """Every scene at one scrape interval in seconds."""
    for make in _MAKERS:
        yield from make(step)
    yield from _healthy(step)


def _healthy(step: float) -> Iterator[Scene]:
    """Everything is busy and well, and then something is changed."""
    s = Stage(step, 20)
    page = (
        s.page()
        | s.tokens(lambda _: 0.02)
        | s.burning("ttft", 0.95, 0.01)
        | s.burning("availability", 0.999, 0.0, 1.0)
        | engine_state(s, "serving", lambda _: True)
        | {
            series("page_table_lookups_total", unit="token", source="prefix_cache"): s.count(500),
            series("page_table_misses_total", unit="token", source="prefix_cache"): s.count(499),
            series("kv_evictions_total", source="recycles"): s.count(1500),
            series("kv_blocks", source="vllm"): s.level(28000.0),
            series("kv_cache_usage_ratio", source="vllm"): s.level(0.95),
            series("requests_waiting"): s.level(0.0),
            series("preemptions_total"): s.count(0.0),
            series("decode_tokens_total", source="prompt_tokens"): s.count(1000),
            series("prefill_seconds_total", source="request_seconds"): s.count(8.0),
            series("decode_seconds_total", source="request_seconds"): s.count(1.0),
            series("source_age_seconds", AGENT, source="vllm", target="chat"): s.level(2.0),
            series("gpu_ecc_errors_total", CARD, type="uncorrected"): s.count(0.0),
        }
    )
    yield Scene("busy and well", page, step)
    middle = s.samples // 2
    yield Scene("busy and well, the agent restarts", restarted(page, middle), step)
    yield Scene("busy and well, a scrape is missed", missed(page, middle), step)
    absent: list[Sample] = [None] * middle
    both: Page = {}
    for name, values in page.items():
        late = name.replace('"m"', '"m2"')
        both[name] = values if late == name else [*values[:middle], "stale"]
        if late != name:
            both[late] = [*absent, *values[: len(values) - middle]]
    yield Scene("busy and well, another model is deployed", both, step)
