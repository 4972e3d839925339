"""The form of a declaration: what an exported metric and a signal are. :mod:`ufwatch.catalogue` holds the declarations.

Floor 1: pure. A metric's name carries no prefix here; ``PREFIX`` is put in front once, when the page is rendered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "ufwatch_"


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One family of our own page.

    ``name`` ends in its base unit (``_seconds``, ``_bytes``, ``_ratio``, …) and, for counters, in ``_total``.
    ``labels`` is the exact label set, in page order; a sample never carries another.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    def __post_init__(self) -> None:
        if (self.kind is Kind.COUNTER) != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters, and only counters, end in _total")
        if not self.help.endswith("."):
            raise ValueError(f"{self.name}: help is a sentence and ends in a full stop")

    @property
    def series(self) -> dict[str, tuple[str, ...]]:
        """The names that its samples have, with their labels: a histogram's have three."""
        if self.kind is not Kind.HISTOGRAM:
            return {self.name: self.labels}
        return {
            f"{self.name}_bucket": ("le", *self.labels),
            f"{self.name}_count": self.labels,
            f"{self.name}_sum": self.labels,
        }
