"""The `@k` statistics of one task's runs: mean, std, best, worst, pass, maj.

Three estimators of best and worst of n:
- `exact` (default): the expectation over all choices of n of the task's runs, as in `rollforge metrics`; best@k
  of k runs is the best of them, and of zeros and ones it is pass@k.
- `replacement`: the expectation over n draws with replacement, in closed form: what the bootstrap of Trinity-RFT
  and verl converges to, without its noise. It is never above `exact`.
- `bootstrap42`: 1000 resamples from numpy's legacy generator seeded with 42: the peers' own numbers, digit by
  digit. It depends on the order of the runs, and uses no global random state.

A task with fewer than n runs uses those it has (the best of 3 for best@4), so that lost runs do not change keys or tasks; the
coverage reports them. Every function takes a matrix (one row per task, all with the same number of runs) and returns one number
per row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from rollforge.metrics.moments import FloatArray, exact_row_sums
from rollforge.statistics.at_k import (
    BOOTSTRAP_ROUNDS,
    BOOTSTRAP_SEED,
    best_weights,
    bootstrap_at_k,
    ladder,
    majority_at_k,
)

__all__ = ["Estimator", "best_of", "ladder", "majority_at", "pass_at", "row_means", "row_stds", "worst_of"]

Estimator = Literal["exact", "replacement", "bootstrap42"]


def row_means(rows: FloatArray) -> FloatArray:
    return np.divide(exact_row_sums(_columns(rows)), rows.shape[1])


def row_stds(rows: FloatArray, ddof: int = 0) -> FloatArray:
    """Standard deviation per row, of the population by default; NaN if undefined."""
    if rows.shape[1] <= ddof:
        return np.full(len(rows), np.nan)
    means = row_means(rows)
    squares = exact_row_sums([(column - means) ** 2 for column in _columns(rows)])
    return np.asarray(np.sqrt(squares / (rows.shape[1] - ddof)))


def best_of(rows: FloatArray, n: int, estimator: Estimator = "exact") -> FloatArray:
    """Expected best of n per row."""
    if estimator == "bootstrap42":
        return np.array([bootstrap_at_k(row, n)[0] for row in rows])
    return _weighted(np.sort(rows, axis=1), _order_weights(rows.shape[1], n, estimator))


def worst_of(rows: FloatArray, n: int, estimator: Estimator = "exact") -> FloatArray:
    """Expected worst of n per row."""
    if estimator == "bootstrap42":
        return np.array([bootstrap_at_k(row, n)[1] for row in rows])
    return _weighted(np.sort(rows, axis=1)[:, ::-1], _order_weights(rows.shape[1], n, estimator))


def pass_at(rows: FloatArray, n: int, threshold: float) -> FloatArray:
    """Unbiased pass@n per row: the probability that n of the runs contain one that reaches `threshold`."""
    return best_of((rows >= threshold).astype(np.float64), n)


def majority_at(
    values: Sequence[float], answers: Sequence[Hashable], n: int, estimator: Estimator = "exact"
) -> float:
    """Expected value of the majority answer of n runs, for one task; ties are shared."""
    match estimator:
        case "exact":
            return majority_at_k(answers, values, min(n, len(values)))
        case "bootstrap42":
            return _bootstrap_majority(values, answers, n)
        case "replacement":
            return _majority_with_replacement(values, answers, n)


def _majority_with_replacement(values: Sequence[float], answers: Sequence[Hashable], n: int) -> float:
    """Majority vote over draws with replacement, as in verl. verl gives a tie to the first answer, which by symmetry equals an
    even share.
    """
    count_by_answer = Counter(answers)
    shares = _win_shares(tuple(sorted(count_by_answer.values())), n)
    mean_by_answer = {
        answer: math.fsum(v for v, a in zip(values, answers, strict=True) if a == answer) / count
        for answer, count in count_by_answer.items()
    }
    return math.fsum(shares[count] * mean_by_answer[answer] for answer, count in count_by_answer.items())


def _columns(rows: FloatArray) -> list[FloatArray]:
    return [np.ascontiguousarray(rows[:, rank]) for rank in range(rows.shape[1])]


def _weighted(ordered: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted sum per row, added in a fixed order so that the result does not depend on the number of tasks."""
    total = np.zeros(len(ordered))
    for rank, weight in enumerate(weights.tolist()):
        if weight:
            total += weight * ordered[:, rank]
    return total


@lru_cache(maxsize=1024)
def _order_weights(runs: int, n: int, estimator: Estimator) -> FloatArray:
    """Probability that the i-th smallest of `runs` values is the largest of n drawn ones."""
    if estimator == "replacement":
        return np.array([(i**n - (i - 1) ** n) / runs**n for i in range(1, runs + 1)])
    return best_weights(runs)[:, min(n, runs) - 1]


def _bootstrap_majority(values: Sequence[float], answers: Sequence[Hashable], n: int) -> float:
    draws = np.random.RandomState(BOOTSTRAP_SEED).randint(0, len(values), size=(BOOTSTRAP_ROUNDS, n))
    picked = []
    for draw in draws.tolist():
        counts = Counter(answers[i] for i in draw)
        winner = max(counts, key=counts.__getitem__)
        picked.append(next(values[i] for i in draw if answers[i] == winner))
    return float(np.mean(picked))


@lru_cache(maxsize=4096)
def _win_shares(counts: tuple[int, ...], n: int) -> dict[int, float]:
    """For each class size, the probability that a class of that size wins the vote of n draws with replacement.

    Dynamic programming over the other classes: ways[drawn][ties] is the weighted number of ways to give them `drawn` draws such
    that none exceeds the winner's votes and `ties` equal it (multinomial, divided by its factorials).
    """
    total = sum(counts)
    shares: dict[int, float] = {}
    for size in set(counts):
        others = list(counts)
        others.remove(size)
        share = 0.0
        for votes in range(1, n + 1):
            ways = _ways(others, total, n - votes, votes)
            own = (size / total) ** votes / math.factorial(votes)
            share += own * math.fsum(weight / (ties + 1) for ties, weight in ways.items())
        shares[size] = share * math.factorial(n)
    return shares


def _ways(others: list[int], total: int, draws: int, most: int) -> dict[int, float]:
    """Ties with the winner → weight of giving exactly `draws` draws to `others`, none of them above
    `most`."""
    table: dict[tuple[int, int], float] = {(0, 0): 1.0}
    for size in others:
        grown: dict[tuple[int, int], float] = {}
        for (drawn, ties), weight in table.items():
            for votes in range(min(most, draws - drawn) + 1):
                key = (drawn + votes, ties + (votes == most))
                chance = (size / total) ** votes / math.factorial(votes)
                grown[key] = grown.get(key, 0.0) + weight * chance
        table = grown
    return {ties: weight for (drawn, ties), weight in table.items() if drawn == draws}
