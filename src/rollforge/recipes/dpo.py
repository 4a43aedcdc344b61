"""Preference pairs: a better and a worse answer to the same prompt, a clear reward gap apart."""

from __future__ import annotations

from rollforge.recipes.base import Candidates, RecipeOptions, Selection, recipe
from rollforge.recipes.pairing import select_pairs


@recipe("pair")
def select(candidates: Candidates, options: RecipeOptions) -> Selection:
    """One example per pair."""
    return select_pairs(candidates, options)
