"""Which series an expression asks for: enough of PromQL's grammar to check names, labels and windows.

Floor 2: pure. It does not judge whether the expression is right; promtool does that in the tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<window>\[[^\]]*\])
    | (?P<word>[a-zA-Z_:$][a-zA-Z0-9_:$]*)
    | (?P<number>[0-9.]+(?:[eE][-+]?[0-9]+)?[a-z]*)
    | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){},=<>@])
    )""",
    re.VERBOSE,
)
_GROUPING = ("by", "without", "on", "ignoring", "group_left", "group_right")
_OTHER_WORDS = ("and", "or", "unless", "bool", "offset", "atan2", "inf", "nan")


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    how: str
    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """``window`` is the inside of the brackets behind it, or ''. ``inside`` are the functions and aggregations around
    it, from the outermost; a mere bracket is ''.
    """

    name: str
    matchers: tuple[Matcher, ...]
    window: str
    inside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scanned:
    """``grouped`` are all labels named by ``by``, ``on`` and the like."""

    selectors: tuple[Selector, ...]
    grouped: frozenset[str]


def scan(expression: str) -> Scanned:
    """What the expression selects. ValueError where a character belongs to no token."""
    tokens = _tokens(expression)
    selectors: list[Selector] = []
    grouped: set[str] = set()
    inside: list[str] = []
    aggregation = ""
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if kind == "word" and text in _GROUPING and following == "(":
            end = _closing(tokens, at + 1, ")")
            grouped |= {word for sort, word in tokens[at + 2 : end] if sort == "word"}
            at = end + 1
            continue
        if text == "(":
            before = tokens[at - 1] if at else ("", "")
            inside.append(before[1] if before[0] == "word" else aggregation)
            aggregation = ""
        elif text == ")" and inside:
            inside.pop()
        elif kind == "word" and following in _GROUPING:
            aggregation = text
        elif kind == "word" and following != "(" and text not in (*_GROUPING, *_OTHER_WORDS):
            at, selector = _selector(tokens, at, tuple(inside))
            selectors.append(selector)
            continue
        at += 1
    return Scanned(tuple(selectors), frozenset(grouped))


def _tokens(expression: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    text = expression.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot be read from {text[at : at + 20]!r} on")
        kind = match.lastgroup or ""
        found.append((kind, match[kind]))
        at = match.end()
    return found


def _closing(tokens: Sequence[tuple[str, str]], at: int, sign: str) -> int:
    while at < len(tokens) and tokens[at][1] != sign:
        at += 1
    if at == len(tokens):
        raise ValueError(f"{sign} is missing")
    return at


def _selector(tokens: Sequence[tuple[str, str]], at: int, inside: tuple[str, ...]) -> tuple[int, Selector]:
    """The selector whose name is at ``at``, and the place after it."""
    name, matchers, window = tokens[at][1], [], ""
    at += 1
    if at < len(tokens) and tokens[at][1] == "{":
        end = _closing(tokens, at, "}")
        words = tokens[at + 1 : end]
        for place, (_, sign) in enumerate(words):
            if sign in ("=", "!=", "=~", "!~") and 0 < place < len(words) - 1:
                matchers.append(Matcher(words[place - 1][1], sign, words[place + 1][1][1:-1]))
        at = end + 1
    if at < len(tokens) and tokens[at][0] == "window":
        window = tokens[at][1][1:-1]
        at += 1
    return at, Selector(name, tuple(matchers), window, inside)
