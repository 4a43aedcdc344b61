"""Group yield: the share of groups of k samples with more than one reward, from which a group-relative method learns.

Up to a task's own number of samples the share is exact, over all choices of k. Beyond, it is extrapolated: a beta distribution over
tasks, with extra mass at 0 and 1 where the samples support it (never solved, always solved), is fitted to all samples, and each
task's own samples update it. Where rewards take two values, the modelled probability is that of the higher one; otherwise it is the
probability that another sample of the task matches a given one, which needs only the counts of each distinct reward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rollforge.statistics.stats import Floats

Pattern = tuple[int, ...]
"""The count of each distinct reward of a task."""


class Chain(NamedTuple):
    """A task whose rewards form no classes: under a wide tolerance, A may match B and B match C without A matching C."""

    later: tuple[int, ...]
    """For each sample, in ascending order of reward: how many of the next samples match it. Matches are contiguous."""


Rewards = Pattern | Chain


def samples_of(rewards: Rewards) -> int:
    """Number of samples of a task."""
    return len(rewards.later) if isinstance(rewards, Chain) else sum(rewards)


def _equal_choices(rewards: Rewards, k: int) -> int:
    """Number of ways to choose k samples that all match; for a chain, counted by the lowest reward chosen."""
    if isinstance(rewards, Chain):
        return sum(math.comb(later, k - 1) for later in rewards.later)
    return sum(math.comb(count, k) for count in rewards)


def _matching(rewards: Rewards) -> Iterator[tuple[int, float]]:
    """For each class of matching samples: how many others match a member, and the class's share of all samples."""
    n = samples_of(rewards)
    if not isinstance(rewards, Chain):
        yield from ((count - 1, count / n) for count in rewards)
        return
    for position, later in enumerate(rewards.later):
        earlier = sum(before + reach >= position for before, reach in enumerate(rewards.later[:position]))
        yield earlier + later, 1 / n


class Beta(NamedTuple):
    """A beta distribution of probabilities."""

    yes: float
    no: float

    def all_of(self, draws: int) -> float:
        """The moment E[p^draws]: the probability that all draws succeed."""
        ahead = np.arange(draws)
        return float(np.prod((self.yes + ahead) / (self.yes + self.no + ahead)))


class Chances(NamedTuple):
    """Distribution of a probability over tasks: a point mass at 0, one at 1, and a beta distribution between them."""

    beta: Beta
    never: float = 0.0
    always: float = 0.0

    def mirrored(self) -> Chances:
        """The distribution of 1 − p."""
        return Chances(Beta(self.beta.no, self.beta.yes), self.always, self.never)

    def all_of(self, draws: int, yes: int, no: int) -> float:
        """Posterior probability that all draws succeed, for a task with `yes` successes and `no` failures so far."""
        among_others = Beta(self.beta.yes + yes, self.beta.no + no).all_of(draws)
        if no == 0:
            is_sure = self._share_of_sure(yes)
            return is_sure + (1 - is_sure) * among_others
        return among_others * (1 - self.mirrored()._share_of_sure(no)) if yes == 0 else among_others

    def _share_of_sure(self, yes: int) -> float:
        """Among tasks with only successes so far, the share that always succeeds."""
        if not self.always:
            return 0.0
        return self.always / (self.always + (1 - self.never - self.always) * self.beta.all_of(yes))


class Fitted(NamedTuple):
    """Two fits, without and with mass at 0 and 1, and the weight of the latter."""

    without: Chances
    with_ends: Chances
    belief: float


ANY_RATE = Beta(1.0, 1.0)
"""Uniform pass rates: the prior of the fit."""

ANY_MATCH = Beta(2.0, 1.0)
"""The prior that `ANY_RATE` implies for the probability that two samples match."""

WIDTH = 2.0
"""Standard deviation of the prior on the logarithms of the parameters."""

LEAST, MOST = -8.0, 8.0
"""Search range of the logarithms of the parameters."""

DOUBT = 3.0
"""Log likelihood ratio at which the fit with mass at 0 and 1 gets half of the weight."""

TINY = 1e-300
"""Floor of a probability before its logarithm."""

STEPS = 5
"""Expectation–maximisation steps per pair of parameters, starting from the result of a neighbouring pair."""


def group_yields(
    tasks_by_pattern: Mapping[Rewards, int], every_k: Sequence[int], *, are_two: bool = False
) -> list[float | None]:
    """For each k (ascending) the expected share of groups of k with more than one reward, never falling with k.

    Tasks with one sample carry no information and are left out; None when no task has two.

    Args:
        are_two: all tasks have the same two rewards, and a pattern counts the higher one first (0 where it does not occur).
    """
    usable = {pattern: tasks for pattern, tasks in tasks_by_pattern.items() if samples_of(pattern) > 1}
    if not usable:
        return [None] * len(every_k)
    total, least = sum(usable.values()), 0.0
    fitted = fit(_highs(usable), ANY_RATE) if are_two else fit(_matches(usable), ANY_MATCH)
    yields: list[float | None] = []
    for k in every_k:
        equal = sum(
            tasks * chance_of_equal(pattern, k, fitted, are_two=are_two) for pattern, tasks in usable.items()
        )
        least = max(least, 1 - equal / total)
        yields.append(least)
    return yields


def chance_of_equal(pattern: Rewards, k: int, fitted: Fitted, *, are_two: bool = False) -> float:
    """Probability that k samples of a task are all equal: exact up to the samples taken, extrapolated beyond."""
    n = samples_of(pattern)
    if k <= n:
        return _equal_choices(pattern, k) / math.comb(n, k)
    with_ends, without = (
        _estimate(pattern, k, chances, are_two=are_two) for chances in (fitted.with_ends, fitted.without)
    )
    return fitted.belief * with_ends + (1 - fitted.belief) * without


