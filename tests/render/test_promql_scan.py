"""What an expression selects: names, matchers, windows, what is around them, and the labels it groups by."""

from __future__ import annotations

import pytest

from ufwatch.render.promql_scan import Matcher, Selector, scan


def _names(expression: str) -> list[str]:
    return [selector.name for selector in scan(expression).selectors]


def test_a_rate_within_an_aggregation() -> None:
    scanned = scan('max by (job, target) (rate(a_total{job=~"$job",kind!="x"}[$__rate_interval]))')
    matchers = (Matcher("job", "=~", "$job"), Matcher("kind", "!=", "x"))
    assert scanned.selectors == (Selector("a_total", matchers, "$__rate_interval", ("max", "rate")),)
    assert scanned.grouped == {"job", "target"}


def test_binary_operators_and_their_matching_are_no_series() -> None:
    scanned = scan("a / on (job) group_left (version) b > 0 unless ignoring (kind) c or d offset 5m")
    assert [selector.name for selector in scanned.selectors] == ["a", "b", "c", "d"]
    assert scanned.grouped == {"job", "version", "kind"}


def test_functions_numbers_and_times_are_no_series() -> None:
    assert _names("time() - clamp_max(a, 1e3) * 6.5 + vector(2)") == ["a"]
    assert _names("histogram_quantile(0.99, sum by (le) (rate(h_bucket[5m])))") == ["h_bucket"]


def test_a_mere_bracket_hides_nothing() -> None:
    (first, second) = scan("sum ((a) + max without (x) (b))").selectors
    assert (first.inside, second.inside) == (("sum", ""), ("sum", "max"))


def test_braces_and_commas_within_a_text_are_text() -> None:
    (selector,) = scan('a{b="x,y}{\\"z"}').selectors
    assert selector.matchers == (Matcher("b", "=", 'x,y}{\\"z'),)


@pytest.mark.parametrize("expression", ["a ; b", "a{b=1", 'a{b="x}', "sum by (a"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"missing|cannot be read"):
        scan(expression)
