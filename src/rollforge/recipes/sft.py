"""Demonstrations: answers above a reward threshold, the best of each task, without duplicates."""

from __future__ import annotations

import numpy as np

from rollforge.recipes.base import (
    Candidates,
    RecipeOptions,
    Selection,
    balanced,
    drop_duplicates,
    rank_in_group,
    reaches,
    recipe,
    screen,
    success_threshold,
)


@recipe("demonstration")
def select(candidates: Candidates, options: RecipeOptions) -> Selection:
    """One demonstration per kept rollout."""
    threshold = success_threshold(candidates.reward, options.min_reward)
    fates = screen(candidates, options)
    fates.drop(~reaches(candidates.reward, threshold), "below threshold")
    drop_duplicates(fates, candidates, options)
    if options.per_task is not None:
        alive = np.flatnonzero(fates.alive)
        order = candidates.best_first(alive, options.seed)
        beyond = np.zeros(len(candidates), dtype=bool)
        beyond[order] = rank_in_group(candidates.group[order]) >= options.per_task
        fates.drop(beyond, "beyond the best of its task")
    if candidates.balance is not None:
        alive = np.flatnonzero(fates.alive)
        surplus = np.zeros(len(candidates), dtype=bool)
        surplus[alive] = ~balanced(candidates.balance[alive], candidates.ties(options.seed)[alive])
        fates.drop(surplus, "left out for balance")
    picks = np.flatnonzero(fates.alive)
    return Selection(
        "demonstration", picks, fates.counts(), settings={"min_reward": threshold}, fate_of=fates.codes()
    )
