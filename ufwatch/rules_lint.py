"""Faults of people's own rule files that promtool accepts: what would page for nothing, or never. Floor 3.

Each finding names the rule and what to write instead. The rules behind them: an alert is a comparison; a label that
holds the value makes a new alert of every evaluation; 0/0 is NaN, which compares false, so an idle service is never
judged; without ``for`` a single odd sample pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ufwatch import document
from ufwatch.catalogue import FAMILY
from ufwatch.configschema import shown
from ufwatch.decode.promql import COMPARISONS, Binary, Call, Minus, Node, Number, metrics, parse, walk
from ufwatch.errors import ConfigError
from ufwatch.spec import PREFIX

_RATES = frozenset({"rate", "irate", "increase", "delta", "idelta", "deriv", "count_over_time", "sum_over_time"})
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
    for number, group in enumerate(groups):
        rules = group.get("rules") if isinstance(group, Mapping) else None
        if not isinstance(rules, list):
            raise ConfigError(where, [f"{path}[{number}]: has no list of rules; write rules: []"])
        for index, rule in enumerate(rules):
            at = f"{path}[{number}].rules[{index}]"
            if not isinstance(rule, Mapping):
                raise ConfigError(where, [f"{at}: is no rule; write alert: or record: with expr:"])
            line = lines.get(f"{at}.alert") or lines.get(f"{at}.record") or lines.get(f"{at}.expr") or lines.get(at)
            for fault, advice in _faults(rule):
                name = rule.get("alert") or rule.get("record") or at
                yield Finding(str(name), fault, advice, line)


def _faults(rule: Mapping[str, object]) -> Iterator[tuple[str, str]]:
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
        if metric.startswith(PREFIX) and metric.removeprefix(PREFIX) not in FAMILY:
            yield f"unknown metric {shown(metric)}", "ufwatch exports no such family; see its /metrics page"
    if "alert" not in rule:
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
    zero = (None, "", "0", "0s", "0m", 0)
    return rule.get("for") not in zero or (rule.get("for") is not None and rule.get("keep_firing_for") not in zero)


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
    """Every divisor made of rates that may be 0, as PromQL; one compared with a number anywhere in the rule is not."""
    guarded = {
        part.left
        for part in walk(tree)
        if isinstance(part, Binary) and part.operator in (">", ">=", "!=") and isinstance(part.right, Number)
    }
    return [
        _text(part.right)
        for part in walk(tree)
        if isinstance(part, Binary) and part.operator == "/" and part.right not in guarded and _may_idle(part.right)
    ]


def _may_idle(node: Node) -> bool:
    """Made of rates, and not itself filtered."""
    return not compares(node) and any(isinstance(part, Call) and part.function in _RATES for part in walk(node))


def _text(node: Node) -> str:
    """The divisor in short: its outermost call and its metrics, for a message."""
    named = ", ".join(sorted(metrics(node)))
    outer = next((part.function for part in walk(node) if isinstance(part, Call)), "")
    return f"{outer}(… {named} …)" if named else outer
