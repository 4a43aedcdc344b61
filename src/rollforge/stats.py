"""This module is arithmetic on rewards: summaries, intervals, pass@k and its kin, histograms.

Every function is pure: arrays in, numbers out, no file, no clock, no randomness without a seed. Values are floats in which NaN
means missing; a missing value is left out and counted, never taken for zero. Where the samples of one task matter together,
values come sorted by group, with `starts` naming where each group begins.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    from rollforge._groups import count_below, describe

    IS_COMPILED = True
except ImportError:  # there was no compiler at installation: numpy does the same, more slowly
    IS_COMPILED = False

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEVEL = 0.95
"""The share of intervals that hold the truth."""


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values, ascending: `np.unique`, which first loads numpy's masked arrays to see whether it was given one."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def first_places(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The distinct values, ascending, and where each of them first stands."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(values)]
    return ordered[is_first], order[is_first]


class Summary(NamedTuple):
    """One field over some rollouts. What is undefined (no value, or the spread of one) is None."""

    n: int
    missing: int
    mean: float | None
    std: float | None
    """Sample standard deviation (n − 1)."""
    min: float | None
    max: float | None
    median: float | None


def summarize(values: ArrayLike) -> Summary:
    """The summary of all values; NaN counts as missing."""
    all_values = np.asarray(values, dtype=np.float64).ravel()
    known = _only(all_values, ~np.isnan(all_values))
    n = len(known)
    if n == 0:
        return Summary(0, len(all_values), None, None, None, None, None)
    low, high = float(known.min()), float(known.max())
    mean = float(known.mean()) if low < high else low  # exactly, as in `_exact`
    gaps = known - mean
    return Summary(
        n=n,
        missing=len(all_values) - n,
        mean=mean,
        std=math.sqrt(float(np.dot(gaps, gaps)) / (n - 1)) if n > 1 else None,
        min=low,
        max=high,
        median=median(known),
    )


def _only(values: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """The chosen values; mostly all of them are, and copying them would take as long as all that is asked of them."""
    return values if chosen.all() else values[chosen]


def median(values: Floats | Ints) -> float:
    """As numpy's, which would load its masked arrays to look for NaN; there are none here."""
    middle = len(values) // 2
    parted = np.partition(values, middle)  # around one place: around two it takes five times as long
    high = float(parted[middle])
    return high if len(values) % 2 else (float(parted[:middle].max()) + high) / 2


class Groups(NamedTuple):
    """Statistics of every group at once; NaN where a group has no value (or, for `std`, fewer than two)."""

    n: Ints
    mean: Floats
    std: Floats
    min: Floats
    max: Floats
    median: Floats


def summarize_groups(values: Floats, starts: Ints) -> Groups:
    """Per-group statistics of values sorted by group; `starts` are the first places of the groups."""
    sizes = np.diff(np.append(starts, len(values)))
    widest = int(sizes.max(initial=0))
    if IS_COMPILED and widest != 1:
        return _compiled_groups(values, starts)
    if 0 < len(starts) <= FEW_GROUPS:
        return _few_groups([summarize(part) for part in np.split(values, starts[1:])])
    if 0 < widest * len(sizes) <= MOST_PADDING * len(values):
        return _table_groups(_as_table(values, sizes, widest))
    return _ragged_groups(values, sizes)


FEW_GROUPS = 16
"""Up to this many, one after another is faster than all at once."""

MOST_PADDING = 2
"""Groups of unlike sizes are laid out as a table when that takes at most so many times their values."""


def _few_groups(found: list[Summary]) -> Groups:
    columns = {
        name: np.array([getattr(one, name) for one in found], dtype=np.float64)
        for name in ("mean", "std", "min", "max", "median")
    }
    return Groups(np.array([one.n for one in found], dtype=np.int64), **columns)


def _compiled_groups(values: Floats, starts: Ints) -> Groups:
    found = np.empty((len(Groups._fields), len(starts)))
    describe(
        np.ascontiguousarray(values, dtype=np.float64), np.ascontiguousarray(starts, dtype=np.int64), found
    )
    n, *rest = found
    return Groups(n.astype(np.int64), *rest)


