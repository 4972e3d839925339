"""A few rounds of the agent: what must be there before the first."""

from __future__ import annotations

from tests.sources.kv_publisher import HOST, Publisher, bound, run
from ufwatch.agent import Agent
from ufwatch.cli.sampling import sampled
from ufwatch.config import Config, GpuConfig, TargetConfig
from ufwatch.model import Reading


def test_two_samples_are_enough_for_kv_events_although_the_publisher_connects_to_us() -> None:
    async def scenario() -> None:
        kv_events, port = bound()
        publisher = Publisher()
        publisher.connect(f"{HOST}:{port}")  # as vLLM does, long before we are there
        # Nobody answers at this address: the events count all the same.
        target = TargetConfig(name="a", url="http://127.0.0.1:9", kv_events=kv_events)
        config = Config(targets=(target,), interval_seconds=0.05, gpu=GpuConfig(enabled=False))
        seen: list[Reading] = []

        def look(agent: Agent) -> None:
            seen.extend(r for r in agent.targets["a"].readings() if r.signal == "kv_evictions")

        await sampled(config, {}, samples=2, look=look)
        publisher.close()
        assert [(r.value, r.source) for r in seen] == [(0.0, "kv_events")]

    run(scenario())