def _estimate(pattern: Rewards, k: int, chances: Chances, *, are_two: bool) -> float:
    if are_two:
        high, low = _pair(pattern)
        return chances.all_of(k, high, low) + chances.mirrored().all_of(k, low, high)
    others = samples_of(pattern) - 1
    return sum(share * chances.all_of(k - 1, same, others - same) for same, share in _matching(pattern))


def _pair(rewards: Rewards) -> tuple[int, int]:
    """For two-valued rewards: the counts of the higher and the lower one."""
    assert not isinstance(rewards, Chain)
    high, low = rewards
    return high, low


def _highs(tasks_by_pattern: Mapping[Rewards, int]) -> Iterator[tuple[int, int, float]]:
    """For each task: its samples, how many of them have the higher reward, and its weight."""
    for pattern, tasks in tasks_by_pattern.items():
        high, low = _pair(pattern)
        yield high + low, high, tasks


def _matches(tasks_by_pattern: Mapping[Rewards, int]) -> Iterator[tuple[int, int, float]]:
    """For each class of samples: the task's other samples, how many of them match, and the class's weight in tasks."""
    for pattern, tasks in tasks_by_pattern.items():
        for same, share in _matching(pattern):
            yield samples_of(pattern) - 1, same, tasks * share


def fit(draws: Iterable[tuple[int, int, float]], usual: Beta) -> Fitted:
    """Maximum a posteriori fits to (draws, successes, weight)."""
    seen = _Seen(draws)
    less, without = _fit(seen, usual, has_ends=False)
    more, with_ends = _fit(seen, usual, has_ends=True)
    return Fitted(without, with_ends, 1 / (1 + math.exp(min(DOUBT - (more - less), 700.0))))


class _Seen:
    """Sufficient statistics of the draws."""

    def __init__(self, draws: Iterable[tuple[int, int, float]]) -> None:
        rows = list(draws)
        most = max(of for of, _, _ in rows)
        self.yes, self.no, self.drawn = (np.zeros(most) for _ in range(3))
        """Over tasks with both outcomes: weight of tasks with more than i successes, failures or draws, by i."""
        self.both = 0.0
        self.all_no, self.all_yes = np.zeros(most + 1), np.zeros(most + 1)
        """Weight of tasks with a single outcome, by number of draws."""
        for of, said_yes, weight in rows:
            if said_yes in (0, of):
                (self.all_yes if said_yes else self.all_no)[of] += weight
                continue
            self.both += weight
            self.yes[:said_yes] += weight
            self.no[: of - said_yes] += weight
            self.drawn[:of] += weight
        self.total = self.both + self.all_no.sum() + self.all_yes.sum()
        self.sizes = np.flatnonzero(self.all_no + self.all_yes)
        self.all_no, self.all_yes = self.all_no[self.sizes], self.all_yes[self.sizes]


def _fit(seen: _Seen, usual: Beta, *, has_ends: bool) -> tuple[float, Chances]:
    """The distribution with the highest posterior, and its log posterior; found by a grid search that is refined step by step."""
    ahead, home = np.arange(len(seen.drawn)), np.log(usual)
    centre = home
    never = always = 0.2 if has_ends else 0.0
    best = -np.inf
    for halvings in range(10):
        steps = np.linspace(-MOST, MOST, 9) / 2**halvings
        grid = np.stack(np.meshgrid(*(centre[:, None] + steps).clip(LEAST, MOST)), axis=-1).reshape(-1, 2)
        a, b = np.exp(grid).T[:, :, None]
        of_yes, of_no, of_all = np.log(a + ahead), np.log(b + ahead), np.log(a + b + ahead)
        # Probability that a task of the beta distribution has only failures, or only successes.
        no_only = np.exp(np.cumsum(of_no - of_all, axis=1)[:, seen.sizes - 1])
        yes_only = np.exp(np.cumsum(of_yes - of_all, axis=1)[:, seen.sizes - 1])
        ends = _ends(seen, no_only, yes_only, never, always) if has_ends else np.zeros((2, len(grid), 1))
        others = 1 - ends.sum(axis=0)
        likelihood = of_yes @ seen.yes + of_no @ seen.no - of_all @ seen.drawn
        likelihood += seen.both * _log(others[:, 0])
        likelihood += _log(ends[0] + others * no_only) @ seen.all_no
        likelihood += _log(ends[1] + others * yes_only) @ seen.all_yes
        likelihood -= ((grid - home) ** 2).sum(axis=1) / (2 * WIDTH**2)
        peak = np.argmax(likelihood)
        best, centre = float(likelihood[peak]), grid[peak]
        never, always = ends[:, peak, 0].tolist()
    return best, Chances(Beta(*np.exp(centre).tolist()), never, always)


def _ends(seen: _Seen, no_only: Floats, yes_only: Floats, never: float, always: float) -> Floats:
    """The mass at 0 and 1 that best fits each pair of beta parameters, by expectation–maximisation."""
    ends = np.broadcast_to(np.array([never, always])[:, None, None], (2, len(no_only), 1))
    for _ in range(STEPS):
        others = 1 - ends.sum(axis=0)
        sure_of_no = ends[0] / np.maximum(ends[0] + others * no_only, TINY)
        sure_of_yes = ends[1] / np.maximum(ends[1] + others * yes_only, TINY)
        ends = np.stack([sure_of_no @ seen.all_no[:, None], sure_of_yes @ seen.all_yes[:, None]]) / seen.total
    return ends


def _log(chances: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(chances, TINY)))
