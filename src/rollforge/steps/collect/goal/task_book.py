"""Compact per-task statistics of an adaptive run, and the sampling rules fitted to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollforge.adaptive.design import Expectation, SamplingDesign
from rollforge.adaptive.group_yield import ANY_MATCH, ANY_RATE
from rollforge.adaptive.sampling_rule import Draws, SamplingRule, Sizes, fit_prior, make_rule
from rollforge.recipes.base import NOISE, RecipeOptions
from rollforge.recipes.recipe_columns import RolloutFacts
from rollforge.recipes.usable import COUNTED, hits, rewards_that_count, units_by_counts, usable_in_task
from rollforge.statistics.stats import Floats, Ints

Mask = NDArray[np.bool_]

LEVELS = (0.0, 1.0)
"""Assumed rewards before any others were seen."""

HOPELESS = 0.02
"""A task is not topped up if a further sample is expected to yield less than this fraction of an average sample so far."""

LEAST_GAIN = 1e-4

LOWERED = 0.9
"""Factor by which the bar is lowered, without fresh tasks, until some task clears it."""

REFIT = 1.25
"""The rules are refitted when the number of known tasks has grown by this factor."""

Z = 1.96


class TaskSummary(NamedTuple):
    """The statistics of one task that the rule needs."""

    drawn: int
    """Number of rollouts that count as draws."""
    lows: int
    """Number of draws with the task's lowest value."""
    low: float
    high: float
    levels: int
    """Number of distinct values; 3 means more than two."""
    same: int
    """Number of other draws that match the first one, that is, are too close for a pair or a spread."""
    units: int
    samples_asked: int
    """Number of requested samples."""
    tokens: int

    def counts(self, low: float, high: float) -> Draws | None:
        """Draws with the higher and the lower of two values; None if the task has other values."""
        if self.levels > 2 or (self.drawn and not {self.low, self.high} <= {low, high}):
            return None
        if self.low == self.high:
            return Draws(self.drawn, 0) if self.low == high else Draws(0, self.drawn)
        return Draws(self.drawn - self.lows, self.lows)

    def matches(self) -> Draws:
        """Later draws that match the first one, and those that do not; in a usable task at least one does not."""
        others = max(self.drawn - 1, 0)
        if self.units and others:
            return Draws(min(self.same, others - 1), others - min(self.same, others - 1))
        return Draws(others, 0)


class TaskJudge:
    """Computes task summaries for one recipe and its thresholds."""

    def __init__(self, design: SamplingDesign, options: RecipeOptions) -> None:
        assert design.recipe is not None
        self.recipe = design.recipe
        self.options = options
        self._width = options.min_spread + NOISE if self.recipe == "grpo" else options.min_gap - NOISE

    def summarize(
        self,
        task: int,
        facts: list[RolloutFacts],
        *,
        samples_asked: int,
        tokens: int,
        everything: list[RolloutFacts],
    ) -> TaskSummary:
        """The summary of a task: draws from `facts`, units from all its rollouts."""
        if self.recipe in COUNTED:
            values = hits(self.recipe, facts, self.options).astype(float) if facts else np.zeros(0)
        else:
            values = rewards_that_count(self.recipe, facts, self.options) if facts else np.zeros(0)
        values = np.round(values, 9)
        kinds = np.unique(values)
        return TaskSummary(
            drawn=len(values),
            lows=int((values == kinds[0]).sum()) if len(kinds) else 0,
            low=float(kinds[0]) if len(kinds) else 0.0,
            high=float(kinds[-1]) if len(kinds) else 0.0,
            levels=min(len(kinds), 3),
            same=int((np.abs(values[1:] - values[0]) < max(self._width, NOISE)).sum()) if len(values) else 0,
            units=usable_in_task(self.recipe, task, everything, self.options),
            samples_asked=samples_asked,
            tokens=tokens,
        )


@dataclass
class Rules:
    """Sampling rules fitted at one point: by counts of two values, and by matches with the first draw."""

    low: float
    high: float
    by_value: SamplingRule | None
    """None if more than two values occurred."""
    make_by_match: Callable[[], SamplingRule]

    @cached_property
    def by_match(self) -> SamplingRule:
        """The rule by matches, fitted on first use, since most runs have two-valued rewards."""
        return self.make_by_match()

    def next_samples(self, task: TaskSummary) -> int:
        """Number of samples to take next; 0 to stop."""
        counts = task.counts(self.low, self.high)
        if self.by_value is not None and counts is not None:
            return self.by_value.next_samples(counts)
        return self.by_match.next_samples(task.matches())

    @property
    def usual(self) -> SamplingRule:
        """The rule that applies to most tasks."""
        return self.by_value or self.by_match

    @cached_property
    def _at(self) -> dict[float, Rules]:
        return {}

    def at(self, bar: float) -> Rules:
        """The rules with another bar: units that a further sample must be expected to yield."""
        if bar not in self._at:
            by_value = self.by_value.at(bar) if self.by_value is not None else None
            self._at[bar] = Rules(self.low, self.high, by_value, lambda: self.by_match.at(bar))
        return self._at[bar]


