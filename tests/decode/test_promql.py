"""The reader of PromQL: what it must read, what it must refuse, and that it never does anything but those two."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools import require_tool
from ufwatch.decode.promql import Binary, Call, Minus, Node, Number, Selector, metrics, parse

READ: list[tuple[str, Node]] = [
    ("up", Selector("up")),
    ('up{job="a",x!~"b|c",}', Selector("up", (("job", "=", "a"), ("x", "!~", "b|c")))),
    ('{__name__="up"}', Selector("", (("__name__", "=", "up"),))),
    ("rate(x_total[5m])", Call("rate", (Selector("x_total"),))),
    ("sum by (a, b) (x)", Call("sum", (Selector("x"),), aggregates=True)),
    ("sum(x) without (a)", Call("sum", (Selector("x"),), aggregates=True)),
    ("topk(3, x)", Call("topk", (Number("3"), Selector("x")), aggregates=True)),
    ("1 + 2 * 3", Binary("+", Number("1"), Binary("*", Number("2"), Number("3")))),
    ("2 ^ 3 ^ 2", Binary("^", Number("2"), Binary("^", Number("3"), Number("2")))),
    ("a - b - c", Binary("-", Binary("-", Selector("a"), Selector("b")), Selector("c"))),
    ("a > bool 1", Binary(">", Selector("a"), Number("1"), as_bool=True)),
    (
        "a > 1 and b or c",
        Binary("or", Binary("and", Binary(">", Selector("a"), Number("1")), Selector("b")), Selector("c")),
    ),
    ("a / on (x) group_left (y) b", Binary("/", Selector("a"), Selector("b"))),
    ("a * ignoring(x) group_right b", Binary("*", Selector("a"), Selector("b"))),
    ("-a ^ 2", Minus(Binary("^", Selector("a"), Number("2")))),
    ("max_over_time((a > 1)[1h:5m] offset -5m)", Call("max_over_time", (Binary(">", Selector("a"), Number("1")),))),
    ("a offset 5m @ 160 == b @ end()", Binary("==", Selector("a"), Selector("b"))),
    ("level:metric:sum # a comment\n> 1e-3", Binary(">", Selector("level:metric:sum"), Number("1e-3"))),
    ("time()", Call("time", ())),
    ("NaN", Number("NaN")),
    ("a unless b{x='y'}", Binary("unless", Selector("a"), Selector("b", (("x", "=", "y"),)))),
]
REFUSED = ["", "a >", "(a", "a)", "rate(x[5m)", "sum by (a (x)", "a b", "1 ? 2", "{a}", 'x{a="b"', "a and", "(" * 500]


@pytest.mark.parametrize(("expression", "tree"), READ, ids=[one for one, _ in READ])
def test_reads(expression: str, tree: Node) -> None:
    assert parse(expression) == tree


def test_promtool_reads_them_too(tmp_path: Path) -> None:
    rules = [{"record": f"a:b:c{n}", "expr": expression} for n, (expression, _) in enumerate(READ)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "a", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(
        [require_tool("promtool"), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("expression", REFUSED)
def test_refuses(expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(expression)


def test_names_metrics() -> None:
    assert metrics(parse('sum(a) / b{x="y"} > on() c offset 5m or {__name__="d"}')) == {"a", "b", "c", "d"}


@given(st.text(alphabet="ab(){}[]<>=!~\"',.:@+-*/%^ 15m\n#", max_size=60))
@settings(max_examples=300, deadline=None)
def test_anything_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse(text)
