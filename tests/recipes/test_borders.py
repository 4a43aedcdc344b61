"""Recipes: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from rollforge.recipes.base import (
    Candidates,
    Fates,
    RecipeOptions,
    drop_duplicates,
    group_stats,
    in_band,
    reaches,
)
from rollforge.recipes.pairing import _are_of_like_length, select_pairs
from rollforge.recipes.prompting import advantages


def candidates(rewards: list[float], groups: list[int] | None = None, **columns: Any) -> Candidates:
    size = len(rewards)
    return Candidates(
        row=np.arange(size),
        group=np.array(groups or [0] * size),
        reward=np.array(rewards),
        answer=np.array(columns.get("answer", range(size))),
        chars=np.array(columns.get("chars", [100] * size)),
        flags={},
    )


def test_a_band_is_closed_at_both_ends() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    given = candidates(rewards, [0] * 4 + [1] * 4 + [2] * 4)
    kept = in_band(given, RecipeOptions(band=(0.25, 0.75)))
    assert kept.tolist() == [True] * 8 + [False] * 4


def test_equal_answers_stay_where_nothing_is_deduplicated() -> None:
    given = candidates([1.0, 1.0], answer=[7, 7])
    for dedupe, alive in (("none", 2), ("exact", 1)):
        fates = Fates(2)
        drop_duplicates(fates, given, RecipeOptions(dedupe=cast("Any", dedupe)))
        assert int(fates.alive.sum()) == alive


def test_lengths_are_alike_up_to_the_ratio() -> None:
    options = RecipeOptions(length_ratio=2.0)
    assert _are_of_like_length(np.array([100, 100]), np.array([200, 201]), options).tolist() == [True, False]


def test_hard_pairs_take_the_best_loser_and_stop_at_the_most_pairs() -> None:
    given = candidates([1.0, 0.9, 0.5, 0.1])
    hardest = select_pairs(given, RecipeOptions(strategy="hardest", max_pairs=1))
    assert hardest.picks.tolist() == [[0, 2]]
    everything = select_pairs(given, RecipeOptions(strategy="all"))
    assert everything.picks.tolist()[0] == [0, 3] and len(everything.picks) == 5
    assert len(select_pairs(given, RecipeOptions(strategy="all", max_pairs=2)).picks) == 2


def test_rewards_that_differ_by_the_least_spread_up_to_rounding_are_no_signal() -> None:
    given = candidates([0.0, 1e-9, 0.0, 1.1e-9], [0, 0, 1, 1])
    assert group_stats(given, RecipeOptions()).has_signal(RecipeOptions()).tolist() == [False, True]


def test_a_reward_reaches_a_threshold_up_to_rounding() -> None:
    assert reaches(np.array([0.6 + 0.3, 1 - 2e-9]), 0.9).tolist() == [True, True]
    assert reaches(np.array([1 - 0.9e-9, 1 - 1.1e-9]), 1.0).tolist() == [True, False]


def test_the_standard_deviation_of_an_advantage_has_a_millionth_added() -> None:
    rewards = np.array([0.0, 2e-6])
    made = advantages(np.array([0, 0]), rewards)["advantage_grpo"]
    assert made == pytest.approx((rewards - 1e-6) / (np.std(rewards, ddof=1) + 1e-6), rel=1e-6)
