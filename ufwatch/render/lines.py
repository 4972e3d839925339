"""The lines of the agent's page: heads, label sets and numbers, byte for byte as prometheus_client writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import cast

from ufwatch.model import Exemplar, Labels
from ufwatch.spec import PREFIX, Kind, MetricSpec

_PLAIN_BELOW = 1e6
_PLAIN_DIGITS = 6
_EXPONENTS = tuple(f"e+{point - 1:02d}" for point in range(17))  # from 17 digits on, ``repr`` writes one itself
_float_repr = float.__repr__


def value_text(value: object) -> str | None:
    """A value as it stands on the page: shortest digits that read back the same, in Go's choice of exponent.

    Returns None for what may not stand there (NaN, infinities, None, text).
    """
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not isfinite(number):
        return None
    return repr(number) if number < _PLAIN_BELOW else _large(repr(number))


def _large(text: str) -> str:
    """The ``repr`` of a million or more with an exponent, as Prometheus' clients write it: our bytes equal theirs."""
    point = text.find(".")
    if point <= _PLAIN_DIGITS or "e" in text:
        return text
    digits = (text[1:point] + text[point + 1 :]).rstrip("0")
    return f"{text[0]}.{digits}{_EXPONENTS[point]}" if digits else text[0] + _EXPONENTS[point]


def value_texts(values: Sequence[float]) -> list[str] | None:
    """All values as text, or None when one of them cannot be written. The hot loop of the page."""
    # Nearly always all are finite floats, and C tells so at little cost: ``float.__repr__`` refuses everything else,
    # and a sum shows NaN and infinities. (One that merely overflows takes the careful way as well.)
    try:
        if isfinite(sum(values)):
            texts = list(map(_float_repr, values))
            if texts and max(values) >= _PLAIN_BELOW:
                for at in [at for at, value in enumerate(values) if value >= _PLAIN_BELOW]:
                    texts[at] = _large(texts[at])
            return texts
    except (TypeError, OverflowError):
        pass
    found = [value_text(value) for value in values]
    return None if None in found else cast(list[str], found)


def _escaped(value: str) -> str:
    r"""A label value between its quotes: ``\``, line feed and quote escaped, lone surrogates replaced."""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode("utf-8")
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def exemplar_text(exemplar: Exemplar) -> str:
    """What follows a bucket's value in OpenMetrics: the observation that an exemplar is of, with its trace."""
    moment = "" if exemplar.unix_seconds is None else f" {exemplar.unix_seconds!r}"
    return f' # {{trace_id="{_escaped(exemplar.trace_id)}"}} {value_text(exemplar.value)}{moment}'


@dataclass(frozen=True, slots=True)
class Family:
    """One family with what is written above its samples in either form, line feed first."""

    order: int
    name: str
    labels: tuple[str, ...]
    text_head: str
    openmetrics_head: str

    @classmethod
    def all_of(cls, order: int, spec: MetricSpec) -> dict[str, Family]:
        """What samples of a family may be called, without the prefix: a histogram's have names of their own."""
        family = cls.of(order, spec)
        return {name: replace(family, name=PREFIX + name, labels=labels) for name, labels in spec.series.items()}

    @classmethod
    def of(cls, order: int, spec: MetricSpec) -> Family:
        name = PREFIX + spec.name
        said = spec.help.replace("\\", r"\\").replace("\n", r"\n")
        # OpenMetrics names a counter's family without the suffix that its sample carries, and escapes quotes in help.
        base = name.removesuffix("_total") if spec.kind is Kind.COUNTER else name
        quoted = said.replace('"', r"\"")
        text_head = f"\n# HELP {name} {said}\n# TYPE {name} {spec.kind}"
        openmetrics_head = f"\n# HELP {base} {quoted}\n# TYPE {base} {spec.kind}"
        return cls(order, name, spec.labels, text_head, openmetrics_head)

    def prefix(self, labels: Labels) -> str | None:
        """The line up to its value, line feed first, labels in the family's order; None for another label set."""
        try:
            given = dict(labels)
        except (TypeError, ValueError):
            return None
        if len(labels) != len(self.labels) or given.keys() != set(self.labels):
            return None
        if not all(isinstance(value, str) for value in given.values()):
            return None
        if not labels:
            return f"\n{self.name} "
        inside = ",".join([f'{label}="{_escaped(given[label])}"' for label in self.labels])
        return f"\n{self.name}{{{inside}}} "
