"""Standard deviation from buckets: is the truth always inside, how far off is the estimate, what does it cost?

Run ``python -m tests.performance.spread``. The last line is JSON:

- ``outside``: windows whose true standard deviation lies outside the bounds (must be 0), of ``windows``;
- ``mean_error``, ``max_error``: of ``sqrt(low * high)`` against the truth over the shapes, bounds added up per scrape;
- ``verdicts_wrong``: of ``verdicts`` windows with a truth more than 10 % away from 60 ms, those put on its wrong side;
- ``us``: CPU microseconds of one call on a busy window of 20 buckets, ``us_full`` with every bucket occupied.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from ufwatch.core.spread import second_moment_bounds, std_dev

# vLLM's edges of inter_token_latency_seconds.
EDGES = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, math.inf),
)
Draw = Callable[[random.Random], float]


def normal(mean: float, deviation: float) -> Draw:
    return lambda rnd: max(1e-4, rnd.gauss(mean, deviation))


def log_normal(mean: float, deviation: float) -> Draw:
    variance = math.log(1.0 + (deviation / mean) ** 2)
    return lambda rnd: rnd.lognormvariate(math.log(mean) - variance / 2.0, math.sqrt(variance))


def either(usual: Draw, rare: Draw, share: float) -> Draw:
    return lambda rnd: rare(rnd) if rnd.random() < share else usual(rnd)


def constant(value: float) -> Draw:
    return lambda _: value


SHAPES: Mapping[str, Draw] = {
    "normal 40 ± 10": normal(0.040, 0.010),
    "normal 40 ± 5": normal(0.040, 0.005),
    "normal 20 ± 3": normal(0.020, 0.003),
    "normal 60 ± 15": normal(0.060, 0.015),
    "log-normal 40 sd 10": log_normal(0.040, 0.010),
    "log-normal 40 sd 40": log_normal(0.040, 0.040),
    "log-normal 50 sd 60": log_normal(0.050, 0.060),
    "log-normal 50 sd 90": log_normal(0.050, 0.090),
    "bimodal 40/200 95:5": either(normal(0.040, 0.004), normal(0.200, 0.020), 0.05),
    "bimodal 40/200 85:15": either(normal(0.040, 0.004), normal(0.200, 0.020), 0.15),
    "bimodal 30/400 98:2": either(normal(0.030, 0.004), normal(0.400, 0.040), 0.02),
    "decode 25 + 5 % stalls": either(normal(0.025, 0.003), lambda rnd: 0.025 + rnd.expovariate(1 / 0.150), 0.05),
    "gamma mean 50": lambda rnd: rnd.gammavariate(4.0, 0.0125),
    "exponential mean 50": lambda rnd: max(1e-4, rnd.expovariate(20.0)),
    "uniform 10-90": lambda rnd: rnd.uniform(0.010, 0.090),
    "0.1 % stalls of 3 s": either(normal(0.030, 0.004), constant(3.0), 0.001),
    "one outlier of 100 s": normal(0.030, 0.004),
}
"""The seventeen whose error counts. A constant has no deviation to be off from: only its bounds are tested."""
VERDICT_SHAPES = (
    "log-normal 40 sd 40",
    "log-normal 50 sd 60",
    "bimodal 40/200 85:15",
    "bimodal 30/400 98:2",
    "decode 25 + 5 % stalls",
    "exponential mean 50",
)


def bounds(scrapes: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the bounds of the standard deviation over several scrapes, each with its own buckets and sum."""
    n, total, low, high = 0, 0.0, 0.0, 0.0
    for observations in scrapes:
        counts = [0.0] * len(EDGES)
        for observation in observations:
            counts[bisect_left(EDGES, observation)] += 1.0
        least, greatest = second_moment_bounds(EDGES, counts, math.fsum(observations))
        n, total = n + len(observations), total + math.fsum(observations)
        low, high = low + least, high + greatest
    deviations = std_dev(n, total, low), std_dev(n, total, high)
    assert deviations[0] is not None
    assert deviations[1] is not None
    return deviations[0], deviations[1]


def cut(observations: Sequence[float], scrapes: int) -> list[Sequence[float]]:
    size = max(1, math.ceil(len(observations) / scrapes))
    return [observations[at : at + size] for at in range(0, len(observations), size)]


def main() -> None:
    outside = windows = 0
    errors: dict[str, float] = {}

    def judge(observations: Sequence[float], scrapes: int) -> tuple[float, float]:
        """Return truth and estimate; counts a truth that lies outside."""
        nonlocal outside, windows
        truth = statistics.pstdev(observations)
        low, high = bounds(cut(observations, scrapes))
        # Rounding in the sums of squares, which a deviation near zero magnifies.
        slack = 1e-9 + 1e-7 * max(observations)
        windows += 1
        outside += not low - slack <= truth <= high + slack
        return truth, math.sqrt(low * high)

    for name, draw in {"constant 45": constant(0.045), **SHAPES}.items():
        pairs = []
        for seed in range(3):
            rnd = random.Random(seed)
            observations = [draw(rnd) for _ in range(5000)]
            if name == "one outlier of 100 s":
                observations[0] = 100.0
            pairs.append(judge(observations, 60))
        if name in SHAPES:
            errors[name] = statistics.mean(abs(estimate / truth - 1.0) for truth, estimate in pairs)

    rnd = random.Random(7)
    draws = list(SHAPES.values())
    for _ in range(3000):
        draw, scale = rnd.choice(draws), 10.0 ** rnd.uniform(-2.0, 3.0)
        observations = [scale * draw(rnd) for _ in range(rnd.choice((1, 2, 5, 20, 100, 300)))]
        if rnd.random() < 0.2:
            observations[0] = rnd.uniform(80.0, 5000.0)  # over the last finite edge
        judge(observations, rnd.choice((1, 2, 10)))

    verdicts = wrong = 0
    for _ in range(2000):
        draw, scale = SHAPES[rnd.choice(VERDICT_SHAPES)], rnd.uniform(0.5, 2.2)
        truth, estimate = judge([scale * draw(rnd) for _ in range(400)], 4)
        if abs(truth / 0.060 - 1.0) > 0.10:
            verdicts += 1
            wrong += (truth > 0.060) != (estimate > 0.060)

    counts = [0.0] * len(EDGES)
    for _ in range(3000):
        counts[bisect_left(EDGES, SHAPES["decode 25 + 5 % stalls"](rnd))] += 1.0
    print(
        json.dumps(
            {
                "outside": outside,
                "windows": windows,
                "mean_error": round(statistics.mean(errors.values()), 4),
                "max_error": round(max(errors.values()), 4),
                "worst_shape": max(errors, key=errors.__getitem__),
                "verdicts_wrong": wrong,
                "verdicts": verdicts,
                "us": round(cost(counts, 97.5), 2),
                "us_full": round(cost([100.0] * len(EDGES), 30_000.0), 2),
            }
        )
    )


def cost(counts: Sequence[float], total: float) -> float:
    """Return CPU microseconds a call, the median of nine rounds."""
    rounds = []
    for _ in range(9):
        began = time.process_time()
        for _ in range(1000):
            second_moment_bounds(EDGES, counts, total)
        rounds.append((time.process_time() - began) * 1e3)
    return statistics.median(rounds)


if __name__ == "__main__":
    main()
