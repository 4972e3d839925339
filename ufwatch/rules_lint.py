"""Faults of people's own rule files that promtool accepts: what would page for nothing, or never. Floor 3.

Each finding names the rule and what to write instead. The rules behind them: an alert is a comparison; a label that
holds the value makes a new alert of every evaluation; 0/0 is NaN, which compares false, so an idle service is never
judged; without ``for`` a single odd sample pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ufwatch import document
from ufwatch.catalogue import SERIES
from ufwatch.configschema import shown
from ufwatch.decode.promql import COMPARISONS, Binary, Call, Minus, Node, Number, metrics, parse, walk
from ufwatch.errors import ConfigError
from ufwatch.spec import PREFIX

_RATES = frozenset({"rate", "irate", "increase", "delta", "idelta", "deriv", "sum_over_time"})
_NEVER_ZERO = frozenset({"count", "count_over_time", "group"})
"""Of nothing they are nothing, and so no divisor."""
_MIRRORED = {"<": ">", "<=": ">=", "!=": "!=", ">": "<", ">=": "<=", "==": "=="}
_VALUE_WORDS = ("$value", ".Value")
_ABSENT = frozenset({"absent", "absent_over_time"})


class Finding(NamedTuple):
    """One fault of one rule. ``fault`` is the same for every rule that has it."""

    rule: str
    fault: str
    advice: str
    line: int | None


def lint_file(path: Path) -> tuple[Finding, ...]:
    """Findings in the order of the file. ConfigError when it cannot be read or is no rule file."""
    where = str(path)
    found = document.parse(document.read_text(path), where)
    if found.mistakes:
        raise ConfigError(where, found.mistakes)
    return tuple(_lint(found.value, found.lines, where))


def _lint(value: object, lines: Mapping[str, int], where: str) -> Iterator[Finding]:
    holder, path = value, "groups"
    if isinstance(value, Mapping) and value.get("kind") == "PrometheusRule":
        holder, path = value.get("spec"), "spec.groups"
    groups = holder.get("groups") if isinstance(holder, Mapping) else None
    if not isinstance(groups, list):
        raise ConfigError(where, ['is no rule file; it begins with "groups:", or is a PrometheusRule'])
    recorded = frozenset(
        rule["record"]
        for group in groups
        if isinstance(group, Mapping) and isinstance(group.get("rules"), list)
        for rule in group["rules"]
        if isinstance(rule, Mapping) and isinstance(rule.get("record"), str)
    )
    for number, group in enumerate(groups):
        rules = group.get("rules") if isinstance(group, Mapping) else None
        if not isinstance(rules, list):
            raise ConfigError(where, [f"{path}[{number}]: has no list of rules; write rules: []"])
        for index, rule in enumerate(rules):
            at = f"{path}[{number}].rules[{index}]"
            if not isinstance(rule, Mapping):
                raise ConfigError(where, [f"{at}: is no rule; write alert: or record: with expr:"])
            line = lines.get(f"{at}.alert") or lines.get(f"{at}.record") or lines.get(f"{at}.expr") or lines.get(at)
            for fault, advice in _all_faults(rule, recorded):
                name = rule.get("alert") or rule.get("record") or at
                yield Finding(str(name), fault, advice, line)


def _all_faults(rule: Mapping[str, object], recorded: frozenset[str]) -> list[tuple[str, str]]:
    try:
        return list(_faults(rule, recorded))
    except RecursionError:  # of hundreds of terms each holds the rest of them
        return [("expression that cannot be read: has too many terms", "promtool check rules says more")]


def _faults(rule: Mapping[str, object], recorded: frozenset[str]) -> Iterator[tuple[str, str]]:
    expression = rule.get("expr")
    if not isinstance(expression, str | int | float) or isinstance(expression, bool) or expression == "":
        yield "no expression", "write expr:"
        return
    try:
        tree = parse(str(expression))
    except ValueError as error:
        yield f"expression that cannot be read: {error}", "promtool check rules says more"
        return
    for metric in sorted(metrics(tree)):
        # A colon is a recording rule's, which may be in another file.
        ours = metric.startswith(PREFIX) and ":" not in metric and metric not in recorded
        if ours and metric.removeprefix(PREFIX) not in SERIES:
            yield f"unknown metric {shown(metric)}", "ufwatch exports no such family; see its /metrics page"
    if "alert" not in rule or _watchdog(tree):
        return
    if not compares(tree):
        yield "expression without comparison", "it fires whenever there is data; compare it with a limit"
    labels = rule.get("labels")
    for label, text in (labels if isinstance(labels, Mapping) else {}).items():
        if isinstance(text, str) and any(word in text for word in _VALUE_WORDS):
            advice = f"label {shown(label)} changes the alert's identity; put it in an annotation"
            yield "measured value in a label", advice
    for divisor in unguarded(tree):
        yield "ratio without a guard for an idle denominator", f"divide by ({divisor} > 0), or add: and {divisor} > 0"
    if not _held(rule):
        yield "no for:", "a single odd sample pages; write for: 5m, or keep_firing_for: beside for: 0s"


def _held(rule: Mapping[str, object]) -> bool:
    """Whether the rule waits, or says on purpose that it does not: ``for: 0s`` with ``keep_firing_for``."""
    waits, stays = (bool(re.search("[1-9]", str(rule.get(key) or ""))) for key in ("for", "keep_firing_for"))
    return waits or (rule.get("for") is not None and stays)


def _watchdog(tree: Node) -> bool:
    """``vector(1)``: fires always and on purpose, so that somebody notices when it ends."""
    return isinstance(tree, Call) and tree.function == "vector" and None not in map(_constant, tree.arguments)


def compares(node: Node) -> bool:
    """Whether the expression is empty while all is well: it filters by a comparison, a set operation or ``absent``."""
    if isinstance(node, Binary):
        left, right = compares(node.left), compares(node.right)
        if node.operator in COMPARISONS:
            return not node.as_bool or left
        if node.operator == "or":
            return left and right
        if node.operator in ("/", "%", "^"):
            return left
        return node.operator == "unless" or left or right
    if isinstance(node, Call):
        return node.function in _ABSENT or any(compares(argument) for argument in node.arguments)
    return isinstance(node, Minus) and compares(node.inner)


def unguarded(tree: Node) -> list[str]:
    """Every divisor made of rates that may be 0, as PromQL; one that the rule holds to be over 0 is not."""
    guarded = {kept for part in walk(tree) if isinstance(part, Binary) and (kept := _over_zero(part)) is not None}
    return [
        _text(part.right)
        for part in walk(tree)
        if isinstance(part, Binary) and part.operator == "/" and part.right not in guarded and _may_idle(part.right)
    ]


def _over_zero(part: Binary) -> Node | None:
    """What is not 0 where ``part`` holds: ``x > 0``, ``0 < x``, ``… unless x == 0``."""
    if part.operator == "unless" and isinstance(part.right, Binary) and part.right.operator in ("==", "<="):
        compared, limit = part.right.left, _constant(part.right.right)
        return compared if limit is not None and limit >= 0 and not part.right.as_bool else None
    if part.operator not in COMPARISONS or part.as_bool:
        return None
    kept, operator, limit = part.left, part.operator, _constant(part.right)
    if limit is None:
        kept, operator, limit = part.right, _MIRRORED[part.operator], _constant(part.left)
    if limit is None:
        return None
    holds = {">": limit >= 0, ">=": limit > 0, "==": limit != 0, "!=": limit == 0}
    return kept if holds.get(operator, False) else None


def _constant(node: Node) -> float | None:
    """The value of a number, or of a few; None for what depends on data."""
    if isinstance(node, Number):
        return float(int(node.text, 16)) if node.text.lower().startswith("0x") else float(node.text)
    if isinstance(node, Minus):
        inner = _constant(node.inner)
        return None if inner is None else -inner
    if isinstance(node, Binary) and node.operator in "+-*/":
        left, right = _constant(node.left), _constant(node.right)
        if left is None or right is None or (node.operator == "/" and right == 0):
            return None
        return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[node.operator](right)
    return None


def _may_idle(node: Node) -> bool:
    """Made of rates, which may all be 0, and neither filtered nor held over 0."""
    if compares(node):
        return False
    if isinstance(node, Call):
        if node.function in _RATES:
            return True
        if node.function in _NEVER_ZERO:
            return False
        if node.function == "clamp_min" and len(node.arguments) == 2:
            least = _constant(node.arguments[1])
            if least is not None and least > 0:
                return False
        return any(map(_may_idle, node.arguments))
    if isinstance(node, Binary):
        if node.operator == "+" and any((_constant(side) or 0) > 0 for side in (node.left, node.right)):
            return False
        return _may_idle(node.left) or _may_idle(node.right)
    return isinstance(node, Minus) and _may_idle(node.inner)


def _text(node: Node) -> str:
    """The divisor in short: its outermost call and its metrics, for a message."""
    named = ", ".join(sorted(metrics(node)))
    outer = next((part.function for part in walk(node) if isinstance(part, Call)), "")
    return f"{outer}(… {named} …)" if named else outer
