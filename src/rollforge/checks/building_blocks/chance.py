"""Probabilities of patterns under chance: flat rewards, rank correlations within tasks, shifts of location.

Everything is vectorised over tasks. The functions take arrays, never a run.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rollforge.statistics.intervals import normal_quantile
from rollforge.statistics.stats import Floats, Ints

ALIKE = 0.2
"""Intraclass correlation of samples of one task, as in a run of hard tasks."""

EDGES = (0.0, 1.0, -1.0, 10.0, 100.0)
"""Ends of common reward ranges: honest rewards accumulate there, so many equal ones prove less."""


def chance_all_same(counts: Ints, rate: float, alike: float) -> float:
    """Probability that every rollout of these tasks fails when each succeeds at `rate`, with intraclass correlation `alike`.

    Tasks differ in difficulty: their success rates follow a beta law with this mean and intraclass correlation. Twenty zeros
    are then no surprise at one success in a hundred; two thousand over many tasks are.
    """
    if rate <= 0 or not counts.any():
        return 1.0
    if rate >= 1:
        return 0.0
    a, b = rate * (1 - alike) / alike, (1 - rate) * (1 - alike) / alike
    sizes, repeats = np.unique(counts[counts > 0], return_counts=True)
    log_chance = 0.0
    for size, repeat in zip(sizes.tolist(), repeats.tolist(), strict=True):
        log_chance += repeat * (
            math.lgamma(b + size) - math.lgamma(b) - math.lgamma(a + b + size) + math.lgamma(a + b)
        )
    return math.exp(max(log_chance, -700.0))


def chance_all_flat(counts: Ints, rate: float, alike: float) -> float:
    """Probability that the rollouts of each of these tasks all agree, with intraclass correlation `alike`."""
    if not 0 < rate < 1:
        return 1.0
    a, b = rate * (1 - alike) / alike, (1 - rate) * (1 - alike) / alike
    sizes, repeats = np.unique(counts[counts > 1], return_counts=True)
    log_chance = 0.0
    for size, repeat in zip(sizes.tolist(), repeats.tolist(), strict=True):
        whole = math.lgamma(a + b + size) - math.lgamma(a + b)
        lost = math.exp(math.lgamma(b + size) - math.lgamma(b) - whole)
        won = math.exp(math.lgamma(a + size) - math.lgamma(a) - whole)
        log_chance += repeat * math.log(min(lost + won, 1.0))
    return math.exp(max(log_chance, -700.0))


def chance_of_more(value: float, n: int, rate: float) -> float:
    """Chernoff bound on the probability that n draws at this rate give a share of at least `value`."""
    if n == 0 or value <= rate:
        return 1.0
    rate = min(max(rate, 1e-9), 1 - 1e-9)
    parts = [
        share * math.log(share / base) for share, base in ((value, rate), (1 - value, 1 - rate)) if share > 0
    ]
    return math.exp(-n * sum(parts))


class Correlation(NamedTuple):
    """A rank correlation within tasks, with its interval over tasks."""

    value: float
    low: float
    high: float
    tasks: int
    n: int


class Ranked:
    """Values as ranks within groups, computed once and correlated with several columns."""

    def __init__(self, values: Floats, group: Ints) -> None:
        self._values, self._is_known = values, ~np.isnan(values)
        self._group = group

    @cached_property
    def _ranks(self) -> tuple[Floats, Ints]:
        """Ranks of the non-missing values, and their groups renumbered without gaps."""
        group = _without_gaps(self._group[self._is_known])
        return _centred_ranks(self._values[self._is_known], group), group

    def correlation(self, others: Floats, *, level: float = 0.99) -> Correlation | None:
        """Spearman's correlation with other values within groups, pooled; None unless both vary within some group.

        Ranks are centred in each group, so that what differs between tasks (hard tasks need longer answers) does not count. The
        interval comes from the spread over groups.
        """
        has_both = self._is_known & ~np.isnan(others)
        if int(has_both.sum()) < 3:
            return None
        if bool((has_both == self._is_known).all()):
            ranks, group = self._ranks
        else:
            group = _without_gaps(self._group[has_both])
            ranks = _centred_ranks(self._values[has_both], group)
        return _correlation(ranks, _centred_ranks(others[has_both], group), group, level)


def rank_correlation_within(x: Floats, y: Floats, group: Ints, *, level: float = 0.99) -> Correlation | None:
    """`Ranked.correlation` for two columns that are compared only once."""
    return Ranked(x, group).correlation(y, level=level)


def _without_gaps(group: Ints) -> Ints:
    return np.asarray((np.cumsum(np.bincount(group) > 0) - 1)[group])


def _correlation(rank_x: Floats, rank_y: Floats, group: Ints, level: float) -> Correlation | None:
    products = np.bincount(group, weights=rank_x * rank_y)
    spread_x, spread_y = np.bincount(group, weights=rank_x**2), np.bincount(group, weights=rank_y**2)
    useful = (spread_x > 1e-9) & (spread_y > 1e-9)
    tasks = int(useful.sum())
    if tasks < 2:
        return None
    products, spread_x, spread_y = products[useful], spread_x[useful], spread_y[useful]
    scale = math.sqrt(float(spread_x.sum()) * float(spread_y.sum()))
    value = float(products.sum()) / scale
    # The ratio's spread over tasks, linearised: each task's product less what the pooled value explains of its own spread.
    residual = products / scale - value * 0.5 * (spread_x / spread_x.sum() + spread_y / spread_y.sum())
    error = math.sqrt(float((residual**2).sum()) * tasks / (tasks - 1))
    half = normal_quantile((1 + level) / 2) * error
    sizes = np.bincount(group)[useful]
    return Correlation(value, max(-1.0, value - half), min(1.0, value + half), tasks, int(sizes.sum()))


def _centred_ranks(values: Floats, group: Ints) -> Floats:
    """Ranks within each group (ties share a rank), centred on the group's mean rank and divided by the group's size."""
    # One number that orders by group and value sorts in a third of the time that both take.
    by_value = np.argsort(values)
    ordered = values[by_value]
    level = np.empty(len(values), dtype=np.int64)
    level[by_value] = np.cumsum(np.append(False, ordered[1:] != ordered[:-1]))
    key = group * len(values) + level
    order = np.argsort(key)
    is_new = np.append(True, np.diff(key[order]) != 0)
    block = np.cumsum(is_new) - 1
    positions = np.arange(len(values), dtype=np.float64)
    means = np.bincount(block, weights=positions) / np.bincount(block)
    ranks = np.empty(len(values))
    ranks[order] = means[block]
    counts = np.bincount(group)
    centre = np.bincount(group, weights=ranks) / np.maximum(counts, 1)
    return (ranks - centre[group]) / counts[group]


def superiority(first: Floats, second: Floats) -> float:
    """Probability of superiority: P(second > first) + P(equal) / 2; 0.5 when they do not differ."""
    if not len(first) or not len(second):
        return 0.5
    ordered = np.sort(first)
    below = np.searchsorted(ordered, second, side="left")
    equal = np.searchsorted(ordered, second, side="right") - below
    return float((below + equal / 2).mean() / len(first))


def superiority_error(first: int, second: int) -> float:
    """Standard error of `superiority` under the null hypothesis of no difference."""
    return math.sqrt((first + second + 1) / (12.0 * first * second)) if first and second else math.inf


class Stretch(NamedTuple):
    """A run of consecutive equal values."""

    start: int
    length: int
    value: float


def longest_stretches(values: Floats, most: int) -> list[Stretch]:
    """The longest runs of equal values, longest first."""
    if not len(values):
        return []
    changes = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    lengths = np.diff(np.append(changes, len(values)))
    top = np.argsort(-lengths, kind="stable")[:most]
    return [
        Stretch(int(changes[stretch]), int(lengths[stretch]), float(values[changes[stretch]]))
        for stretch in top
    ]


def best_split(values: Floats, *, edge: float = 0.05) -> tuple[int, float]:
    """The split position with the most significant difference of means, and its z score.

    Not corrected for the search: the best of n positions has a larger z than a position chosen beforehand.
    """
    n = len(values)
    margin = max(4, int(n * edge))
    if n < 4 * margin:
        return n // 2, 0.0
    sums = np.cumsum(values)
    splits = np.arange(margin, n - margin)
    before, after = sums[splits - 1] / splits, (sums[-1] - sums[splits - 1]) / (n - splits)
    between = (after - before) ** 2 * (splits / n) * (1 - splits / n)
    within = np.maximum(np.var(values) - between, 1e-12)  # the difference itself is no noise
    z = np.abs(after - before) / np.sqrt(within * (1 / splits + 1 / (n - splits)))
    best = int(z.argmax())
    return int(splits[best]), float(z[best])
