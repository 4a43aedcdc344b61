"""Usable units: the number of groups, pairs or examples that a recipe makes from each task.

The recipe itself does the counting. With the thresholds that a goal allows, a recipe treats every task separately, so the units
of all tasks add up to those that `prepare` selects from the run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rollforge.recipes.base import Candidates, Floats, Ints, Mask, RecipeOptions, load_recipe, screen
from rollforge.recipes.recipe_columns import RolloutFacts, candidates_of

COUNTED = ("sft", "kto")
"""Recipes whose examples are single rollouts."""


def usable_by_group(recipe: str, candidates: Candidates, options: RecipeOptions) -> Ints:
    """Units of each group."""
    candidates = _as_prepared(recipe, candidates)
    size = int(candidates.group.max()) + 1 if len(candidates) else 0
    picked = load_recipe(recipe)(candidates, options).first
    return np.bincount(candidates.group[picked], minlength=size)


def usable_in_task(recipe: str, task: int, facts: list[RolloutFacts], options: RecipeOptions) -> int:
    """Units of one task."""
    if not facts:
        return 0
    return len(load_recipe(recipe)(_as_prepared(recipe, candidates_of(task, facts)), options))


def hits(recipe: str, facts: list[RolloutFacts], options: RecipeOptions) -> Mask:
    """For recipes of single rollouts: mask of the selected rollouts, independent of the task's others."""
    alone = replace(candidates_of(0, facts), group=np.arange(len(facts)))
    taken = np.zeros(len(facts), dtype=bool)
    taken[load_recipe(recipe)(alone, replace(options, band=None)).picks] = True
    return taken


def rewards_that_count(recipe: str, facts: list[RolloutFacts], options: RecipeOptions) -> Floats:
    """Rewards of the rollouts that the recipe does not exclude individually, ordered by sample."""
    candidates = _as_prepared(recipe, candidates_of(0, facts))
    fates = screen(candidates, replace(options, band=None), drop_truncated=recipe != "grpo")
    return candidates.reward[fates.alive]


def _as_prepared(recipe: str, candidates: Candidates) -> Candidates:
    """The candidates as `prepare` passes them to the recipe: prompt sets contain no answers, so rollouts with empty answers count
    too.
    """
    if load_recipe(recipe).kind != "prompt" or "empty" not in candidates.flags:
        return candidates
    return replace(candidates, flags={name: one for name, one in candidates.flags.items() if name != "empty"})


def units_by_counts(recipe: str, low: float, high: float, most: int, options: RecipeOptions) -> Floats:
    """[yes, no] → units of a task with these counts of higher and lower rewards, if all answers are distinct."""
    units = np.zeros((most + 2, most + 2))
    if recipe in COUNTED:
        yes, no = np.indices(units.shape)
        units = np.asarray(yes, dtype=np.float64)
        if recipe == "sft" and options.band is not None:
            rate = yes / np.maximum(yes + no, 1)
            units = units * ((rate >= options.band[0]) & (rate <= options.band[1]))
        return units
    states = [(yes, total - yes) for total in range(1, most + 1) for yes in range(total + 1)]
    group = np.repeat(np.arange(len(states)), [yes + no for yes, no in states])
    reward = np.concatenate([np.repeat([high, low], [yes, no]) for yes, no in states])
    rows = np.arange(len(group))
    made = usable_by_group(recipe, Candidates(rows, group, reward, rows, np.ones_like(rows), rows), options)
    for state, count in zip(states, made.tolist(), strict=True):
        units[state] = count
    return units
