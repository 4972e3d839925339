"""A sink that keeps what it was given, shipped as the test double."""

from __future__ import annotations

from collections.abc import Iterable

from ufwatch.model import Sample


class MemorySink:
    """The newest samples of each owner."""

    def __init__(self) -> None:
        self.samples: dict[str, tuple[Sample, ...]] = {}

    def publish(self, owner: str, samples: Iterable[Sample]) -> None:
        self.samples[owner] = tuple(samples)

    def forget(self, owner: str) -> None:
        self.samples.pop(owner, None)
