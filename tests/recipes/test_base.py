"""What all recipes leave out."""

from __future__ import annotations

import numpy as np
import pytest

from rollforge.recipes.base import RecipeOptions, screen
from tests.recipes.test_borders import candidates


@pytest.mark.parametrize(
    ("drops", "keeps", "alive"), [(True, False, 1), (True, True, 2), (False, False, 2), (False, True, 2)]
)
def test_truncated_answers_go_only_where_the_recipe_drops_them_and_nobody_keeps_them(
    drops: bool, keeps: bool, alive: int
) -> None:
    given = candidates([1.0, 0.0])
    given.flags["truncated"] = np.array([True, False])
    fates = screen(given, RecipeOptions(keep_truncated=keeps), drop_truncated=drops)
    assert int(fates.alive.sum()) == alive
