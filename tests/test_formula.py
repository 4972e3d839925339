"""A formula read live and read by Prometheus is the same number, on random counters with resets, over full windows."""

from __future__ import annotations

import json
import random
import subprocess
from array import array
from pathlib import Path

import pytest

from tests.tools import require_tool
from ufwatch import catalogue
from ufwatch.core.window import History, Span
from ufwatch.formula import Formula, GeometricMean, Minus, Rate, Ratio, StdDev, counters_of, evaluate, promql

STEP, WINDOW, SAMPLES = 5, 60, 61
FORMULAS = [
    *dict.fromkeys(
        formula
        for signal in catalogue.SIGNALS
        for provider in signal.providers
        for formula in (provider.formula, provider.low, provider.high)
        if formula is not None and counters_of(formula)
    )
]


def _series(random_: random.Random) -> list[float]:
    """A counter that grows by whole numbers and falls to a small one now and then."""
    value, values = 0.0, []
    for _ in range(SAMPLES):
        value = float(random_.randint(0, 5)) if random_.random() < 0.05 else value + random_.randint(0, 1000)
        values.append(value)
    return values


def _folded(values: list[float]) -> list[float]:
    """The same counter as the agent keeps it: after a fall it goes on from where it was."""
    total, folded, before = 0.0, [], values[0]
    for value in values:
        total += value - before if value >= before else value
        before = value
        folded.append(total)
    return folded


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: type(formula).__name__)
def test_live_and_promql_agree(formula: Formula, tmp_path: Path) -> None:
    promtool = require_tool("promtool")
    tests = []
    for seed in range(6):
        names = sorted(counters_of(formula))
        raw = {name: _series(random.Random(f"{seed}{name}")) for name in names}
        history: History[array[float]] = History(float(WINDOW), STEP / 2)
        columns = {name: place for place, name in enumerate(names)}
        folded = {name: _folded(values) for name, values in raw.items()}
        expected: dict[int, float | None] = {}
        for n in range(SAMPLES):
            history = history.push(float(n * STEP), array("d", [folded[name][n] for name in names]))
            ends = history.ends()
            if ends is not None:
                (start, first), (end, final) = ends
                expected[n * STEP] = evaluate(formula, Span(columns, end - start, first, final))
        assert len(expected) == SAMPLES - WINDOW // STEP
        expression = promql(formula, window="1m", by=("target",))
        cases: list[dict[str, object]] = []
        for at, value in list(expected.items())[::7]:
            if value is None:
                cases.append({"expr": expression, "eval_time": f"{at}s", "exp_samples": []})
                continue
            near = f"abs(({expression}) - {value!r}) <= bool {1e-9 * max(1.0, abs(value))!r}"
            cases.append({"expr": near, "eval_time": f"{at}s", "exp_samples": [{"labels": '{target="a"}', "value": 1}]})
        series = [
            {"series": f'ufwatch_{name}{{target="a"}}', "values": " ".join(map(repr, values))}
            for name, values in raw.items()
        ]
        tests.append({"interval": f"{STEP}s", "input_series": series, "promql_expr_test": cases})
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"evaluation_interval": "5s", "tests": tests}), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class _Fixed:
    """A window of given increases over ten seconds."""

    seconds = 10.0

    def __init__(self, **increases: float) -> None:
        self._increases = increases

    def increase(self, metric: str) -> float | None:
        return self._increases.get(metric)

    def last(self, metric: str) -> float | None:
        return self._increases.get(metric)


@pytest.mark.parametrize(
    ("formula", "window", "value"),
    [
        (Rate("a"), _Fixed(a=5.0), 0.5),
        (Rate("a"), _Fixed(), None),
        (Ratio(Rate("a"), Rate("b")), _Fixed(a=1.0, b=4.0), 0.25),
        (Ratio(Rate("a"), Rate("b")), _Fixed(a=1.0, b=0.0), None),
        (Ratio(Rate("a"), Rate("b")), _Fixed(b=4.0), None),
        (Ratio(Minus(Rate("a"), Rate("b")), Rate("a")), _Fixed(a=10.0, b=1.0), 0.9),
        (StdDev("n", "s", "q"), _Fixed(n=2.0, s=4.0, q=10.0), 1.0),
        (StdDev("n", "s", "q"), _Fixed(n=0.0, s=0.0, q=0.0), None),
        (StdDev("n", "s", "q"), _Fixed(n=2.0, s=4.0, q=7.999999), 0.0),
        (GeometricMean(Rate("a"), Rate("b")), _Fixed(a=10.0, b=40.0), 2.0),
    ],
)
def test_values_by_hand(formula: Formula, window: _Fixed, value: float | None) -> None:
    assert evaluate(formula, window) == (None if value is None else pytest.approx(value))
