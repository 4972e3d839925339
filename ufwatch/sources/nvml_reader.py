"""Reads one device: asks each getter, remembers what it cannot do, carries what is slow, refuses the impossible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ufwatch.gpu_metrics import accept
from ufwatch.model import Reason
from ufwatch.sources.nvml_fields import CARD_LOST, SESSION_LOST, UNKNOWN, Failed, Getter, Handle, Nvml, Yield, reason_of

RETRY_SECONDS = 300.0
"""How long "not supported" and "no permission" are believed; drivers and cgroups do change under a running process."""
SLOW_SECONDS = 30.0
LATE_SECONDS = 45.0
"""Slow getters are due after 30 s, one per poll so that no poll pays for all; past 45 s each is read at once.
A carried value is therefore never older than this."""


@dataclass(slots=True)
class Reading:
    """What one device answered at one poll."""

    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, Reason] = field(default_factory=dict)
    source_of: dict[str, str] = field(default_factory=dict)
    age_seconds: dict[str, float] = field(default_factory=dict)
    rejected: int = 0
    answered: int = 0
    unknown: int = 0

    def take(self, item: Yield, answer: float | Failed, source: str | None = None) -> None:
        """One answer, if it can be true."""
        if isinstance(answer, Failed):
            self.missing[item.field] = reason_of(answer.code)
            return
        value = accept(item.field, answer, item.times, item.per)
        if value is None:
            self.refuse(item.field)
            return
        self.missing.pop(item.field, None)
        self.values[item.field] = value
        if source is not None:
            self.source_of[item.field] = source

    def refuse(self, name: str) -> None:
        """Counts a sentinel or an impossible value and forgets it."""
        self.values.pop(name, None)
        self.missing[name] = Reason.OUT_OF_RANGE
        self.rejected += 1

    def lack(self, names: Sequence[str], reason: Reason) -> None:
        """Says why these fields are absent, where nothing better is known of them."""
        for name in names:
            if name not in self.values:
                self.missing.setdefault(name, reason)

    def carry(self, other: Reading, age: float) -> None:
        """Adds what an earlier reading said; its refusals have been counted."""
        self.values.update(other.values)
        self.missing.update(other.missing)
        self.source_of.update(other.source_of)
        if age > 0.0:
            self.age_seconds.update(dict.fromkeys(other.values, age))


class DeviceReader:
    """The memory of one device between polls: capabilities by getter, and the last answers of slow getters.

    Raises NVML's own error only where the card or the whole driver is gone.
    """

    def __init__(self, nvml: Nvml, getters: Sequence[Getter]) -> None:
        self._nvml = nvml
        self._getters = getters
        self._cannot: dict[str, tuple[Reason, float]] = {}
        self._slow: dict[str, tuple[float, Reading]] = {}

    def read(self, handle: Handle, now: float, without: Mapping[str, Reason]) -> Reading:
        """Everything the device answers; ``without`` names getters that must not be asked, and why."""
        reading = Reading()
        due = self._due(now)
        for getter in self._getters:
            reason = without.get(getter.name)
            if reason is not None:
                reading.lack(getter.all_fields(), reason)
            elif not getter.slow:
                self._ask(getter, handle, now, reading)
            else:
                self._slowly(getter, handle, now, reading, getter.name in due)
        _check_memory(reading)
        return reading

    def _due(self, now: float) -> set[str]:
        ages = {getter.name: self._age(getter.name, now) for getter in self._getters if getter.slow}
        due = {name for name, age in ages.items() if age >= LATE_SECONDS}
        if not due and ages:
            stalest = max(ages, key=lambda name: ages[name])
            if ages[stalest] >= SLOW_SECONDS:
                due.add(stalest)
        return due

    def _age(self, name: str, now: float) -> float:
        carried = self._slow.get(name)
        return float("inf") if carried is None else now - carried[0]

    def _slowly(self, getter: Getter, handle: Handle, now: float, reading: Reading, due: bool) -> None:
        if due:
            part = Reading()
            self._slow.pop(getter.name, None)
            self._ask(getter, handle, now, part)
            self._slow[getter.name] = (now, part)
            reading.rejected += part.rejected
            reading.answered += part.answered
            reading.unknown += part.unknown
        read_at, part = self._slow[getter.name]
        reading.carry(part, now - read_at)

    def _ask(self, getter: Getter, handle: Handle, now: float, reading: Reading) -> None:
        blocked = self._cannot.get(getter.name)
        if blocked is not None and now < blocked[1]:
            reason = blocked[0]
        else:
            problem = self._call(getter, handle, reading)
            if problem is None:
                self._cannot.pop(getter.name, None)
                return
            reason = problem
            if reason in (Reason.NOT_SUPPORTED, Reason.PERMISSION):
                self._cannot[getter.name] = (reason, now + RETRY_SECONDS)
        if getter.instead is not None and reason is Reason.NOT_SUPPORTED:
            self._ask(getter.instead, handle, now, reading)
        reading.lack(getter.all_fields(), reason)

    def _call(self, getter: Getter, handle: Handle, reading: Reading) -> Reason | None:
        """Asks NVML once; None when it answered, however little of it is usable."""
        try:
            answers = getter.read(self._nvml, handle)
        except self._nvml.NVMLError as error:
            if error.value in SESSION_LOST or error.value in CARD_LOST:
                raise
            reading.unknown += error.value == UNKNOWN
            return reason_of(error.value)
        except AttributeError:  # a pynvml older than the call
            return Reason.NOT_SUPPORTED
        if all(isinstance(answer, Failed) and reason_of(answer.code) is Reason.NOT_SUPPORTED for answer in answers):
            return Reason.NOT_SUPPORTED
        reading.answered += 1
        for item, answer in zip(getter.yields, answers, strict=True):
            reading.take(item, answer, getter.source)
        reading.lack(getter.all_fields(), Reason.NOT_SUPPORTED)
        return None


def _check_memory(reading: Reading) -> None:
    """A part larger than the whole is refused, and so are parts of a whole that was itself refused (total 0: C02)."""
    total = reading.values.get("memory_total_bytes")
    for name in ("memory_used_bytes", "memory_reserved_bytes"):
        part = reading.values.get(name)
        if part is not None and (total is None or part > total):
            reading.refuse(name)
