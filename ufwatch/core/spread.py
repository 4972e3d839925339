"""What a histogram's counts and exact sum prove about spread and quantiles. Floor 2: pure arithmetic.

vLLM exports no squares, only how many observations fell between two edges and what all of them add up to. Of every set
of observations that fits those facts, take the one with the least and the one with the greatest sum of squares: the
truth lies between. Both are found exactly, without assuming a distribution. (Fitted distributions were tried: a single
stall of 100 s in 5,000 tokens makes a log-normal fit miss 98 % of the standard deviation.)

Edges are upper edges, ascending, the last infinite; observations are not negative; units pass through, squared where
squares are returned. Counts are floats, because counters are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf, isfinite, sqrt


def second_moment_bounds(edges: Sequence[float], counts: Sequence[float], total: float) -> tuple[float, float]:
    """Return the least and greatest possible sum of squares of the observations.

    ``counts`` are per bucket, not cumulative; ``total`` is the observations' sum. Sums of squares add up like counters:
    bounds summed over scrapes, each with its own total, are never wider than bounds of the summed buckets.

    Start with every observation on its bucket's lower edge. What ``total`` has beyond that, the excess, must be handed
    out by raising observations, no one further than its upper edge.

    - Least: squares are convex, so level: raise the lowest first. Buckets fill up to their upper edge from below until
      one bucket takes the rest, evenly.
    - Greatest: lift whole observations from one edge to the other, highest bucket first, since a lift from ``l`` to
      ``u`` pays ``u² − l²`` for ``u − l`` spent: ``l + u`` a unit, most at the top. (The last lift may be a fraction
      of one; it is paid at the same rate, which is never too little.) The overflow bucket has no upper edge: one
      observation takes all of the excess there, which keeps the bound finite.

    Torn scrapes are clamped: a negative count is 0; a total under all lower edges is raised to them; one over all upper
    edges is cut to them. Raises ValueError when ``total`` is not finite, for then nothing is known.
    """
    if not isfinite(total):
        raise ValueError(f"a sum of observations is finite, not {total}")
    buckets: list[tuple[float, float, float]] = []  # count, lower edge, upper edge: the occupied ones
    observed = base = base_squares = lower = 0.0
    for upper, observations in zip(edges, counts, strict=True):
        if observations > 0.0:
            buckets.append((observations, lower, upper))
            observed += observations
            base += observations * lower
            base_squares += observations * lower * lower
        lower = upper
    excess = max(0.0, total - base)
    if observed == 1.0:  # one observation is its own sum, no more than its bucket allows
        alone = min(buckets[0][1] + excess, buckets[0][2])
        return alone * alone, alone * alone

    least, left = base_squares, excess
    for observations, lower, upper in buckets:
        room = observations * (upper - lower)
        if room >= left:
            least += left * (2.0 * lower + left / observations)
            break
        least += room * (lower + upper)
        left -= room
    greatest, left = base_squares, excess
    for observations, lower, upper in reversed(buckets):
        room = observations * (upper - lower)
        if room >= left:
            greatest += left * (2.0 * lower + left if upper == inf else lower + upper)
            break
        greatest += room * (lower + upper)
        left -= room
    return least, max(least, greatest)


def std_dev(n: float, total: float, squared: float) -> float | None:
    """Return the population standard deviation of ``n`` observations; None without one, or if a sum is not finite.

    ``total`` is their sum, ``squared`` the sum of their squares. Rounding can make the variance of equal observations
    slightly negative: that is 0.
    """
    if not n >= 1.0:
        return None
    mean = total / n
    variance = squared / n - mean * mean
    return sqrt(max(0.0, variance)) if isfinite(variance) else None


def occupied(counts: Sequence[float]) -> int:
    """Return how many buckets hold an observation; with one only, the low bound of the spread says nothing."""
    return sum(count > 0.0 for count in counts)


def quantile_edges(edges: Sequence[float], cumulative: Sequence[float], q: float) -> tuple[float | None, float | None]:
    """Return the two edges between which the quantile ``q`` (0–1) lies. Never interpolated: nothing more is known.

    The quantile is the smallest observation that at least ``q·n`` observations do not exceed, so it lies in the first
    bucket whose cumulative count reaches ``q·n``. Under the lowest edge low is 0; over the highest finite edge high is
    None; without observations both are None.
    """
    n = cumulative[-1] if cumulative else 0.0
    if not n > 0.0:
        return None, None
    # 0.07 * 100 is 7.000000000000001: a product of rounding must not push an exact rank into the next bucket.
    rank = q * n * (1.0 - 1e-12)
    at = bisect_left(cumulative, max(rank, 5e-324))  # the least number above 0: a bucket must hold something
    upper = edges[at]
    return edges[at - 1] if at else 0.0, None if upper == inf else upper
