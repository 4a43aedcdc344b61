"""The rule of adaptive sampling: is another sample of a task worth its cost?

A task's samples are draws with an unknown chance; a prior over tasks (beta, with mass at 0 and 1 where the samples support it) and the
task's own draws say what the next ones may bring. The rule maximises usable units per sample over tasks without end: it goes on with
a task while that is expected to bring more per sample than the next fresh task (optimal stopping, solved exactly by backward
induction over all counts). A group with a usable unit is filled up to its whole size.

Pure arithmetic over counts: no files, no clock, no random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from rollforge.adaptive.group_yield import Beta, Chances, Fitted, fit
from rollforge.statistics.stats import Floats, Ints

MOST_SAMPLES = 128
"""Largest number of samples per task: the rule looks at all pairs of counts."""

ROUNDS = 60
"""Upper limit on iterations of the rate, which converges after a handful."""

OUT_OF_REACH = 1e9
"""A bar that no sample clears: tasks get only their first stage, and usable groups are completed."""


class Draws(NamedTuple):
    """Successes and failures of one task so far."""

    yes: int
    no: int


class Sizes(NamedTuple):
    """How many samples a task may have, counted as draws."""

    first: int
    """The first stage, which every task gets."""
    whole: int
    """Size to which a group with a usable unit is filled up."""
    most: int
    """Sampling of a task without a usable unit stops here at the latest."""


def known_before(usual: Beta) -> Fitted:
    """The prior before any task was sampled."""
    return Fitted(Chances(usual), Chances(usual), 0.0)


def fit_prior(draws: Iterable[tuple[int, int, float]], usual: Beta) -> Fitted:
    """The prior fitted to (draws, successes, tasks); adaptive stopping leaves the likelihood as it is."""
    seen = [(of, yes, weight) for of, yes, weight in draws if of > 0 and weight > 0]
    return fit(seen, usual) if seen else known_before(usual)


def chance_of_yes(prior: Fitted, most: int) -> Floats:
    """[yes, no] → the chance that the next draw succeeds, for up to `most` draws so far."""
    weight = (prior.belief, 1 - prior.belief)
    belief = weight[0] * _likelihoods(prior.with_ends, most + 1)
    belief += weight[1] * _likelihoods(prior.without, most + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        chance = belief[1:, :-1] / belief[:-1, :-1]
    return np.nan_to_num(chance, nan=0.0)


def _likelihoods(chances: Chances, most: int) -> Floats:
    """[yes, no] → the probability of one particular sequence with these counts."""
    ahead = np.arange(most)
    yes = np.append(0.0, np.cumsum(np.log(chances.beta.yes + ahead)))
    no = np.append(0.0, np.cumsum(np.log(chances.beta.no + ahead)))
    both = np.append(0.0, np.cumsum(np.log(chances.beta.yes + chances.beta.no + np.arange(2 * most))))
    counts = np.arange(most + 1)
    among = np.exp(yes[:, None] + no[None, :] - both[counts[:, None] + counts[None, :]])
    likelihoods = (1 - chances.never - chances.always) * among
    likelihoods[0, :] += chances.never
    likelihoods[:, 0] += chances.always
    return np.asarray(likelihoods)


@dataclass(frozen=True)
class SamplingRule:
    """What to do with a task in each state; arrays are [yes, no]."""

    sizes: Sizes
    units: Floats
    """Usable units of a task with these counts."""
    chance: Floats
    """Probability that the next draw is a success."""
    goes_on: Floats
    """1 where a further sample is worth its cost."""
    expected: Floats
    """Expected final number of units of a task in this state."""
    rate: float
    """The bar: usable units per sample that further sampling of a task must be expected to bring; for the optimal rule, the yield
    of fresh tasks.
    """
    spread: float
    """Standard deviation of a task's usable units."""

    @property
    def units_per_task(self) -> float:
        """Expected final number of units of a fresh task."""
        return float(self.expected[0, 0])

    def at(self, bar: float) -> SamplingRule:
        """The rule that goes on with a task while it is expected to bring more than `bar` units per sample."""
        solved = _solve(self.chance, self.units, self.sizes, bar)
        return replace(self, goes_on=solved.goes_on, expected=solved.expected, rate=bar, spread=solved.spread)

    @property
    def most_units(self) -> float:
        """Largest number of units that a complete group can have."""
        yes = np.arange(self.sizes.whole + 1)
        return float(self.units[yes, self.sizes.whole - yes].max())

    def next_samples(self, counts: Draws) -> int:
        """How many samples to take at once without waiting for rewards: the rule would take them whatever the rewards; 0 to stop."""
        return _steps(self, counts)

    def expected_after(self, more: int) -> Floats:
        """Expected units after this number of further draws, as a matrix indexed by successes and failures so far."""
        return self._after(more)

    @cached_property
    def _ahead(self) -> dict[int, Floats]:
        return {0: self.units}

    def _after(self, more: int) -> Floats:
        if more not in self._ahead:
            later = self._after(more - 1)
            now, size = self.units.copy(), len(self.chance)
            now[:size, :size] = self.chance * later[1:, :size] + (1 - self.chance) * later[:size, 1:]
            self._ahead[more] = now
        return self._ahead[more]

    def is_within(self, counts: Draws) -> bool:
        """Whether the tables cover this state."""
        return counts.yes + counts.no <= self.sizes.most