def _as_table(values: Floats, sizes: Ints, widest: int) -> Floats:
    """One row per group, NaN where it is shorter than the longest."""
    if len(values) == widest * len(sizes):
        return values.reshape(len(sizes), widest)
    table = np.full((len(sizes), widest), np.nan)
    table[np.arange(widest) < sizes[:, None]] = values
    return table


def _table_groups(values: Floats) -> Groups:
    """One row per group, of which NaN is no part: several times faster than groups that follow each other."""
    groups, size = values.shape
    missing = np.isnan(values)
    if size == 1:
        only = np.ascontiguousarray(values[:, 0])
        return Groups(1 - missing[:, 0].astype(np.int64), only, np.full(groups, np.nan), only, only, only)
    if not missing.any():
        return _whole_groups(values)
    n = size - missing.sum(axis=1)
    ordered = np.sort(values, axis=1)  # what is missing comes last
    group, last = np.arange(groups), np.maximum(n - 1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _exact(np.where(missing, 0.0, values).sum(axis=1) / n, ordered[:, 0], ordered[group, last])
        gaps = np.where(missing, 0.0, values - mean[:, None])
        std = np.sqrt((gaps * gaps).sum(axis=1) / np.where(n > 1, n - 1, np.nan))
    median = (ordered[group, last // 2] + ordered[group, n // 2]) / 2
    return Groups(n, mean, std, ordered[:, 0].copy(), ordered[group, last], median)


def _whole_groups(values: Floats) -> Groups:
    """The same of a table without a gap: in half the time."""
    groups, size = values.shape
    ordered = np.sort(values, axis=1)
    with np.errstate(invalid="ignore"):
        mean = _exact(values.sum(axis=1) / size, ordered[:, 0], ordered[:, -1])
        gaps = values - mean[:, None]
        std = np.sqrt(np.einsum("ij,ij->i", gaps, gaps) / (size - 1))
    median = (ordered[:, (size - 1) // 2] + ordered[:, size // 2]) / 2
    return Groups(np.full(groups, size), mean, std, ordered[:, 0].copy(), ordered[:, -1].copy(), median)


def _exact(means: Floats, lows: Floats, highs: Floats) -> Floats:
    """Of equal values the mean is exactly theirs, so that their spread is none."""
    return np.where(lows == highs, lows, means)


def _ragged_groups(values: Floats, sizes: Ints) -> Groups:
    """The same for groups of very unlike sizes, which would waste a table."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    known = ~np.isnan(values)
    values, group = values[known], group[known]
    n = np.bincount(group, minlength=len(sizes)).astype(np.int64)
    filled = n > 0
    begins = (np.cumsum(n) - n)[filled]
    blank = np.full(len(sizes), np.nan)
    mean, std, low, high, median = (blank.copy() for _ in range(5))
    if len(values):
        counts = n[filled]
        order = np.lexsort((values, group))
        ordered = values[order]
        lows, highs = ordered[begins], ordered[begins + counts - 1]
        means = _exact(np.add.reduceat(values, begins) / counts, lows, highs)
        spread = np.add.reduceat((values - np.repeat(means, counts)) ** 2, begins)
        mean[filled] = means
        low[filled], high[filled] = lows, highs
        median[filled] = (ordered[begins + (counts - 1) // 2] + ordered[begins + counts // 2]) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            std[filled] = np.where(counts > 1, np.sqrt(spread / (counts - 1)), np.nan)
    return Groups(n, mean, std, low, high, median)


# Intervals


class Estimate(NamedTuple):
    """A mean and the interval around it; no interval when there is nothing to tell the spread from."""

    value: float | None
    low: float | None
    high: float | None
    groups: int

    @property
    def ci(self) -> list[float] | None:
        """The interval as two numbers."""
        return None if self.low is None or self.high is None else [self.low, self.high]


def clustered_mean(
    sums: ArrayLike, counts: ArrayLike, *, is_share: bool = False, level: float = LEVEL
) -> Estimate:
    """Mean over all values with a cluster-robust interval: the values of one group are not independent.

    The spread is measured between groups (groups − 1 degrees of freedom), so 16 samples of one task do not count as 16
    independent tasks.

    Args:
        sums: the sum of each group's values.
        counts: the number of values in each group; groups without any are left out.
        is_share: every value is 0 or 1. The interval is then Wilson's on the effective sample size, which keeps a width at
            0 and at 1 where the observed spread is zero.
    """
    totals, sizes = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    totals, sizes = totals[sizes > 0], sizes[sizes > 0]
    groups, n = len(sizes), float(sizes.sum())
    if groups == 0:
        return Estimate(None, None, None, 0)
    mean = float(totals.sum() / n)
    residuals = totals - sizes * mean
    return _clustered(mean, n, groups, float((residuals**2).sum()), is_share=is_share, level=level)


class ClusterMean:
    """Running version of `clustered_mean`, for values that arrive one at a time.

    Memory is bounded by the open groups: `close` folds a finished group into running sums. Open groups count as they are.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._is_share = True
        self._sum_by_group: dict[int, float] = {}
        self._count_by_group: dict[int, int] = {}
        self._closed = 0
        self._sums2 = self._sums_counts = self._counts2 = 0.0

    @property
    def mean(self) -> float | None:
        """The mean so far, without the cost of an interval."""
        return self.total / self.count if self.count else None

    def add(self, group: int, value: float) -> None:
        """Count one value of a group."""
        self.count += 1
        self.total += value
        self._is_share = self._is_share and value in (0.0, 1.0)
        self._sum_by_group[group] = self._sum_by_group.get(group, 0.0) + value
        self._count_by_group[group] = self._count_by_group.get(group, 0) + 1

    def close(self, group: int) -> None:
        """Fold a group into the running sums; later values of the same group would count as another group."""
        total, count = self._sum_by_group.pop(group, 0.0), self._count_by_group.pop(group, 0)
        if count:
            self._closed += 1
            self._sums2 += total * total
            self._sums_counts += total * count
            self._counts2 += count * count

    def estimate(self) -> Estimate:
        """Mean and interval so far; no interval before there are two groups."""
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
        found = self.estimate()
        return None if found.low is None or found.high is None else (found.high - found.low) / 2


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
    """Wilson's interval on the effective sample size: what the clustered variance leaves, at least 1, at most n."""
    independent = share * (1 - share) / variance if variance > 0 else float(groups)
    independent = min(max(independent, 1.0), n)
    quantile = t_quantile((1 + level) / 2, groups - 1) if groups > 1 else normal_quantile((1 + level) / 2)
    return wilson(share, independent, quantile)


def wilson(share: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's score interval for a share of n; it holds the share itself."""
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


def mean_of(values: ArrayLike, *, most: float | None = None, level: float = LEVEL) -> Estimate:
    """The mean of one value per group, with Student's interval; values that all lie in [0, 1] stay inside it.

    Args:
        most: the independent answers yes or no that shares are made of. Where nearly all groups have a share of 0 (or of 1) the
            spread of those seen says little of those that are rarer; no interval is narrower than so many answers allow.
    """
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    n = len(known)
    if n == 0:
        return Estimate(None, None, None, 0)
    mean = float(known.mean())
    is_unit = bool((known >= 0).all() and (known <= 1).all())
    if n == 1:
        return Estimate(mean, None, None, 1)
    variance = float(known.var(ddof=1)) / n
    quantile = t_quantile((1 + level) / 2, n - 1)
    if is_unit:
        independent = max(mean * (1 - mean) / variance if variance > 0 else float(n), 1.0)
        low, high = wilson(mean, independent if most is None else min(independent, most), quantile)
    else:
        low, high = mean - quantile * math.sqrt(variance), mean + quantile * math.sqrt(variance)
    return Estimate(mean, low, high, n)


FEWEST_PAIRS = 6
"""With fewer pairs nothing is shown at 95 %: all of five point the same way by chance once in sixteen times."""


def paired_difference(first: ArrayLike, second: ArrayLike, *, level: float = LEVEL) -> Estimate:
    """Mean of second − first over pairs (one per task) in which both are known.

    Pairs that all differ by the same have no spread to tell an interval from; it then says how far the mean may be off if the
    share of pairs that Wilson's interval cannot rule out differed as much as values can (and is None when no two values differ).
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
    """The standard normal quantile; `inv_cdf` is accurate to 15 decimals, and rounding there makes it the closest float."""
    return round(NormalDist().inv_cdf(p), 15)


def t_quantile(p: float, degrees: int) -> float:
    """The quantile of Student's t, by bisection on its distribution function."""
    if degrees > 10_000:
        return normal_quantile(p)
    if p >= 0.5:
        return -t_quantile(1 - p, degrees) if p > 0.5 else 0.0

    def tail(value: float) -> float:
        return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + value * value)) / 2

    low, high = 0.0, 2.0
    while tail(high) > p:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > p else (low, middle)
    return -(low + high) / 2


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


# Distributions

LARGEST = float(np.finfo(np.float64).max)


class Histogram(NamedTuple):
    """Counts between edges; every bin holds its lower edge, the last one its upper edge too."""

    edges: list[float]
    counts: list[int]


def histogram(values: ArrayLike, bins: int = 10) -> Histogram:
    """Counts of the known values: tenths of [0, 1] when they lie in it, else equal bins from the least to the greatest."""
    known = np.asarray(values, dtype=np.float64).ravel()
    known = _only(known, np.isfinite(known))
    if not len(known):
        return Histogram([], [])
    return histogram_between(float(known.min()), float(known.max()), known, bins)


def histogram_between(low: float, high: float, values: Floats, bins: int = 10) -> Histogram:
    """The same of values that lie between these two, or are NaN; both must be among them."""
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif high / 2 - low / 2 <= 1e-9 * max(abs(low), abs(high)):  # all the same, but for float noise
        pad = max(0.5, abs(low) / 1000)
        low, high = max(low - pad, -LARGEST), min(high + pad, LARGEST)
    steps = np.arange(bins + 1) / bins
    # Halves, because the whole width of numbers this large may be no number.
    edges = [float(f"{2 * edge:.12g}") for edge in (low / 2 * (1 - steps) + high / 2 * steps).tolist()]
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    below = _count_below(values, [*edges[1:-1], math.inf])
    return Histogram(edges, [more - fewer for fewer, more in pairwise([0, *below])])


def _count_below(values: Floats, edges: list[float]) -> list[int]:
    if IS_COMPILED:
        return count_below(np.ascontiguousarray(values), np.array(edges))
    return [int(np.count_nonzero(values < edge)) for edge in edges]


class Variance(NamedTuple):
    """How much of the spread is between groups and how much inside them."""

    between: float | None
    """Variance of the true group means: what is left of the spread of means once the noise of few samples is taken out."""
    within: float | None
    """Pooled sample variance inside groups with at least two values."""
    intraclass: float | None
    """Share of the whole that is between groups: 1 means that every sample of a task says the same."""


def variance_parts(means: Floats, stds: Floats, counts: Ints) -> Variance:
    """Between- and within-group variance (one-way random effects)."""
    filled = counts > 0
    means, stds, sizes = means[filled], stds[filled], counts[filled].astype(np.float64)
    groups, n = len(sizes), float(sizes.sum())
    free = n - groups
    within = float((np.nan_to_num(stds) ** 2 * (sizes - 1)).sum() / free) if free > 0 else None
    if groups < 2 or within is None:
        return Variance(None, within, None)
    grand = float((means * sizes).sum() / n)
    mean_square = float((sizes * (means - grand) ** 2).sum()) / (groups - 1)
    typical = (n - float((sizes**2).sum()) / n) / (groups - 1)
    between = max(0.0, (mean_square - within) / typical)
    whole = between + within
    return Variance(between, within, between / whole if whole > 0 else None)
