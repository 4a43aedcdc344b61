"""Usable units: how many groups, pairs or examples a recipe makes of each task.

Counts are those of the recipe itself. With the thresholds that a goal may set, a recipe treats every task on its own, so the units of
all tasks add up to what `prepare` selects from the whole run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rollforge.recipes.base import Candidates, Floats, Ints, Mask, RecipeOptions, load_recipe, screen
from rollforge.recipes.recipe_columns import RolloutFacts, candidates_of

COUNTED = ("sft", "kto")
"""Recipes whose examples are single rollouts."""


def usable_by_group(recipe: str, candidates: Candidates, options: RecipeOptions) -> Ints:
    """The units of each group."""
    candidates = _as_prepared(recipe, candidates)
    size = int(candidates.group.max()) + 1 if len(candidates) else 0
    picked = load_recipe(recipe)(candidates, options).first
    return np.bincount(candidates.group[picked], minlength=size)


def usable_in_task(recipe: str, task: int, facts: list[RolloutFacts], options: RecipeOptions) -> int:
    """The units of one task."""
    if not facts:
        return 0
    return len(load_recipe(recipe)(_as_prepared(recipe, candidates_of(task, facts)), options))


def hits(recipe: str, facts: list[RolloutFacts], options: RecipeOptions) -> Mask:
    """For a recipe of single rollouts: which ones it takes, whatever the others of the task are."""
    alone = replace(candidates_of(0, facts), group=np.arange(len(facts)))
    taken = np.zeros(len(facts), dtype=bool)
    taken[load_recipe(recipe)(alone, replace(options, band=None)).picks] = True
    return taken


def rewards_that_count(recipe: str, facts: list[RolloutFacts], options: RecipeOptions) -> Floats:
    """Rewards of the rollouts that the recipe does not leave out on their own account, in the order of samples."""
    candidates = _as_prepared(recipe, candidates_of(0, facts))
    fates = screen(candidates, replace(options, band=None), drop_truncated=recipe != "grpo")
    return candidates.reward[fates.alive]


def _as_prepared(recipe: str, candidates: Candidates) -> Candidates:
    """The candidates as `prepare` shows them to the recipe: a prompt set holds no answers, so that empty ones count as well."""
    if load_recipe(recipe).kind != "prompt" or "empty" not in candidates.flags:
        return candidates
    return replace(candidates, flags={name: one for name, one in candidates.flags.items() if name != "empty"})


def units_by_counts(recipe: str, low: float, high: float, most: int, options: RecipeOptions) -> Floats:
    """[yes, no] → the units of a task with these counts of rollouts of the higher and the lower reward, all answers distinct."""
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
