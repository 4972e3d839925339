"""Pieces of a page as prometheus_client writes them: numbers, labels, and blocks of text that know when to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from ufwatch.sim.stats import Histogram
from ufwatch.sim.values import Read


def number(value: float) -> str:
    """A sample value as prometheus_client writes it: Python's repr of a float, with Go's exponents from 1e6 on."""
    text = repr(float(value))
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{dot - 1:02}"
    return text


def labels(pairs: Iterable[tuple[str, str]]) -> str:
    """Label pairs, sorted by name, with braces; nothing for none."""
    escape = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    inner = ",".join(f'{name}="{value.translate(escape)}"' for name, value in sorted(pairs))
    return f"{{{inner}}}" if inner else ""


def head(name: str, text: str, kind: str) -> str:
    """The two lines before a family's samples."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


class Block(Protocol):
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Static:
    lines: str

    def text(self) -> str:
        return self.lines


@dataclass(frozen=True, slots=True)
class Scalars:
    """Samples that are read each time; ``after`` is what follows them unchanged."""

    head: str
    samples: tuple[tuple[str, Read], ...]
    after: str

    def text(self) -> str:
        return "".join([self.head, *[f"{prefix}{number(read())}\n" for prefix, read in self.samples], self.after])


@dataclass(frozen=True, slots=True)
class Touched:
    """Samples that are there only once they have been used; until then there is ``unused`` in the family's place."""

    head: str
    samples: tuple[tuple[str, Read], ...]
    after: str
    unused: str
    used: Read
    nonzero_only: bool = False
    """Each sample appears with its own first use."""

    def text(self) -> str:
        if not self.used():
            return self.unused
        values = [(prefix, read()) for prefix, read in self.samples]
        lines = [f"{prefix}{number(value)}\n" for prefix, value in values if value or not self.nonzero_only]
        return "".join([self.head, *lines, self.after]) if lines else self.unused


@dataclass(slots=True)
class Histograms:
    """One histogram per series; the text of one that was not observed since is used again."""

    head: str
    series: tuple[tuple[tuple[str, ...], str, str, tuple[Histogram, ...]], ...]
    """Bucket prefixes, prefix of the count, prefix of the sum, and what is added up."""
    after: str
    sum_first: bool
    unused: str | None
    """What is there instead before the first observation; None for the histogram with its zeros."""
    seen: int = -1
    kept: str = ""

    def text(self) -> str:
        observed = sum(histogram.count for series in self.series for histogram in series[3])
        if observed != self.seen:
            self.seen = observed
            self.kept = self._render() if observed or self.unused is None else self.unused
        return self.kept

    def _render(self) -> str:
        lines = [self.head]
        for buckets, count_prefix, sum_prefix, histograms in self.series:
            counts = map(sum, zip(*(histogram.counts for histogram in histograms), strict=True))
            texts = [f"{prefix}{number(value)}\n" for prefix, value in zip(buckets, accumulate(counts), strict=True)]
            total = f"{count_prefix}{number(sum(histogram.count for histogram in histograms))}\n"
            sums = f"{sum_prefix}{number(sum(histogram.sum for histogram in histograms))}\n"
            lines += [sums, *texts, total] if self.sum_first else [*texts, total, sums]
        lines.append(self.after)
        return "".join(lines)
