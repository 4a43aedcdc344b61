"""Prompt sets for policy-gradient training: every judged task, with its reward statistics and difficulty."""

from __future__ import annotations

from rollforge.recipes.base import Candidates, RecipeOptions, Selection, recipe
from rollforge.recipes.prompting import select_prompts


@recipe("prompt", like="ppo")
def select(candidates: Candidates, options: RecipeOptions) -> Selection:
    """One example per task with at least one judged rollout."""
    return select_prompts(candidates, options, needs_spread=False)
