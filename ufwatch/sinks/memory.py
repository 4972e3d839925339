"""A sink that keeps what it was given, shipped as the test double."""

from __future__ import annotations

from collections.abc import Iterable

from ufwatch.model import Exemplars, Sample


class MemorySink:
    """The newest samples of each owner."""

    def __init__(self) -> None:
        self.samples: dict[str, tuple[Sample, ...]] = {}
        self.exemplars: dict[str, Exemplars] = {}

    def publish(self, owner: str, samples: Iterable[Sample], exemplars: Exemplars | None = None) -> None:
        self.samples[owner] = tuple(samples)
        self.exemplars[owner] = exemplars or {}

    def forget(self, owner: str) -> None:
        self.samples.pop(owner, None)
        self.exemplars.pop(owner, None)
