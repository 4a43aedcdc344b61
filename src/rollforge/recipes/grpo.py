"""Prompt sets for group-relative training: tasks whose rollouts differ in reward, with their difficulty."""

from __future__ import annotations

from rollforge.recipes.base import Candidates, RecipeOptions, Selection, recipe
from rollforge.recipes.prompting import select_prompts


@recipe("prompt")
def select(candidates: Candidates, options: RecipeOptions) -> Selection:
    """One example per task with differing rewards; other groups give no gradient."""
    return select_prompts(candidates, options, needs_spread=True)
