"""Reads a PromQL expression into a small tree: enough to ask whether it compares, what it divides by, what it names.

Follows Prometheus' grammar (operators, precedence, matching, ranges, subqueries, ``offset`` and ``@``) without its
types: what this reads may still be wrong to Prometheus, which is promtool's to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*
    |(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)
    |(?P<duration>(?:[0-9]+(?:ms|[smhdwy]))+(?![A-Za-z0-9_]))
    |(?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
    |(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    |(?P<sign>=~|!~|==|!=|>=|<=|[-+*/%^<>(){}\[\],=@:])""",
    re.VERBOSE | re.DOTALL,
)
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
_PRECEDENCE = (("or",), ("and", "unless"), tuple(COMPARISONS), ("+", "-"), ("*", "/", "%", "atan2"), ("^",))
_AGGREGATIONS = frozenset(
    {
        *("sum", "min", "max", "avg", "count", "group", "stddev", "stdvar"),
        *("topk", "bottomk", "quantile", "count_values"),
    }
)
_MAX_TOKENS = 5000
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class Number:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric, possibly over a range; ``matchers`` are (label, operator, value)."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an aggregation."""

    function: str
    arguments: tuple[Node, ...]
    aggregates: bool = False


@dataclass(frozen=True, slots=True)
class Binary:
    """``left operator right``; ``as_bool`` is a comparison that gives 0 or 1 in place of filtering."""

    operator: str
    left: Node
    right: Node
    as_bool: bool = False


@dataclass(frozen=True, slots=True)
class Minus:
    inner: Node


Node = Number | Text | Selector | Call | Binary | Minus


def parse(expression: str) -> Node:
    """The tree of an expression. ValueError says what is wrong and where."""
    reader = _Reader(list(_tokens(expression)))
    tree = reader.binary(0)
    if reader.peek()[0] != "end":
        raise ValueError(f"unexpected {reader.peek()[1]!r}")
    return tree


def walk(node: Node) -> Iterator[Node]:
    """The node and all under it."""
    yield node
    if isinstance(node, Call):
        for argument in node.arguments:
            yield from walk(argument)
    elif isinstance(node, Binary):
        yield from walk(node.left)
        yield from walk(node.right)
    elif isinstance(node, Minus):
        yield from walk(node.inner)


def metrics(node: Node) -> frozenset[str]:
    """Every metric the expression names."""
    named = set()
    for part in walk(node):
        if isinstance(part, Selector):
            named |= {part.metric} if part.metric else {v for k, op, v in part.matchers if (k, op) == ("__name__", "=")}
    return frozenset(named)


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise ValueError(f"unexpected {expression[at]!r} at character {at + 1}")
        at = found.end()
        if found.lastgroup is not None:
            yield found.lastgroup, found[0]


class _Reader:
    """Walks the tokens once, by precedence climbing."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        if len(tokens) > _MAX_TOKENS:
            raise ValueError("is too long to be read")
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "end of expression")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self._at += 1
        return token

    def accept(self, *texts: str) -> str | None:
        """Takes the next token when it is one of these, in any case where they are words."""
        kind, text = self.peek()
        if kind in ("sign", "name") and text.lower() in texts:
            self._at += 1
            return text.lower()
        return None

    def expect(self, text: str) -> None:
        if self.accept(text) is None:
            raise ValueError(f"expected {text!r} before {self.peek()[1]!r}")

    def binary(self, level: int) -> Node:
        if level == len(_PRECEDENCE):
            return self.unary()
        left = self.binary(level + 1)
        while (operator := self.accept(*_PRECEDENCE[level])) is not None:
            as_bool = self.accept("bool") is not None
            self._matching()
            # Only ^ binds to the right.
            right = self.binary(level if operator == "^" else level + 1)
            left = Binary(operator, left, right, as_bool)
        return left

    def _matching(self) -> None:
        if self.accept("on", "ignoring"):
            self._labels()
            if self.accept("group_left", "group_right") and self.peek()[1] == "(":
                self._labels()

    def _labels(self) -> None:
        self.expect("(")
        while self.accept(")") is None:
            kind, text = self.take()
            if kind == "end":
                raise ValueError("a list of labels does not end")
            if kind != "name" and text != ",":
                raise ValueError(f"unexpected {text!r} in a list of labels")

    def unary(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("is nested too deeply to be read")
        try:
            if self.accept("-"):
                return Minus(self.binary(len(_PRECEDENCE) - 1))
            if self.accept("+"):
                return self.binary(len(_PRECEDENCE) - 1)
            return self._with_range(self._primary())
        finally:
            self._depth -= 1

    def _primary(self) -> Node:
        kind, text = self.take()
        if kind == "number" or (kind == "name" and text.lower() in ("inf", "nan")):
            return Number(text)
        if kind == "text":
            return Text(text[1:-1])
        if text == "(":
            inner = self.binary(0)
            self.expect(")")
            return inner
        if text == "{":
            return Selector("", self._matchers())
        if kind != "name":
            raise ValueError(f"unexpected {text!r}")
        if text.lower() in _AGGREGATIONS and self.peek()[1].lower() in ("(", "by", "without"):
            return self._aggregation(text.lower())
        if self.peek()[1] == "(":
            return Call(text, self._arguments())
        return Selector(text, self._matchers() if self.accept("{") else ())

    def _aggregation(self, name: str) -> Node:
        if self.accept("by", "without"):
            self._labels()
        arguments = self._arguments()
        if self.accept("by", "without"):
            self._labels()
        return Call(name, arguments, aggregates=True)

    def _arguments(self) -> tuple[Node, ...]:
        self.expect("(")
        found: list[Node] = []
        while self.accept(")") is None:
            found.append(self.binary(0))
            if self.accept(",") is None and self.peek()[1] != ")":
                raise ValueError(f"expected ')' before {self.peek()[1]!r}")
        return tuple(found)

    def _matchers(self) -> tuple[tuple[str, str, str], ...]:
        found = []
        while self.accept("}") is None:
            kind, label = self.take()
            _, operator = self.take()
            value_kind, value = self.take()
            if kind != "name" or operator not in ("=", "!=", "=~", "!~") or value_kind != "text":
                raise ValueError(f"{label} {operator} {value} is no label matcher")
            found.append((label, operator, value[1:-1]))
            self.accept(",")
        return tuple(found)

    def _with_range(self, node: Node) -> Node:
        """Skips ``[5m]``, ``[1h:1m]``, ``offset -5m`` and ``@ …``, which change no answer that is asked for here."""
        while True:
            if self.accept("["):
                while self.accept("]") is None:
                    if self.take()[0] == "end":
                        raise ValueError("a range does not end")
            elif self.accept("offset"):
                self.accept("-")
                self.take()
            elif self.accept("@"):
                self.accept("-")
                if self.take()[0] == "name":
                    self._arguments()
            else:
                return node
