"""What a configuration value may be: converters of single values, and a reader of mappings that notes every mistake.

Floor 0: pure. A converter takes a plain value (of a file, a flag or an environment variable) and returns it typed, or
raises ValueError with ``what is wrong; what to do``.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ufwatch.errors import ConfigError

T = TypeVar("T")
D = TypeVar("D")

MAX_NAME_LENGTH = 200
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", re.ASCII)
_NUMBER = re.compile(r"[-+]?([0-9]{1,18}(\.[0-9]*)?|\.[0-9]+)", re.ASCII)
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_USERINFO = re.compile(r"//[^/\s]*@")


class Report:
    """Collects mistakes; each is shown as ``path: what is wrong; what to do (line n)``."""

    def __init__(self, lines: Mapping[str, int] | None = None) -> None:
        self._lines = lines or {}
        self._mistakes: list[str] = []

    def add(self, path: str, mistake: str) -> None:
        """Notes one mistake at ``path``; its line is found by itself where the text has lines."""
        line = self._lines.get(path)
        self._mistakes.append(f"{path or 'the document'}: {mistake}" + (f" (line {line})" if line else ""))

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Everything noted so far."""
        return tuple(self._mistakes)

    def raise_if_any(self, where: str, already: Sequence[str] = ()) -> None:
        """Raises ConfigError with ``already`` and all that was noted; returns when there is nothing."""
        mistakes = [*already, *self._mistakes]
        if mistakes:
            raise ConfigError(where, mistakes)


class Block:
    """One mapping being read. A key that nobody asked for by the time of :meth:`close` is unknown, hence a mistake."""

    def __init__(self, value: object, path: str, report: Report, *, nullable: bool = True) -> None:
        self.path = path
        self.report = report
        self._asked: list[str] = []
        self._values: Mapping[str, object] = {}
        self._broken = False
        self.given = value is not None
        """Whether there is a block at all, be it an empty or a wrong one."""
        if isinstance(value, Mapping):
            self._values = value
        elif value is not None or not nullable:
            report.add(path, f"{shown(value)} is not a mapping; write keys below it")
            self._broken = True

    def at(self, key: str) -> str:
        """Returns the path of ``key`` in this block."""
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str, convert: Callable[[object], T], default: D) -> T | D:
        """Returns the converted value; ``default`` when the key is absent, null, or wrong (which is then noted)."""
        value = self._take(key)
        return default if value is None else converted(value, convert, default, self.report, self.at(key))

    def required(self, key: str, convert: Callable[[object], T], what: str) -> T | None:
        """As :meth:`get`, but absence is a mistake that says ``what`` to give."""
        if self._take(key) is None:
            if not self._broken:
                self.report.add(self.path, f"{key} is missing; {what}")
            return None
        return self.get(key, convert, None)

    def block(self, key: str) -> Block:
        """Returns the mapping under ``key``; an empty one when it is absent or no mapping (which is then noted)."""
        return Block(self._take(key), self.at(key), self.report)

    def items(self, key: str) -> list[tuple[str, object]]:
        """Returns (path, value) of each item of the list under ``key``; none when absent or no list."""
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.report.add(self.at(key), f"{shown(value)} is not a list; write it as [{_hint(value)}]")
            return []
        return [(f"{self.at(key)}[{index}]", item) for index, item in enumerate(value)]

    def list_of(self, key: str, convert: Callable[[object], T]) -> tuple[T, ...]:
        """Returns the list under ``key`` with each item converted; wrong items are noted and left out."""
        found = [converted(item, convert, None, self.report, path) for path, item in self.items(key)]
        return tuple(item for item in found if item is not None)

    def has(self, key: str) -> bool:
        """Whether ``key`` is given a value, right or wrong."""
        return self._take(key) is not None

    def add(self, key: str, mistake: str) -> None:
        """Notes a mistake at ``key``, for checks that look at several keys."""
        self.report.add(self.at(key), mistake)

    def note(self, mistake: str) -> None:
        """Notes a mistake about the block as a whole, unless it is already known to be no block."""
        if not self._broken:
            self.report.add(self.path, mistake)

    def close(self) -> None:
        """Notes every key that is unknown here, with the known key it resembles."""
        for key in self._values:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(self._asked))}"
                self.report.add(self.at(shown_key(key)), f"unknown key; {hint}")

    def _take(self, key: str) -> object:
        if key not in self._asked:
            self._asked.append(key)
        return self._values.get(key)