class TaskBook:
    """Summaries of all settled tasks."""

    def __init__(self, tasks: int, design: SamplingDesign, options: RecipeOptions) -> None:
        self._design = design
        self._options = options
        self.is_known = np.zeros(tasks, dtype=bool)
        self._whole = {
            name: np.zeros(tasks, dtype=np.int64)
            for name in ("drawn", "lows", "levels", "same", "units", "samples_asked", "tokens")
        }
        self._value = {name: np.zeros(tasks) for name in ("low", "high")}
        self._units: dict[tuple[float, float], Floats] = {}
        self._rules: Rules | None = None
        self._fitted_to = 0
        self._fitted_levels = (*LEVELS, True)
        self._yield = np.zeros(6)
        """Sums over known tasks: tasks, units, tokens, units², units × tokens, tokens²."""

    @property
    def units(self) -> int:
        """Units of all known tasks."""
        return int(self._yield[1])

    @property
    def tokens(self) -> int:
        """Tokens of all known tasks."""
        return int(self._yield[2])

    def put(self, position: int, task: TaskSummary) -> None:
        """Add a task, or replace its summary."""
        if self.is_known[position]:
            self._yield -= moments(self._whole["units"][position], self._whole["tokens"][position])
        self._yield += moments(task.units, task.tokens)
        for name, column in self._whole.items():
            column[position] = getattr(task, name)
        for name, values in self._value.items():
            values[position] = getattr(task, name)
        self.is_known[position] = True

    def get(self, position: int) -> TaskSummary:
        """The summary of one task."""
        numbers: dict[str, Any] = {name: int(column[position]) for name, column in self._whole.items()}
        return TaskSummary(
            **numbers | {name: float(column[position]) for name, column in self._value.items()}
        )

    # -- the rule -----------------------------------------------------------------------------------------------------

    def rules(self) -> Rules:
        """Rules fitted to the known tasks; refitted when these have grown by a quarter, or when other values occur."""
        known_tasks = int(self.is_known.sum())
        levels = self._levels(self.is_known & (self._whole["drawn"] > 0))
        if self._rules is None or known_tasks >= REFIT * self._fitted_to or levels != self._fitted_levels:
            self._rules, self._fitted_to, self._fitted_levels = self._fit(), known_tasks, levels
        return self._rules

    def _fit(self) -> Rules:
        design, is_known = self._design, self.is_known
        drawn = self._whole["drawn"][is_known]
        low, high, is_two = self._levels(is_known & (self._whole["drawn"] > 0))
        sizes = Sizes(design.first, design.whole, design.most)
        by_value = None
        if is_two:
            yes = self._yes(is_known, high)
            prior = fit_prior(_tally(drawn, yes), ANY_RATE)
            by_value = make_rule(prior, self._table(low, high), sizes)
        # What is known now, not when the rule is first needed.
        others = np.maximum(drawn - 1, 0)
        same = np.minimum(self._whole["same"][is_known], others)
        matches = _tally(others, same)
        less = Sizes(max(design.first - 1, 0), design.whole - 1, design.most - 1)
        worth = self._units_of_whole(is_known)
        units = np.zeros((design.most + 1, design.most + 1))
        units[:, 1:] = worth
        return Rules(
            low,
            high,
            by_value,
            lambda: make_rule(fit_prior(matches, ANY_MATCH), units, less, overhead=1.0),
        )

    def _levels(self, seen: Mask) -> tuple[float, float, bool]:
        """The two values of the rewards, and whether there are no others."""
        values = np.unique(np.append(self._value["low"][seen], self._value["high"][seen]))
        has_more = bool((self._whole["levels"][seen] > 2).any())
        if has_more or len(values) > 2:
            return *LEVELS, False
        if np.isin(values, LEVELS).all():
            return *LEVELS, True
        return (float(values[0]), float(values[1]), True) if len(values) == 2 else (*LEVELS, False)

    def _yes(self, which: Mask | Ints, high: float) -> Ints:
        """Number of draws with the higher value."""
        drawn, lows = self._whole["drawn"][which], self._whole["lows"][which]
        low, own = self._value["low"][which], self._value["high"][which]
        return np.where(low == own, np.where(own == high, drawn, 0), drawn - lows)

    def _table(self, low: float, high: float) -> Floats:
        if (low, high) not in self._units:
            recipe = str(self._design.recipe)
            self._units[low, high] = units_by_counts(recipe, low, high, self._design.most, self._options)
        return self._units[low, high]

    def _units_of_whole(self, is_known: Mask) -> float:
        """Units of a complete usable group."""
        units = self._whole["units"][is_known & (self._whole["samples_asked"] >= self._design.whole)]
        units = units[units > 0]
        return float(units.mean()) if len(units) else 1.0

    # -- tasks that stopped -------------------------------------------------------------------------------------------

    def bars(self, rules: Rules) -> Iterator[float]:
        """Successively lower bars for paused tasks, down to the level at which they are hopeless."""
        spent = max(int(self._whole["samples_asked"][self.is_known].sum()), 1)
        bar, least = rules.usual.rate * LOWERED, max(LEAST_GAIN, HOPELESS * self.units / spent)
        while bar > least:
            yield bar
            bar *= LOWERED

    def resumable(self, rules: Rules, candidates: Mask) -> tuple[Ints, Ints, Floats]:
        """Tasks paused below a complete group that clear these rules' bar: positions, samples so far, expected gains."""
        samples_asked = self._whole["samples_asked"]
        open_ones = (
            candidates & self.is_known & (self._whole["units"] == 0) & (samples_asked < self._design.whole)
        )
        positions = np.flatnonzero(open_ones)
        rule, yes, no = self._states(rules, positions)
        goes_on = rule.goes_on[yes, no] == 1
        gains = (rule.expected - rule.units)[yes, no]
        return positions[goes_on], samples_asked[positions[goes_on]], gains[goes_on]

    def further_groups(self, rules: Rules, candidates: Mask, bar: float) -> tuple[Ints, Ints, Floats]:
        """Complete groups for which another group clears the bar, best first: positions, target samples, expected gains."""
        design = self._design
        samples_asked = self._whole["samples_asked"]
        positions = np.flatnonzero(candidates & self.is_known & (samples_asked >= design.whole))
        samples_asked = samples_asked[positions]
        wanted = np.minimum(samples_asked + design.whole, design.most)
        gains = self._gains(rules, positions, wanted - samples_asked)
        per_sample = gains / np.maximum(wanted - samples_asked, 1)
        order = np.lexsort((positions, -per_sample))
        order = order[((wanted > samples_asked) & (per_sample > bar))[order]]
        return positions[order], wanted[order], gains[order]

    def _states(self, rules: Rules, positions: Ints) -> tuple[SamplingRule, Ints, Ints]:
        """The rule for tasks without a unit, and their counts as table indices."""
        drawn = self._whole["drawn"][positions]
        if rules.by_value is not None:
            yes = self._yes(positions, rules.high)
            return rules.by_value, yes, drawn - yes
        others = np.maximum(drawn - 1, 0)
        return rules.by_match, others, np.zeros_like(others)

    def _gains(self, rules: Rules, positions: Ints, more: Ints) -> Floats:
        """Expected additional units from this number of further samples per task."""
        rule, yes, no = self._states(rules, positions)
        gains = np.zeros(len(positions))
        for step in np.unique(more[more > 0]).tolist():
            here = np.flatnonzero((more == step) & (yes + no + step <= rule.sizes.most))
            gains[here] = (rule.expected_after(step) - rule.units)[yes[here], no[here]]
        if rules.by_value is None:  # further samples yield at the rate so far
            units, drawn = self._whole["units"][positions], self._whole["drawn"][positions]
            rate = units / np.maximum(drawn, 1) * (self._design.recipe != "grpo")
            gains = np.where(units > 0, rate * more, gains)
        return gains

    # -- the forecast -------------------------------------------------------------------------------------------------

    def needed(self, units: int) -> tuple[Expectation, Expectation] | None:
        """Estimated tokens and tasks for this number of further units; None without known usable units."""
        return needed_for(units, *self._yield.tolist())


