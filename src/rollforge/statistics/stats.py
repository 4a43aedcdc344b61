"""Summaries of rewards: over all values, per group, as histograms, as variance components.

Every function is pure: arrays in, numbers out. NaN is a missing value: it is skipped and counted, never treated as zero. Grouped
values are sorted by group; `starts` holds the index at which each group begins.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollforge.runtime.native import load_native

_native = load_native("rollforge._groups")
IS_COMPILED = _native is not None
"""Whether the compiled module is installed; without it numpy computes the same, more slowly."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The distinct values, ascending; faster than `np.unique`, which first imports numpy's masked arrays."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def first_positions(values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """The distinct values, ascending, and the index of the first occurrence of each."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(values)]
    return ordered[is_first], order[is_first]


class Summary(NamedTuple):
    """One field over some rollouts. Undefined numbers (no values, or the spread of one value) are None."""

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
    present_values = _only(all_values, ~np.isnan(all_values))
    n = len(present_values)
    if n == 0:
        return Summary(0, len(all_values), None, None, None, None, None)
    low, high = float(present_values.min()), float(present_values.max())
    missing = len(all_values) - n
    if low == high and math.isfinite(low):  # exactly, as in `_exact`
        return Summary(n, missing, low, 0.0 if n > 1 else None, low, high, low)
    mean = float(present_values.mean())
    gaps = present_values - mean
    return Summary(
        n=n,
        missing=missing,
        mean=mean,
        std=math.sqrt(float(np.dot(gaps, gaps)) / (n - 1)) if n > 1 else None,
        min=low,
        max=high,
        median=median(present_values),
    )


def _only(values: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """The selected values, without a copy if all are selected."""
    return values if chosen.all() else values[chosen]


def median(values: Floats | Ints) -> float:
    """The median of values without NaN; faster than numpy's, which first imports its masked arrays."""
    middle = len(values) // 2
    parted = np.partition(values, middle)  # partitioning around two places takes five times as long
    high = float(parted[middle])
    return high if len(values) % 2 else (float(parted[:middle].max()) + high) / 2


class GroupSummaries(NamedTuple):
    """Statistics of every group at once; NaN where a group has no value (or, for `std`, fewer than two)."""

    n: Ints
    mean: Floats
    std: Floats
    min: Floats
    max: Floats
    median: Floats


def summarize_groups(values: Floats, starts: Ints) -> GroupSummaries:
    """Per-group statistics of values sorted by group; `starts` holds the first index of each group."""
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
"""Up to this many groups, a loop is faster than vectorised code."""

MOST_PADDING = 2
"""Groups of unequal sizes are padded to a table, which is faster, if the table has at most this many times their values."""


def _few_groups(summaries: list[Summary]) -> GroupSummaries:
    columns = {
        name: np.array([getattr(one, name) for one in summaries], dtype=np.float64)
        for name in ("mean", "std", "min", "max", "median")
    }
    return GroupSummaries(np.array([one.n for one in summaries], dtype=np.int64), **columns)


def _compiled_groups(values: Floats, starts: Ints) -> GroupSummaries:
    table = np.empty((len(GroupSummaries._fields), len(starts)))
    assert _native is not None
    _native.describe(
        np.ascontiguousarray(values, dtype=np.float64), np.ascontiguousarray(starts, dtype=np.int64), table
    )
    n, *rest = table
    return GroupSummaries(n.astype(np.int64), *rest)


def _as_table(values: Floats, sizes: Ints, widest: int) -> Floats:
    """A table with one row per group, padded with NaN."""
    if len(values) == widest * len(sizes):
        return values.reshape(len(sizes), widest)
    table = np.full((len(sizes), widest), np.nan)
    table[np.arange(widest) < sizes[:, None]] = values
    return table


def _table_groups(values: Floats) -> GroupSummaries:
    """Statistics of a padded table with one row per group; NaN is padding or missing."""
    groups, size = values.shape
    missing = np.isnan(values)
    if size == 1:
        only = np.ascontiguousarray(values[:, 0])
        return GroupSummaries(
            1 - missing[:, 0].astype(np.int64), only, np.full(groups, np.nan), only, only, only
        )
    if not missing.any():
        return _whole_groups(values)
    n = size - missing.sum(axis=1)
    ordered = np.sort(values, axis=1)  # NaN comes last
    group, last = np.arange(groups), np.maximum(n - 1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _exact(np.where(missing, 0.0, values).sum(axis=1) / n, ordered[:, 0], ordered[group, last])
        gaps = np.where(missing, 0.0, values - mean[:, None])
        std = np.sqrt((gaps * gaps).sum(axis=1) / np.maximum(n - 1, 0))  # 0 / 0 of one value
    median = (ordered[group, last // 2] + ordered[group, n // 2]) / 2
    return GroupSummaries(n, mean, std, ordered[:, 0].copy(), ordered[group, last], median)


def _whole_groups(values: Floats) -> GroupSummaries:
    """Statistics of a table without NaN, twice as fast."""
    groups, size = values.shape
    ordered = np.sort(values, axis=1)
    with np.errstate(invalid="ignore"):
        mean = _exact(values.sum(axis=1) / size, ordered[:, 0], ordered[:, -1])
        gaps = values - mean[:, None]
        std = np.sqrt(np.einsum("ij,ij->i", gaps, gaps) / (size - 1))
    median = (ordered[:, (size - 1) // 2] + ordered[:, size // 2]) / 2
    return GroupSummaries(
        np.full(groups, size), mean, std, ordered[:, 0].copy(), ordered[:, -1].copy(), median
    )


def _exact(means: Floats, lows: Floats, highs: Floats) -> Floats:
    """The means, corrected to be exact if all values are equal, so that the deviation is 0."""
    return np.where(lows == highs, lows, means)


def _ragged_groups(values: Floats, sizes: Ints) -> GroupSummaries:
    """Statistics of groups of very unequal sizes, for which a padded table would be wasteful."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    has_value = ~np.isnan(values)
    values, group = values[has_value], group[has_value]
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
            std[filled] = np.sqrt(spread / (counts - 1))  # 0 / 0 of one value
    return GroupSummaries(n, mean, std, low, high, median)


LARGEST = float(np.finfo(np.float64).max)


class Histogram(NamedTuple):
    """Counts between edges; each bin includes its lower edge, the last bin also its upper edge."""

    edges: list[float]
    counts: list[int]


def histogram(values: ArrayLike, bins: int = 10) -> Histogram:
    """Histogram of non-missing values: tenths of [0, 1] if they lie in it, else equal bins from minimum to maximum."""
    finite_values = np.asarray(values, dtype=np.float64).ravel()
    finite_values = _only(finite_values, np.isfinite(finite_values))
    if not len(finite_values):
        return Histogram([], [])
    return histogram_between(float(finite_values.min()), float(finite_values.max()), finite_values, bins)


def histogram_between(low: float, high: float, values: Floats, bins: int = 10) -> Histogram:
    """Histogram of values whose minimum and maximum are `low` and `high`; NaN is ignored."""
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif high / 2 - low / 2 <= 1e-9 * max(abs(low), abs(high)):  # all the same, but for float noise
        pad = max(0.5, abs(low) / 1000)
        low, high = max(low - pad, -LARGEST), min(high + pad, LARGEST)
    steps = np.arange(bins + 1) / bins
    # In halves: the whole width of very large numbers overflows.
    edges = [float(f"{2 * edge:.12g}") for edge in (low / 2 * (1 - steps) + high / 2 * steps).tolist()]
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    below = _count_below(values, [*edges[1:-1], math.inf])
    return Histogram(edges, [more - fewer for fewer, more in pairwise([0, *below])])


def _count_below(values: Floats, edges: list[float]) -> list[int]:
    if IS_COMPILED:
        assert _native is not None
        return list(_native.count_below(np.ascontiguousarray(values), np.array(edges)))
    return [int(np.count_nonzero(values < edge)) for edge in edges]


class Variance(NamedTuple):
    """Variance components between and within groups."""

    between: float | None
    """Variance of the true group means: the variance of the observed means minus the sampling noise."""
    within: float | None
    """Pooled sample variance inside groups with at least two values."""
    intraclass: float | None
    """Intraclass correlation: 1 means that all samples of a task agree."""


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
