"""Reads a YAML or JSON text into plain values and remembers the line of each.

Stricter and safer than the library's loader: no object is ever constructed from a tag, duplicate keys are mistakes,
and size, depth and the expansion of aliases are bounded. Scalars follow YAML 1.2's core schema, in which ``on``,
``1:30`` and ``2024-01-01`` are text, because YAML 1.1 would silently make a truth value, 90 and a date of them.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ufwatch.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_VALUES = 100_000
"""How many values a text may hold once its aliases are expanded."""
MAX_DEPTH = 50
_MAX_KEY = 60
_MAX_PATH_DEPTH = 6

_INT = re.compile(r"[-+]?[0-9]{1,18}", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?", re.ASCII)
_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "timestamp", "value", "merge")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """``value`` is None, bool, int, float, str, list or dict with text keys; ``lines`` maps a value's path to its line.

    A path reads ``targets[1].url``. ``mistakes`` holds what does not stop the reading, such as duplicate keys.
    """

    value: object
    lines: Mapping[str, int] = field(default_factory=dict)
    mistakes: tuple[str, ...] = ()


def read_text(path: Path) -> str:
    """Returns the file's text. ConfigError when it cannot be read, is no regular file, over 1 MiB, or not UTF-8."""
    where = str(path)
    try:
        # Without O_NONBLOCK the opening of a FIFO would wait for a writer for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(where, ["is not a regular file; give the path of a file"])
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(where, [f"cannot be read ({reason}); check the path and its permissions"]) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(where, [_too_large()])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(where, [f"line {line}: not UTF-8 text; save the file as UTF-8"]) from error


def parse(text: str, where: str) -> Document:
    """Reads ``text`` as JSON when ``where`` ends in ``.json``, else as YAML. ConfigError names line and column."""
    if len(text) > MAX_BYTES:
        raise ConfigError(where, [_too_large()])
    try:
        # YAML is almost, but not quite, a superset of JSON: PyYAML refuses a tab between tokens.
        return _parse_json(text, where) if where.endswith(".json") else _parse_yaml(text, where)
    except RecursionError:
        raise ConfigError(where, ["is nested too deeply; flatten it"]) from None


def parse_all(text: str, where: str) -> list[Document]:
    """Reads a text of several YAML documents. ConfigError as :func:`parse`; lines are those of the whole text."""
    found: list[Document] = []
    lines = text.splitlines(keepends=True)
    begin = 0
    for end in [*(n for n, line in enumerate(lines) if re.fullmatch(r"---\s*(#.*)?\n?", line)), len(lines)]:
        part = "".join(lines[begin:end])
        if any(
            line.strip() and not line.lstrip().startswith("#") for line in part.splitlines() if line.strip() != "---"
        ):
            # Blank lines in front keep the line numbers.
            found.append(parse("\n" * begin + part, where))
        begin = end + 1
    return found or [parse(text, where)]


def _too_large() -> str:
    return f"is over {MAX_BYTES >> 20} MiB; is this the right file?"


def _parse_json(text: str, where: str) -> Document:
    mistakes: list[str] = []

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
            mistakes.append(f"key {json.dumps(twice[:60])} is given twice in one object; keep one")
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ConfigError(where, [f"line {error.lineno}, column {error.colno}: not JSON ({error.msg})"]) from error
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(where, [f"not JSON ({error})"]) from error
    return Document(value=value, mistakes=tuple(mistakes))


def _parse_yaml(text: str, where: str) -> Document:
    try:
        node = yaml.compose(text, Loader=_Bounded)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        problem = f"line {line}, column {column}: holds a control character; is this a text file?"
        raise ConfigError(where, [problem]) from error
    except yaml.MarkedYAMLError as error:
        raise ConfigError(where, [_syntax(error)]) from error
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:
        # PyYAML lets a few errors of its own escape, such as chr() of an escape that is out of range.
        raise ConfigError(
            where, [f"not YAML ({type(error).__name__}); check the escapes in its quoted texts"]
        ) from error
    if node is None:
        raise ConfigError(where, ["line 1, column 1: is empty; write at least one key"])
    plain = _Plain(where)
    value = plain.value(node, "", 0)
    return Document(value=value, lines=plain.lines, mistakes=tuple(plain.mistakes))


def _syntax(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = " ".join((error.problem or error.context or "not YAML").split())
    if "'\\t'" in problem:
        problem += "; indent with blanks, not tabs"
    return f"{place}not YAML ({problem})"


class _Bounded(yaml.SafeLoader):
    """Stops at the first value too many or too deep, instead of after seconds of work on a hostile text."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._count = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_VALUES:
            problem = "nested too deeply" if self._depth > MAX_DEPTH else f"more than {MAX_VALUES} values"
            untyped: Any = self
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=untyped.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Plain:
    """Turns PyYAML's nodes into plain values; ConfigError once the expansion is out of bounds."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._count = 0
        self._open: set[int] = set()
        self.lines: dict[str, int] = {}
        self.mistakes: list[str] = []

    def value(self, node: yaml.Node, path: str, depth: int) -> object:
        self._count += 1
        if self._count > MAX_VALUES:
            raise ConfigError(self._where, [f"holds more than {MAX_VALUES} values; check its aliases"])
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if isinstance(node, yaml.ScalarNode):
            if node.tag not in _PLAIN_TAGS:
                self.mistakes.append(f"{path or 'the file'}: YAML tags are not used here; remove it (line {line})")
            return _scalar(node)
        if id(node) in self._open:
            raise ConfigError(self._where, [f"line {line}: an alias holds itself; repeat the values instead"])
        self._open.add(id(node))
        found: object
        if isinstance(node, yaml.SequenceNode):
            found = [self.value(item, _below(path, f"[{i}]", depth), depth + 1) for i, item in enumerate(node.value)]
        else:
            found = self._mapping(node, path, depth)
        self._open.discard(id(node))
        return found

    def _mapping(self, node: yaml.Node, path: str, depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        first_line: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.mistakes.append(f"{path or 'the file'}: a key is not text; write key: value (line {line})")
                continue
            key = str(key_node.value)
            inner = _below(path, f".{key[:_MAX_KEY]}" if path else key[:_MAX_KEY], depth)
            if key == "<<":
                self.mistakes.append(f"{inner}: merge keys are not supported; repeat the keys (line {line})")
            elif key in found:
                shown = inner if inner.isprintable() else json.dumps(inner)
                self.mistakes.append(f"{shown}: given twice, on lines {first_line[key]} and {line}; keep one")
            else:
                found[key] = self.value(value_node, inner, depth + 1)
                first_line[key] = line
        return found


def _below(path: str, step: str, depth: int) -> str:
    # Nothing we read lies deeper, and a path per value would square the memory of a deep text with long keys.
    return path + step if depth < _MAX_PATH_DEPTH else path


def _scalar(node: yaml.ScalarNode) -> object:
    text = str(node.value)
    if node.style is not None:  # quoted, or a block of lines
        return text
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
