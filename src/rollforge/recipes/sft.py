"""Answers worth imitating: above a reward threshold, the best of each task, without duplicates."""

from __future__ import annotations

import numpy as np

from rollforge.recipes.base import (
    Candidates,
    RecipeOptions,
    Selection,
    balanced,
    drop_duplicates,
    place_in_group,
    reaches,
    screen,
    success_threshold,
)


def select(candidates: Candidates, options: RecipeOptions) -> Selection:
    """One demonstration per kept rollout."""
    threshold = success_threshold(candidates.reward, options.min_reward)
    ledger = screen(candidates, options)
    ledger.drop(~reaches(candidates.reward, threshold), "below threshold")
    drop_duplicates(ledger, candidates, options)
    if options.per_task is not None:
        alive = np.flatnonzero(ledger.alive)
        order = alive[np.lexsort((candidates.row[alive], -candidates.reward[alive], candidates.group[alive]))]
        beyond = np.zeros(len(candidates), dtype=bool)
        beyond[order] = place_in_group(candidates.group[order]) >= options.per_task
        ledger.drop(beyond, "beyond the best of its task")
    if candidates.balance is not None:
        alive = np.flatnonzero(ledger.alive)
        surplus = np.zeros(len(candidates), dtype=bool)
        surplus[alive] = ~balanced(candidates.balance[alive], candidates.row[alive], options.seed)
        ledger.drop(surplus, "left out for balance")
    picks = np.flatnonzero(ledger.alive)
    return Selection("demonstration", picks, ledger.counts(), settings={"min_reward": threshold})