def converted(value: object, convert: Callable[[object], T], default: D, report: Report, path: str) -> T | D:
    """Returns ``convert(value)``, or ``default`` after noting at ``path`` why it cannot be converted."""
    try:
        return convert(value)
    except ValueError as error:
        report.add(path, str(error))
        return default


def shown(value: object) -> str:
    """Returns a short, single-line form of ``value`` for a message, without credentials."""
    if value is None or isinstance(value, Mapping | list):
        return "nothing" if value is None else "a mapping" if isinstance(value, Mapping) else "a list"
    if isinstance(value, str):
        value = _USERINFO.sub("//…@", value)
        return json.dumps(value if len(value) <= 60 else value[:60] + "…", ensure_ascii=not value.isprintable())
    return json.dumps(value)[:60]


def shown_key(key: str) -> str:
    """Returns a key fit for a path: as it is, or quoted and shortened when it would break the line."""
    return key if key.isprintable() and len(key) <= 60 else shown(key)


def text(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str):
        example = f'"{value}"' if isinstance(value, int | float) else '"…"'
        raise ValueError(f"{shown(value)} is not text; write {example}")
    if not value.strip():
        raise ValueError("is empty; give a value or remove the key")
    return value


def label(value: object) -> str:
    """A text fit for a label and a log line: printable, not a URL, at most 200 characters."""
    found = text(value)
    if not found.isprintable() or found != found.strip() or len(found) > MAX_NAME_LENGTH:
        raise ValueError(
            f"{shown(found)} must be printable, unpadded, at most {MAX_NAME_LENGTH} characters; shorten it"
        )
    if "://" in found:
        raise ValueError("is a URL, but becomes a label; give a short name")
    return found


def choice(*allowed: str) -> Callable[[object], str]:
    """One of ``allowed``, in any case."""

    def convert(value: object) -> str:
        if isinstance(value, str) and value.lower() in allowed:
            return value.lower()
        raise ValueError(f"{shown(value)} is not known; choose from {', '.join(allowed)}")

    return convert


def truth(value: object) -> bool:
    """true or false; also yes/no and on/off, which YAML 1.1 taught people to write, and 1/0 for the environment."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in _TRUE | _FALSE:
        return word in _TRUE
    raise ValueError(f"{shown(value)} is neither true nor false; write one of them")


def number(low: float, high: float, advice: str = "") -> Callable[[object], float]:
    """A finite number from ``low`` to ``high``."""

    def convert(value: object) -> float:
        return _within(_plain_number(value, "a number"), low, high, "", advice)

    return convert


def whole(low: int, high: int) -> Callable[[object], int]:
    """A whole number from ``low`` to ``high``."""

    def convert(value: object) -> int:
        found = _plain_number(value, "a whole number")
        if not found.is_integer():
            raise ValueError(f"{shown(value)} is not a whole number; write one from {low} to {high}")
        return int(_within(found, low, high, "", ""))

    return convert


def seconds(low: float, high: float) -> Callable[[object], float]:
    """A duration from ``low`` to ``high`` seconds: a number of seconds, or ``500ms``, ``5s``, ``1h30m``."""

    def convert(value: object) -> float:
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            parts = _DURATION_PART.findall(value)
            if not parts or "".join(amount + unit for amount, unit in parts) != value or len(value) > 40:
                raise ValueError(f"{shown(value)} is not a duration; write seconds, or 500ms, 5s, 10m, 1h30m")
            found = sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in parts)
        else:
            found = _plain_number(value, "a duration")
        return _within(found, low, high, " s", "")

    return convert


def _plain_number(value: object, what: str) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    # A truth value is an int to Python, and an integer of 400 digits is not a float.
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18:
        return float(value)
    raise ValueError(f"{shown(value)} is not {what}; write {what}")


def _within(value: float, low: float, high: float, unit: str, advice: str) -> float:
    if math.isfinite(value) and low <= value <= high:
        return value
    advice = advice or "choose one in that range"
    raise ValueError(f"{value:g}{unit} is not from {low:g} to {high:g}{unit}; {advice}")


def _hint(value: object) -> str:
    return shown(value) if isinstance(value, str | int | float) else "…"
