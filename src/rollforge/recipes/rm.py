"""Reward-model data: the same pairs as in `dpo`, with the gap as margin."""

from __future__ import annotations

from rollforge.recipes.base import Candidates, RecipeOptions, Selection, recipe
from rollforge.recipes.pairing import select_pairs


@recipe("pair", like="rm")
def select(candidates: Candidates, options: RecipeOptions) -> Selection:
    """One example per pair."""
    return select_pairs(candidates, options)
