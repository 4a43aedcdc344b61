"""Statistics of k samples of a task: pass@k, pass^k, best@k, worst@k, majority@k.

Each is the exact expectation over all choices of k of the n samples of a task (without replacement), so it depends neither on the
order of the samples nor on a seed. Tasks with fewer than k samples are left out. The one exception is `bootstrap_at_k`, which
reproduces the numbers of Trinity-RFT and verl.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache, partial
from math import comb, lgamma, log, log1p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollforge.statistics.stats import Floats, Ints, distinct

AT_ONCE = 65_536
"""Groups per batch, which bounds the intermediate arrays: they are several times the size of the values."""

BOOTSTRAP_ROUNDS = 1000
BOOTSTRAP_SEED = 42


def groups_by_size(values: Floats, starts: Ints) -> Iterator[tuple[int, Ints, Floats]]:
    """Groups of equal size together: (size, group numbers, values with one ascending row per group).

    Values come sorted by group; a NaN does not count towards the size.
    """
    sizes = np.diff(np.append(starts, len(values)))
    has_value = ~np.isnan(values)
    if len(sizes) and has_value.all() and (sizes == sizes[0]).all():
        yield int(sizes[0]), np.arange(len(sizes)), np.sort(values.reshape(len(sizes), -1), axis=1)
        return
    group = np.repeat(np.arange(len(starts)), sizes)
    values, group = values[has_value], group[has_value]
    order = np.lexsort((values, group))
    values = values[order]
    counts = np.bincount(group, minlength=len(starts))
    begins = np.cumsum(counts) - counts
    for size in distinct(counts[counts > 0]).tolist():
        members = np.flatnonzero(counts == size)
        yield size, members, values[begins[members][:, None] + np.arange(size)]


@lru_cache(maxsize=256)
def best_weights(n: int) -> NDArray[np.float64]:
    """weights[i, k − 1]: probability that the i-th smallest of n is the maximum of k drawn without replacement."""
    k = np.arange(1, n + 1, dtype=np.float64)
    weights = np.zeros((n, n))
    weights[n - 1] = k / n
    for rank in range(n, 1, -1):
        weights[rank - 2] = weights[rank - 1] * np.maximum(rank - k, 0) / (rank - 1)
    return weights


class AtK(NamedTuple):
    """One value per group and k; NaN where the group has fewer than k."""

    best: Floats
    worst: Floats


def at_k(values: Floats, starts: Ints) -> AtK:
    """best@k and worst@k of every group for every k up to the largest group, as arrays [group, k − 1].

    Of values that are 0 or 1 these are pass@k (at least one of k) and pass^k (all of k).
    """
    ends = np.append(starts, len(values))
    widest = int(np.add.reduceat(~np.isnan(values), starts, dtype=np.int64).max()) if len(starts) else 0
    best, worst = np.full((len(starts), widest), np.nan), np.full((len(starts), widest), np.nan)
    for first in range(0, len(starts), AT_ONCE):
        begin, end = ends[first], ends[min(first + AT_ONCE, len(starts))]
        some = groups_by_size(values[begin:end], starts[first : first + AT_ONCE] - begin)
        for size, members, ascending in some:
            weights = best_weights(size)
            is_whole = len(members) == min(AT_ONCE, len(starts) - first)
            chosen = slice(first, first + len(members)) if is_whole else first + members
            best[chosen, :size] = ascending @ weights
            worst[chosen, :size] = ascending[:, ::-1] @ weights
    return AtK(best, worst)


def majority_at_k(answers: Sequence[Hashable | None], scores: Sequence[float], k: int) -> float:
    """Expected score of the majority answer of k samples; ties are shared equally.

    A sample without an answer can be drawn but does not vote; if no drawn sample votes, the score is that of samples without an
    answer.
    """
    ordered, blanks = _votes(answers, scores)
    shares = winning_shares(tuple(len(group) for group in ordered), len(blanks), k)
    value = sum(share * sum(group) / len(group) for share, group in zip(shares, ordered, strict=True))
    return value + _blank_score(blanks, len(scores), k)


def majority_every_k(answers: Sequence[Hashable | None], scores: Sequence[float]) -> Floats:
    """`majority_at_k` for k = 1, 2, … up to all samples, at about the cost of a single k; for at most `MOST_FOR_EVERY_K` samples."""
    ordered, blanks = _votes(answers, scores)
    shares = every_winning_share(tuple(len(rewards) for rewards in ordered), len(blanks))
    values = np.array([_blank_score(blanks, len(scores), k) for k in range(1, len(scores) + 1)])
    for share, rewards in zip(shares, ordered, strict=True):
        values += share * (sum(rewards) / len(rewards))
    within: Floats = np.clip(values, min(scores), max(scores))  # rounding must not lift a share above 1
    return within


def _votes(
    answers: Sequence[Hashable | None], scores: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    """Scores by answer, the most frequent answer first, and scores of samples without an answer."""
    scores_by_answer: dict[Hashable, list[float]] = {}
    blanks: list[float] = []
    for answer, score in zip(answers, scores, strict=True):
        (blanks if answer is None else scores_by_answer.setdefault(answer, [])).append(score)
    return sorted(scores_by_answer.values(), key=len, reverse=True), blanks


def _blank_score(blanks: Sequence[float], n: int, k: int) -> float:
    """The contribution of draws without any vote to the expected score."""
    if len(blanks) < k:
        return 0.0
    return comb(len(blanks), k) / comb(n, k) * sum(blanks) / len(blanks)


@lru_cache(maxsize=20_000)
def winning_shares(counts: tuple[int, ...], blanks: int, k: int) -> tuple[float, ...]:
    """For answers given `counts` times, the probability that each wins the vote of k samples; a tie is split.

    Sums over all draws: for a winner with m votes, the others have fewer votes, or as many and tie.
    """
    n = sum(counts) + blanks
    if counts and max(counts) == 1:  # all drawn answers tie
        return ((1 - comb(blanks, k) / comb(n, k)) / len(counts),) * len(counts)
    weigh = partial(draw_weights, share=k / n)
    share_by_count: dict[int, float] = {}
    for position, count in enumerate(counts):
        if count not in share_by_count:
            others = counts[:position] + counts[position + 1 :]
            ways = sum(
                weigh(count)[votes] * _ways_of_others(others, blanks, votes, k - votes, weigh)[-1]
                for votes in range(1, min(count, k) + 1)
            )
            share_by_count[count] = float(ways / weigh(n)[k])
    return tuple(share_by_count[count] for count in counts)


MOST_FOR_EVERY_K = 512
"""Number of samples up to which binomial coefficients fit into a float and are fast to compute."""


@lru_cache(maxsize=4096)
def every_winning_share(counts: tuple[int, ...], blanks: int) -> tuple[Floats, ...]:
    """`winning_shares` for every k at once."""
    n = sum(counts) + blanks
    shares_by_count: dict[int, Floats] = {}
    for position, count in enumerate(counts):
        if count not in shares_by_count:
            others = counts[:position] + counts[position + 1 :]
            ways = np.zeros(n + 1)
            for votes in range(1, count + 1):
                rest = _ways_of_others(others, blanks, votes, n - count, draw_counts)
                ways[votes : votes + len(rest)] += draw_counts(count)[votes] * rest
            shares_by_count[count] = (ways / draw_counts(n))[1:]
    return tuple(shares_by_count[count] for count in counts)


@lru_cache(maxsize=4096)
def draw_counts(count: int) -> Floats:
    """Binomial coefficients C(count, 0), C(count, 1), …"""
    return np.array([comb(count, drawn) for drawn in range(count + 1)], dtype=np.float64)


@lru_cache(maxsize=4096)
def draw_weights(count: int, share: float) -> Floats:
    """Binomial(count, share) probabilities, computed without overflow."""
    if share == 1:
        return np.append(np.zeros(count), 1.0)
    drawn = np.arange(count + 1)
    ways = np.array([lgamma(count + 1) - lgamma(n + 1) - lgamma(count - n + 1) for n in drawn.tolist()])
    weights: Floats = np.exp(ways + drawn * log(share) + (count - drawn) * log1p(-share))
    return weights


def _ways_of_others(
    others: tuple[int, ...], blanks: int, votes: int, drawn: int, weigh: Callable[[int], Floats]
) -> Floats:
    """Weights of drawing 0, 1, … `drawn` samples from the other answers with none above `votes`, each divided by the number of
    tied winners.
    """
    rivals = [count for count in others if count >= votes]
    free = blanks + sum(others) - sum(rivals)  # answers too rare to win are interchangeable
    ways = np.zeros((drawn + 1, min(len(rivals), drawn // votes) + 1))  # [drawn so far, ties so far]
    ways[0, 0] = 1
    for count in rivals:
        weights = weigh(count)
        grown = np.zeros_like(ways)
        for taken in range(min(votes, drawn + 1)):
            grown[taken:] += weights[taken] * ways[: drawn + 1 - taken]
        if votes <= drawn:
            grown[votes:, 1:] += weights[votes] * ways[: drawn + 1 - votes, :-1]
        ways = grown
    won = (ways / (1 + np.arange(ways.shape[1]))).sum(axis=1)
    return np.convolve(won, weigh(free)[: drawn + 1])[: drawn + 1]


def ladder(n: int) -> list[int]:
    """2, 4, 8, … below n, and n itself: the values of k in Trinity-RFT."""
    steps = []
    k = 2
    while k < n:
        steps.append(k)
        k *= 2
    return [*steps, n] if n > 1 else []


def bootstrap_at_k(values: Floats, k: int) -> tuple[float, float]:
    """best@k and worst@k as in Trinity-RFT and verl: the mean of 1000 bootstrap resamples, seed 42."""
    rng = np.random.RandomState(BOOTSTRAP_SEED)
    drawn = values[rng.choice(len(values), size=(BOOTSTRAP_ROUNDS, k), replace=True)]
    return float(drawn.max(axis=1).mean()), float(drawn.min(axis=1).mean())
