"""A few rounds of the agent: what must be there before the first."""

from __future__ import annotations

from pathlib import Path

import zmq

from tests.sources.kv_publisher import free_ports
from ufwatch.agent import Agent
from ufwatch.cli.sampling import look_at
from ufwatch.model import Reading
from ufwatch.precedence import Flags


def test_two_samples_are_enough_for_kv_events_although_the_publisher_connects_to_us(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_ports(1)}"
    config = tmp_path / "ufwatch.yaml"
    # Nobody answers at this address: the events count all the same.
    config.write_text(f'targets: [{{name: a, url: "http://127.0.0.1:9", kv_events: {{bind: "{endpoint}"}}}}]\n')

    def look(agent: Agent) -> list[Reading]:
        return [reading for reading in agent.targets["a"].readings() if reading.signal == "kv_evictions"]

    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.linger = 0
        publisher.connect(endpoint)  # as vLLM does, long before we are there
        seen = look_at(Flags(config=str(config), interval="1s", no_gpu=True), {}, samples=2, look=look)
    assert [(reading.value, reading.source) for reading in seen] == [(0.0, "kv_events")]
