"""A classic histogram of our own, with the newest observation of each bucket as its exemplar.

Floor 2: pure. The time of an observation is an argument.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf, isfinite

from ufwatch.model import Exemplar, Exemplars, Labels, Samples


class Histogram:
    """Counts by upper edge. ``edges`` rise and are finite; the bucket without an edge is added by itself.

    Raises ValueError for edges that are none.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        if not edges or not all(map(isfinite, edges)) or any(a >= b for a, b in pairwise(edges)):
            raise ValueError("edges must be finite and rise")
        self._edges = tuple(edges)
        self._texts = (*(repr(float(edge)) for edge in edges), "+Inf")
        self._counts = [0.0] * len(self._texts)
        self._exemplars: list[Exemplar | None] = [None] * len(self._texts)
        self.total = 0.0
        """Of all observations, in their unit."""

    @property
    def count(self) -> float:
        """All observations."""
        return sum(self._counts)

    def add(self, value: float, trace_id: str, wall: float) -> None:
        """One observation, seen at Unix time ``wall``; without a ``trace_id`` it is no exemplar.

        Raises ValueError for NaN, an infinity or a negative value, which no sum gets over.
        """
        if not 0 <= value < inf:
            raise ValueError(f"{value} is no observation")
        place = bisect_left(self._edges, value)  # an edge belongs to the bucket under it
        self._counts[place] += 1
        self.total += value
        if trace_id:
            self._exemplars[place] = Exemplar(trace_id, value, wall)

    def samples(self, family: str, labels: Labels) -> Samples:
        """Its lines of the page, each bucket holding those under it."""
        counts = list(accumulate(self._counts))
        samples = Samples()
        samples.extend([(f"{family}_bucket", self._bucket(text, labels)) for text in self._texts], counts)
        samples.add(f"{family}_count", labels, counts[-1])
        samples.add(f"{family}_sum", labels, self.total)
        return samples

    def exemplars(self, family: str, labels: Labels) -> Exemplars:
        """By the series of their buckets; one for each bucket that an observation with a trace fell into."""
        return {
            (f"{family}_bucket", self._bucket(text, labels)): exemplar
            for text, exemplar in zip(self._texts, self._exemplars, strict=True)
            if exemplar is not None
        }

    @staticmethod
    def _bucket(edge: str, labels: Labels) -> Labels:
        return (("le", edge), *labels)
