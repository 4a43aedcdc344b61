"""What every recipe promises: it is pure, counts every rollout once, and chooses nothing unusable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollforge.recipes import RECIPES
from rollforge.recipes.base import Candidates, RecipeOptions, load_recipe

NAN = float("nan")
CHOSEN = {"sft": 37, "dpo": 12, "kto": 56, "rm": 12, "ppo": 12, "grpo": 8}
"""One row per member: examples it makes of the pool below. A new recipe needs its row here."""


def pool(seed: int = 0) -> Candidates:
    """Twelve tasks of six rollouts: two flat ones, one failed and one unjudged rollout each, some truncated."""
    rng = np.random.default_rng(seed)
    size = 72
    group = np.repeat(np.arange(12), 6)
    reward = rng.integers(0, 2, size).astype(float)
    reward[group < 2], reward[5::6] = 1.0, NAN
    truncated = np.zeros(size, dtype=bool)
    truncated[::18] = True
    return Candidates(
        row=np.arange(size),
        group=group,
        reward=reward,
        answer=rng.permutation(size),
        chars=rng.integers(1, 500, size),
        key=rng.permutation(size) * 31,
        flags={"truncated": truncated},
    )


def test_every_member_has_a_row() -> None:
    assert set(CHOSEN) == set(RECIPES.names())


@pytest.mark.parametrize("name", RECIPES.names())
def test_every_rollout_is_counted_once_and_the_numbers_are_the_recorded_ones(name: str) -> None:
    given = pool()
    selection = load_recipe(name)(given, RecipeOptions())
    assert sum(selection.fates.values()) == len(given)
    assert selection.kind == load_recipe(name).kind
    assert len(selection) == CHOSEN[name]


@pytest.mark.parametrize("name", RECIPES.names())
def test_nothing_unjudged_is_chosen_nor_truncated_where_answers_are_written(name: str) -> None:
    given = pool()
    picks = load_recipe(name)(given, RecipeOptions()).picks.ravel()
    assert not np.isnan(given.reward[picks]).any()
    if load_recipe(name).kind != "prompt":
        assert not given.flags["truncated"][picks].any()


@pytest.mark.parametrize("name", RECIPES.names())
def test_a_recipe_is_pure_and_independent_of_the_order_of_rollouts(name: str) -> None:
    given = pool()
    options = RecipeOptions(per_task=1, max_pairs=1, dedupe="exact")
    chosen = load_recipe(name)(given, options)
    assert np.array_equal(chosen.picks, load_recipe(name)(given, options).picks)
    order = np.random.default_rng(9).permutation(len(given))
    assert given.key is not None
    other = replace(
        given,
        row=given.row[order],
        group=given.group[order],
        reward=given.reward[order],
        answer=given.answer[order],
        chars=given.chars[order],
        key=given.key[order],
        flags={"truncated": given.flags["truncated"][order]},
    )
    again = load_recipe(name)(other, options)
    picks = order[again.picks]
    if chosen.kind == "prompt":
        assert set(given.group[picks]) == set(given.group[chosen.picks])
    else:
        assert sorted(map(tuple, picks.reshape(len(picks), -1))) == sorted(
            map(tuple, chosen.picks.reshape(len(chosen), -1))
        )
