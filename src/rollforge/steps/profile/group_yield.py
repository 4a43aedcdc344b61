"""This module says how many groups of k samples would hold more than one reward, which is what a group-relative method learns from.

For k up to a task's samples the share is exact, over all choices of k of them. Beyond, it is an estimate: some chance is taken for
beta distributed over the tasks, the distribution is fitted to all samples, and each task's own samples then say where in it
the task lies. Where rewards take two values that chance is the one of the higher; else it is the chance that another sample of
the task matches a given one, which needs no more than how often each distinct reward of a task occurs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import comb
from typing import NamedTuple

import numpy as np

Pattern = tuple[int, ...]
"""How often each distinct reward of a task occurs."""


class Beta(NamedTuple):
    """A distribution of chances over tasks."""

    yes: float
    no: float


ANY_RATE = Beta(1.0, 1.0)
"""Every pass rate is as likely: where the fit begins, and what decides where the samples cannot."""

ANY_MATCH = Beta(2.0, 1.0)
"""What `ANY_RATE` means for the chance that two samples match."""

WIDTH = 2.0
"""How far (in logarithms) the parameters stray from those before the samples have to insist."""

LEAST, MOST = -8.0, 8.0
"""The logarithms between which parameters are looked for."""


def group_yields(
    tasks_by_pattern: Mapping[Pattern, int], every_k: Sequence[int], *, are_two: bool = False
) -> list[float | None]:
    """For each k (ascending) the expected share of groups of k with more than one reward, never falling with k.

    Tasks with one sample say nothing of it and are left out; None when no task has two.

    Args:
        are_two: all tasks have the same two rewards, and a pattern counts the higher one first (0 where it does not occur).
    """
    usable = {pattern: tasks for pattern, tasks in tasks_by_pattern.items() if sum(pattern) > 1}
    if not usable:
        return [None] * len(every_k)
    total, least = sum(usable.values()), 0.0
    fitted = fit(_highs(usable), ANY_RATE) if are_two else fit(_matches(usable), ANY_MATCH)
    found: list[float | None] = []
    for k in every_k:
        equal = sum(
            tasks * chance_of_equal(pattern, k, fitted, are_two=are_two) for pattern, tasks in usable.items()
        )
        least = max(least, 1 - equal / total)
        found.append(least)
    return found


def chance_of_equal(pattern: Pattern, k: int, fitted: Beta, *, are_two: bool = False) -> float:
    """How likely k samples of a task are all equal: exact for k up to those taken, beyond the estimate given the fit."""
    n, (yes, no) = sum(pattern), fitted
    if k <= n:
        return sum(comb(count, k) for count in pattern) / comb(n, k)
    if are_two:
        high, low = pattern
        return _all_of(Beta(yes + high, no + low), k) + _all_of(Beta(no + low, yes + high), k)
    return sum(count / n * _all_of(Beta(yes + count - 1, no + n - count), k - 1) for count in pattern)


def _all_of(chance: Beta, draws: int) -> float:
    """The mean of the chance to this power: how likely every one of so many draws says yes."""
    ahead = np.arange(draws)
    return float(np.prod((chance.yes + ahead) / (sum(chance) + ahead)))


def _highs(tasks_by_pattern: Mapping[Pattern, int]) -> Iterator[tuple[int, int, float]]:
    """For each task: its samples, how many of them have the higher reward, and its weight."""
    for (high, low), tasks in tasks_by_pattern.items():
        yield high + low, high, tasks


def _matches(tasks_by_pattern: Mapping[Pattern, int]) -> Iterator[tuple[int, int, float]]:
    """For a sample of each kind: how many others its task has, how many of them match it, and its weight in tasks."""
    for pattern, tasks in tasks_by_pattern.items():
        n = sum(pattern)
        for count in pattern:
            yield n - 1, count - 1, tasks * count / n


def fit(draws: Iterable[tuple[int, int, float]], usual: Beta) -> Beta:
    """The beta distribution under which so many yes of so many draws are most likely, by an ever finer grid of logarithms."""
    rows = list(draws)
    yes, no, drawn = (
        np.zeros(max(of for of, _, _ in rows)) for _ in range(3)
    )  # draws after 0, 1, 2, … of the same kind
    for of, said_yes, weight in rows:
        yes[:said_yes] += weight
        no[: of - said_yes] += weight
        drawn[:of] += weight
    ahead, home = np.arange(len(drawn)), np.log(usual)
    centre, reach = home, MOST
    while reach > 1e-3:
        steps = np.linspace(-reach, reach, 9)
        both = np.stack(np.meshgrid(*(centre[:, None] + steps).clip(LEAST, MOST)), axis=-1).reshape(-1, 2)
        a, b = np.exp(both).T[:, :, None]
        likelihood = np.log(a + ahead) @ yes + np.log(b + ahead) @ no - np.log(a + b + ahead) @ drawn
        strayed = ((both - home) ** 2).sum(axis=1) / (2 * WIDTH**2)
        centre, reach = both[np.argmax(likelihood - strayed)], reach / 2
    return Beta(*np.exp(centre).tolist())