def moments(units: float, tokens: float) -> Floats:
    """One task's contribution to the sums for forecasts."""
    return np.array([1.0, units, tokens, units * units, units * tokens, tokens * tokens], dtype=np.float64)


def needed_for(
    needed: int, tasks: float, units: float, tokens: float, units2: float, both: float, tokens2: float
) -> tuple[Expectation, Expectation] | None:
    """Estimated tokens and tasks for this number of further units, at the tasks' yield so far; None if it is 0.

    The other arguments are sums over these tasks. The intervals include the uncertainty of the yield and the random variation of
    future tasks.
    """
    if needed <= 0 or tasks < 1 or units <= 0:
        return None
    per_task, cost = units / tasks, tokens / tasks
    more = needed / per_task
    if tasks < 2:
        return Expectation(value=more * cost), Expectation(value=more)
    scale = math.sqrt(1 / tasks + 1 / max(more, 1.0))
    variance = max(units2 / tasks - per_task**2, 0.0)
    ratio = units / tokens if tokens else 0.0  # of a ratio, what counts is the spread around it
    residual = max((units2 - 2 * ratio * both + ratio**2 * tokens2) / tasks, 0.0)
    return (
        _around(more * cost, math.sqrt(residual) / per_task * scale),
        _around(more, math.sqrt(variance) / per_task * scale),
    )


def _around(value: float, relative: float) -> Expectation:
    half = Z * relative * value
    return Expectation(value=value, low=max(0.0, value - half), high=value + half)


def _tally(drawn: Ints, yes: Ints) -> list[tuple[int, int, float]]:
    """(draws, successes, tasks) of all tasks with draws."""
    pairs, counts = np.unique(np.stack([drawn, yes]), axis=1, return_counts=True)
    return [
        (int(of), int(hit), float(n)) for (of, hit), n in zip(pairs.T.tolist(), counts, strict=True) if of
    ]
