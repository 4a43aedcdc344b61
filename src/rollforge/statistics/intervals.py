"""Means with intervals: cluster-robust means, Wilson's interval for shares, paired differences.

Every function is pure. NaN is a missing value: it is skipped and counted, never treated as zero. The samples of one task are not
independent, so intervals over rollouts use the variance between tasks.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rollforge.statistics.stats import Floats

LEVEL = 0.95
"""Confidence level of printed intervals."""


class Estimate(NamedTuple):
    """A mean and its interval; without interval if the variance cannot be estimated."""

    value: float | None
    low: float | None
    high: float | None
    groups: int

    @property
    def ci(self) -> list[float] | None:
        """The interval as two numbers; None without one, or if they overflow a float."""
        if self.low is None or self.high is None or not math.isfinite(self.high - self.low):
            return None
        return [self.low, self.high]


def clustered_mean(
    sums: ArrayLike,
    counts: ArrayLike,
    *,
    is_share: bool = False,
    least: float | None = None,
    level: float = LEVEL,
) -> Estimate:
    """Mean over all values with a cluster-robust interval: the values of one group are not independent.

    The spread is measured between groups (groups − 1 degrees of freedom), so 16 samples of one task do not count as 16
    independent tasks.

    Args:
        sums: the sum of each group's values.
        counts: the number of values in each group; groups without any are left out.
        is_share: every value is 0 or 1. The interval is then Wilson's on the effective sample size, which keeps a width at
            0 and at 1 where the observed spread is zero.
        least: lower bound of possible values, below which the interval does not extend (durations and counts: 0).
    """
    totals, sizes = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    totals, sizes = totals[sizes > 0], sizes[sizes > 0]
    groups, n = len(sizes), float(sizes.sum())
    if groups == 0:
        return Estimate(None, None, None, 0)
    mean = float(totals.sum() / n)
    residuals = totals - sizes * mean
    estimate = _clustered(mean, n, groups, float((residuals**2).sum()), is_share=is_share, level=level)
    if least is None or estimate.low is None:
        return estimate
    return estimate._replace(low=min(max(estimate.low, least), mean))


class ClusterMean:
    """Running version of `clustered_mean`, for values that arrive one at a time.

    Memory is bounded by the open groups: `close` folds a finished group into running sums. Open groups count as they are.

    Args:
        may_be_share: values that are all 0 or 1 are right or wrong, so that their mean is a share. Costs, tokens and durations
            that happen to be 0 or 1 are none.
    """

    def __init__(self, *, may_be_share: bool = False) -> None:
        self.count = 0
        self.total = 0.0
        self._is_share = may_be_share
        self._sum_by_group: dict[int, float] = {}
        self._count_by_group: dict[int, int] = {}
        self._closed = 0
        self._sums2 = self._sums_counts = self._counts2 = 0.0

    @property
    def mean(self) -> float | None:
        """The mean so far, without the cost of an interval."""
        return self.total / self.count if self.count else None

    def add(self, group: int, value: float) -> None:
        """Add one value of a group."""
        self.count += 1
        self.total += value
        self._is_share = self._is_share and value in (0.0, 1.0)
        self._sum_by_group[group] = self._sum_by_group.get(group, 0.0) + value
        self._count_by_group[group] = self._count_by_group.get(group, 0) + 1

    def close(self, group: int) -> None:
        """Fold a group into the running sums; later values of the same group would count as a new group."""
        total, count = self._sum_by_group.pop(group, 0.0), self._count_by_group.pop(group, 0)
        if count:
            self._closed += 1
            self._sums2 += total * total
            self._sums_counts += total * count
            self._counts2 += count * count

    def estimate(self) -> Estimate:
        """Mean and interval so far; without interval before there are two groups."""
        totals = np.array(list(self._sum_by_group.values()), dtype=np.float64)
        sizes = np.array(list(self._count_by_group.values()), dtype=np.float64)
        groups = len(sizes) + self._closed
        if not self.count:
            return Estimate(None, None, None, 0)
        if not self._closed:
            return clustered_mean(totals, sizes, is_share=self._is_share and groups > 1)
        mean = self.total / self.count
        squares = float(((totals - sizes * mean) ** 2).sum())
        squares += max(0.0, self._sums2 - 2 * mean * self._sums_counts + mean * mean * self._counts2)
        return _clustered(
            mean, float(self.count), groups, squares, is_share=self._is_share and groups > 1, level=LEVEL
        )

    def half_width(self) -> float | None:
        """Half the width of the interval; None before there are two groups."""
        estimate = self.estimate()
        return None if estimate.low is None or estimate.high is None else (estimate.high - estimate.low) / 2


def _clustered(
    mean: float, n: float, groups: int, squares: float, *, is_share: bool, level: float
) -> Estimate:
    """The interval around a mean of n values, from the squared residuals of the groups' sums."""
    if groups == 1 and not is_share:
        return Estimate(mean, None, None, 1)
    variance = squares * groups / (groups - 1) / n**2 if groups > 1 else 0.0
    if is_share:
        low, high = _share_interval(mean, variance, n, groups, level)
    else:
        half = t_quantile((1 + level) / 2, groups - 1) * math.sqrt(variance)
        low, high = mean - half, mean + half
    return Estimate(mean, low, high, groups)