def _steps(rule: SamplingRule, counts: Draws) -> int:
    if not rule.is_within(counts):
        return 0
    at_once = 0
    fewest, reachable = counts.yes, 1
    total = counts.yes + counts.no
    while total + at_once < rule.sizes.most:
        yes = np.arange(fewest, fewest + reachable)
        if not rule.goes_on[yes, total + at_once - yes].all():
            break
        at_once, reachable = at_once + 1, reachable + 1
    return at_once


def make_rule(prior: Fitted, units: Floats, sizes: Sizes, *, overhead: float = 0.0) -> SamplingRule:
    """The rule with the best rate of usable units per sample under this prior.

    Args:
        units: [yes, no] → usable units, for up to `sizes.most` draws; one row and column more than that needs.
        overhead: samples that each task costs before its first draw.
    """
    return best_rule(chance_of_yes(prior, sizes.most), units, sizes, overhead)


def best_rule(chance: Floats, units: Floats, sizes: Sizes, overhead: float = 0.0) -> SamplingRule:
    """The rule with the best rate of usable units per sample, by Dinkelbach's method; `chance` is [yes, no]."""
    rate, best = 0.0, _solve(chance, units, sizes, 0.0)
    for _ in range(ROUNDS):
        better = float(best.expected[0, 0]) / max(best.samples + overhead, 1e-12)
        if better <= rate + 1e-12:
            break
        rate = better
        best = _solve(chance, units, sizes, rate)
    return SamplingRule(sizes, units, chance, best.goes_on, best.expected, rate, best.spread)


class _Solved(NamedTuple):
    goes_on: Floats
    expected: Floats
    samples: float
    spread: float


def _solve(chance: Floats, units: Floats, sizes: Sizes, rate: float) -> _Solved:
    """Backward induction: value, units and samples expected from each state on, diagonal by diagonal."""
    shape = units.shape
    goes_on, value, gain, cost = np.zeros(shape), units.copy(), units.copy(), np.zeros(shape)
    squares = units**2
    for total in range(sizes.most - 1, -1, -1):
        yes = np.arange(total + 1)
        no = total - yes
        p, now = chance[yes, no], units[yes, no]

        later = _ahead(value, p, yes) - rate
        if total < sizes.first:
            on = np.ones(total + 1, dtype=bool)
        elif total < sizes.whole:
            on = (now > 0) | (later > 0)
        else:
            on = (now <= 0) & (later > 0)
        goes_on[yes, no] = on
        value[yes, no] = np.where(on, later, now)
        gain[yes, no] = np.where(on, _ahead(gain, p, yes), now)
        cost[yes, no] = np.where(on, 1 + _ahead(cost, p, yes), 0.0)
        squares[yes, no] = np.where(on, _ahead(squares, p, yes), now**2)
    spread = max(float(squares[0, 0] - gain[0, 0] ** 2), 0.0) ** 0.5
    return _Solved(goes_on, gain, float(cost[0, 0]), spread)


def _ahead(table: Floats, chance: Floats, yes: Ints) -> Floats:
    """Expected entry of a table after one more draw, along one diagonal; `yes` counts up from 0."""
    no = yes[::-1]
    return np.asarray(chance * table[yes + 1, no] + (1 - chance) * table[yes, no + 1])


def is_audited(task: int, seed: int, share: float) -> bool:
    """Whether a task is filled up whatever the rule decides: a seeded draw on its number."""
    return _uniform(task, seed) < share


@lru_cache(maxsize=65_536)
def _uniform(task: int, seed: int) -> float:
    """SplitMix64 of the task's number and the seed, as a number from 0 to 1."""
    key = (task * 0x9E3779B97F4A7C15 + (seed + 77) * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    key = (key ^ (key >> 27)) * 0x94D049BB133111EB % 2**64
    return float((key ^ (key >> 31)) >> 11) / 2**53
