"""Histories that formulas are evaluated over: counters folded so that they never fall, and how far back they reach."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")
_STEPS = 30
"""Entries of a full window, beside its newest: at 1 s a target's histories would be a third of what it takes."""


class History(NamedTuple, Generic[V]):
    """Entries ``(monotonic seconds, value)``, newest last, kept just long enough to answer for ``window_seconds``.

    ``window_seconds`` None keeps the first entry for ever and answers over all of it (``once``).
    """

    window_seconds: float | None
    slack_seconds: float
    """How much younger than the window the oldest entry may be and still count as full: scrapes are not punctual."""
    entries: tuple[tuple[float, V], ...] = ()

    def push(self, at_seconds: float, value: V) -> History[V]:
        """A history with one more entry, without those that no window can reach any more.

        Entries stand a thirtieth of the window apart at least, but for the newest, so a window is up to that much
        longer than its name says; its ``seconds`` are what it is.
        """
        entries = self.entries
        if self.window_seconds is not None and len(entries) > 1:
            crowded = entries[-1][0] - entries[-2][0] < self.window_seconds / _STEPS
            entries = entries[:-1] if crowded else entries
        entries = (*entries, (at_seconds, value))
        if self.window_seconds is None:
            entries = entries if len(entries) < 3 else (entries[0], entries[-1])
        else:
            horizon = at_seconds - self.window_seconds + self.slack_seconds
            keep = 0
            while keep + 1 < len(entries) and entries[keep + 1][0] <= horizon:
                keep += 1
            entries = entries[keep:] if keep else entries
        return History(self.window_seconds, self.slack_seconds, entries)

    def cleared(self) -> History[V]:
        """The same window with nothing in it: after a gap that no rate may be drawn across."""
        return History(self.window_seconds, self.slack_seconds)

    def ends(self) -> tuple[tuple[float, V], tuple[float, V]] | None:
        """The window's two ends; None while it is not full (``warming_up``)."""
        if len(self.entries) < 2:
            return None
        first, final = self.entries[0], self.entries[-1]
        if final[0] <= first[0]:
            return None
        if self.window_seconds is not None and first[0] > final[0] - self.window_seconds + self.slack_seconds:
            return None
        return first, final


class Span(NamedTuple):
    """A full window over columns of arrays: what a formula sees."""

    columns: Mapping[str, int]
    seconds: float
    first: array[float]
    final: array[float]

    def increase(self, metric: str) -> float | None:
        column = self.columns.get(metric)
        return None if column is None else self.final[column] - self.first[column]

    def last(self, metric: str) -> float | None:
        column = self.columns.get(metric)
        return None if column is None else self.final[column]


@dataclass(frozen=True, slots=True)
class Totals:
    """A full window over counters that arrive by name (text files, KV events), already counted from the agent's start.

    A counter absent at the first end counts from 0.
    """

    seconds: float
    first: Mapping[str, float]
    final: Mapping[str, float]

    def increase(self, metric: str) -> float | None:
        final = self.final.get(metric)
        return None if final is None else final - self.first.get(metric, 0.0)

    def last(self, metric: str) -> float | None:
        return self.final.get(metric)