def _share_interval(
    share: float, variance: float, n: float, groups: int, level: float
) -> tuple[float, float]:
    """Wilson's interval on the effective sample size n · (binomial variance / clustered variance), at least 1, at most n."""
    independent = share * (1 - share) / variance if variance > 0 else float(groups)
    independent = min(max(independent, 1.0), n)
    quantile = t_quantile((1 + level) / 2, groups - 1) if groups > 1 else normal_quantile((1 + level) / 2)
    return wilson(share, independent, quantile)


def wilson(share: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's score interval for a share of n; it always contains the share."""
    low, high = wilson_each(np.float64(share), np.float64(n), z)
    return float(low), float(high)


def wilson_each(shares: ArrayLike, counts: ArrayLike, z: float) -> tuple[Floats, Floats]:
    """Wilson's score interval for each of many shares; NaN where a share is NaN."""
    share, n = np.asarray(shares, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = (share + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and at 1 one end is the share itself, which rounding misses by 1e-17.
    return np.clip(centre - half, 0.0, share), np.clip(centre + half, share, 1.0)


def mean_of(
    values: ArrayLike, *, most: float | None = None, is_unit: bool | None = None, level: float = LEVEL
) -> Estimate:
    """Mean of one value per group, with Student's interval; for values in [0, 1] the interval stays inside.

    Args:
        most: the number of independent yes/no answers behind the shares. If nearly all groups have a share of 0 (or 1), the
            observed variance underestimates the rare others; the interval is never narrower than for that many answers.
        is_unit: whether the values are shares; by default, whether they all lie in [0, 1]. Durations never are.
    """
    present_values = np.asarray(values, dtype=np.float64)
    present_values = present_values[~np.isnan(present_values)]
    n = len(present_values)
    if n == 0:
        return Estimate(None, None, None, 0)
    mean = float(present_values.mean())
    is_positive = bool((present_values >= 0).all())
    if is_unit is None:
        is_unit = is_positive and bool((present_values <= 1).all())
    if n == 1:
        return Estimate(mean, None, None, 1)
    variance = float(present_values.var(ddof=1)) / n
    quantile = t_quantile((1 + level) / 2, n - 1)
    if is_unit:
        independent = max(mean * (1 - mean) / variance if variance > 0 else float(n), 1.0)
        low, high = wilson(mean, independent if most is None else min(independent, most), quantile)
    else:
        low, high = mean - quantile * math.sqrt(variance), mean + quantile * math.sqrt(variance)
        if is_positive:
            low = max(low, 0.0)
    return Estimate(mean, low, high, n)


FEWEST_PAIRS = 6
"""Fewest pairs for an interval: five pairs all have the same sign by chance in one of sixteen cases."""


def paired_difference(first: ArrayLike, second: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Mean of second − first over pairs (one per task) without missing values.

    If all pairs differ by the same amount, the variance is 0. The interval then assumes that the largest share of unseen pairs
    that Wilson's interval allows differs as much as values can; it is None if no two values differ.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    both = ~np.isnan(one) & ~np.isnan(two)
    one, two = one[both], two[both]
    gaps = two - one
    n = len(gaps)
    if n == 0:
        return Estimate(None, None, None, 0)
    mean = float(gaps.mean())
    if n == 1:
        return Estimate(mean, None, None, 1)
    quantile = t_quantile((1 + level) / 2, n - 1)
    spread = float(gaps.std(ddof=1))
    low, high = float(min(one.min(), two.min())), float(max(one.max(), two.max()))
    if spread > 1e-12 * max(abs(low), abs(high)):  # more than float noise
        half = quantile * spread / math.sqrt(n)
        return Estimate(mean, mean - half, mean + half, n)
    most = 1.0 if low >= 0 and high <= 1 else high - low
    if most == 0:
        return Estimate(mean, None, None, n)
    unseen = wilson(0.0, n, quantile)[1]
    return Estimate(mean, mean - unseen * (most + mean), mean + unseen * (most - mean), n)


def normal_quantile(p: float) -> float:
    """The standard normal quantile; `inv_cdf` is accurate to 15 decimals, and rounding to that gives the closest float."""
    return round(NormalDist().inv_cdf(p), 15)


MOST_STEPS = 200
"""Most steps of Newton's method, which converges earlier."""


def t_quantile(p: float, degrees: int) -> float:
    """The quantile of Student's t, by Newton's method on its distribution function.

    The upper tail is decreasing and convex, and the normal quantile is below the root: every step approaches it from below.
    """
    if degrees > 10_000:
        return normal_quantile(p)
    if p <= 0.5:
        return -t_quantile(1 - p, degrees) if p < 0.5 else 0.0
    tail = 1 - p
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    value = normal_quantile(p)
    for _ in range(MOST_STEPS):
        left = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + value * value)) / 2 - tail
        step = left / (scale * (1 + value * value / degrees) ** (-(degrees + 1) / 2))
        value += step
        if step <= 1e-15 * value:
            break
    return value


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = (
        math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
        / a
    )
    d = 1 / (1 - (a + b) * x / (a + 1))
    c, total = 1.0, d
    for m in range(1, 1000):
        change = 1.0
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            change = c * d
            total *= change
        if abs(1 - change) < 1e-15:
            break
    return front * total
