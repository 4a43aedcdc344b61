"""Recipes: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rollforge import registry
from rollforge.errors import UsageError
from rollforge.index.row_facts import AnswerFacts
from rollforge.recipes.base import (
    NOISE,
    Candidates,
    Fates,
    RecipeOptions,
    balanced,
    drop_duplicates,
    group_stats,
    in_band,
    load_recipe,
    reaches,
    screen,
)
from rollforge.recipes.pairing import _are_of_like_length, select_pairs
from rollforge.recipes.prompting import advantages
from rollforge.recipes.recipe_columns import RolloutFacts, answer_codes, facts_at, facts_of, rollout_keys
from rollforge.recipes.usable import rewards_that_count, units_by_counts, usable_by_group, usable_in_task
from tests.goal_driver import facts

NAN = float("nan")


def candidates(rewards: list[float], groups: list[int] | None = None, **columns: Any) -> Candidates:
    size = len(rewards)
    return Candidates(
        row=np.arange(size),
        group=np.array(groups or [0] * size),
        reward=np.array(rewards),
        answer=np.array(columns.get("answer", range(size))),
        chars=np.array(columns.get("chars", [100] * size)),
        flags={name: np.array(mask) for name, mask in columns.get("flags", {}).items()},
        near_duplicate=np.array(columns["near"]) if "near" in columns else None,
        unpairable={name: np.array(pairs) for name, pairs in columns.get("unpairable", {}).items()},
    )


def test_a_band_is_closed_at_both_ends() -> None:
    rewards = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    given = candidates(rewards, [0] * 4 + [1] * 4 + [2] * 4)
    kept = in_band(given, RecipeOptions(band=(0.25, 0.75)))
    assert kept.tolist() == [True] * 8 + [False] * 4
    units = units_by_counts("sft", 0.0, 1.0, 4, RecipeOptions(band=(0.25, 0.75)))
    assert [units[yes, 4 - yes] for yes in range(5)] == [0, 1, 2, 3, 0]
    for recipe, band, expected in (
        ("sft", None, [0, 1, 2, 3, 4]), ("kto", (0.25, 0.75), [0, 1, 2, 3, 4]), ("grpo", None, [0, 1, 1, 1, 0]),
    ):  # fmt: skip
        units = units_by_counts(recipe, 0.0, 1.0, 4, RecipeOptions(band=band))
        assert [units[yes, 4 - yes] for yes in range(5)] == expected


def test_the_band_from_0_to_1_is_open_at_both_ends() -> None:
    given = candidates([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0, 0, 1, 1, 2, 2])
    assert in_band(given, RecipeOptions(band=(0.0, 1.0))).tolist() == [False] * 2 + [True] * 2 + [False] * 2
    assert in_band(given, RecipeOptions(band=(0.0, 0.9))).tolist() == [True] * 4 + [False] * 2


def test_equal_answers_stay_where_nothing_is_deduplicated() -> None:
    given = candidates([1.0, 1.0], answer=[7, 7])
    for dedupe, alive in (("none", 2), ("exact", 1)):
        fates = Fates(2)
        drop_duplicates(fates, given, RecipeOptions(dedupe=cast("Any", dedupe)))
        assert int(fates.alive.sum()) == alive


def test_nearly_equal_answers_stay_unless_they_are_asked_to_go() -> None:
    given = candidates([1.0, 1.0], near=[True, False])
    for dedupe, counts in (("exact", {"kept": 2}), ("near", {"kept": 1, "near duplicate": 1})):
        fates = Fates(2)
        drop_duplicates(fates, given, RecipeOptions(dedupe=cast("Any", dedupe)))
        assert fates.counts() == counts


def test_how_many_are_kept_is_counted_also_where_none_is() -> None:
    fates = Fates(2)
    fates.drop(np.array([True, True]), "unjudged")
    fates.drop(np.array([False, False]), "truncated")
    assert fates.counts() == {"kept": 0, "unjudged": 2}


@pytest.mark.parametrize(("drops", "keeps", "kept"), [(True, False, 1), (True, True, 2), (False, False, 2)])
def test_truncated_answers_go_unless_one_of_two_options_keeps_them(
    drops: bool, keeps: bool, kept: int
) -> None:
    given = candidates([1.0, 1.0], flags={"truncated": [True, False]})
    fates = screen(given, RecipeOptions(keep_truncated=keeps), drop_truncated=drops)
    assert int(fates.alive.sum()) == kept


@pytest.mark.parametrize(("keeps", "kept"), [(False, 1), (True, 2)])
def test_error_texts_go_unless_an_option_keeps_them(keeps: bool, kept: int) -> None:
    given = candidates([1.0, 1.0], flags={"error_text": [True, False]})
    assert int(screen(given, RecipeOptions(keep_error_text=keeps)).alive.sum()) == kept


def test_a_truncated_rollout_counts_for_groups_and_not_for_pairs() -> None:
    own = [facts(0, 0.0), facts(1, 1.0)._replace(truncated=True)]
    options = RecipeOptions()
    assert [len(rewards_that_count(recipe, own, options)) for recipe in ("grpo", "dpo", "rm")] == [2, 1, 1]
    assert [usable_in_task("grpo", 0, some, options) for some in ([], own[:1], own)] == [0, 0, 1]


def test_the_facts_of_a_task_come_by_sample_and_say_whether_it_was_answered() -> None:
    columns = dict.fromkeys(RolloutFacts._fields[1:], np.zeros(3)) | {"rollout": np.array([2, 0, 1])}
    assert [one.sample for one in facts_at(columns, np.arange(3))] == [0, 1, 2]
    for reason, has_failed in (("failed", True), ("cancelled", True), ("stop", False), (None, False)):
        made = facts_of(0, AnswerFacts(finish_reason=reason), reward=1.0, is_masked=False)
        assert made.failed is has_failed and not made.filtered


@pytest.mark.parametrize(("recipe", "units"), [("grpo", 1), ("sft", 0)])
def test_an_empty_answer_counts_where_only_the_prompt_is_written(recipe: str, units: int) -> None:
    given = candidates([1.0, 0.0], flags={"empty": [True, False]})
    assert usable_by_group(recipe, given, RecipeOptions()).tolist() == [units]


def test_the_first_task_and_the_first_sample_are_known_by_their_number() -> None:
    columns = {
        "task_key": np.array([0, 0, -1, -1]), "sample_key": np.array([0, 0, -1, -1]),
        "prompt_hash": np.array([5, 6, 5, 6]), "answer_hash": np.array([7, 8, 7, 8]),
    }  # fmt: skip
    keys = rollout_keys(columns).tolist()
    assert keys[0] == keys[1] and len(set(keys)) == 3


def test_answers_with_a_tool_call_or_without_a_text_equal_no_other() -> None:
    columns = {
        "has_answer": np.array([True, True, True, True, False, False]), "tool_calls": np.array([0, 0, 1, 1, 0, 0]),
        "answer_hash": np.full(6, 7),
    }  # fmt: skip
    made = answer_codes(columns).tolist()
    assert made[:2] == [7, 7] and len(set(made)) == 5


def test_a_group_without_a_reward_has_no_ends() -> None:
    stats = group_stats(candidates([0.5, NAN, 0.2], [0, 1, 2]), RecipeOptions())
    assert stats.low.tolist() == pytest.approx([0.5, NAN, 0.2], nan_ok=True)
    assert stats.high.tolist() == pytest.approx([0.5, NAN, 0.2], nan_ok=True)
    stats = group_stats(candidates([0.5, 0.0, 1.0, NAN], [0, 1, 1, 1]), RecipeOptions())
    assert stats.std.tolist() == pytest.approx([NAN, 0.5**0.5], nan_ok=True)


def test_every_class_is_as_large_as_the_smallest() -> None:
    kept = balanced(np.array([0, 0, 0, 1, 1]), np.array([5, 1, 3, 2, 4], dtype=np.uint64))
    assert kept.tolist() == [False, True, True, True, True]
    assert balanced(np.array([], dtype=np.int64), np.array([], dtype=np.uint64)).tolist() == []


@pytest.mark.parametrize("strategy", ["inwards", "best", "hardest", "all"])
def test_a_gap_is_wide_enough_up_to_rounding(strategy: Any) -> None:
    options = RecipeOptions(strategy=strategy, min_gap=0.2)
    given = candidates([0.2 - NOISE, 0.0, 0.2 - 2 * NOISE, 0.0], [0, 0, 1, 1])
    assert select_pairs(given, options).picks.tolist() == [[0, 1]]
    alike = candidates([0.2 - NOISE, 0.0, 0.2 - 2 * NOISE, 0.0], [0, 0, 1, 1], answer=[7, 7, 8, 8])
    assert select_pairs(alike, options).fates == {"kept": 0, "left without a pair": 2, "gap too small": 2}


@pytest.mark.parametrize(
    ("rule", "picks"),
    [
        ({"high": 0.9}, [[0, 3]]), ({"low": 0.1}, [[0, 3]]),
        ({"flags": {"chosen_where": [False, True, False, False]}}, [[1, 3]]),
        ({"flags": {"rejected_where": [False, False, True, False]}}, [[0, 2]]), ({}, [[0, 3], [1, 2]]),
    ],
)  # fmt: skip
def test_one_tier_alone_decides_which_rollouts_make_pairs(
    rule: dict[str, Any], picks: list[list[int]]
) -> None:
    given = candidates([1.0, 0.7, 0.4, 0.0], flags=rule.get("flags", {}))
    options = RecipeOptions(min_gap=0.2, **{name: one for name, one in rule.items() if name != "flags"})
    assert select_pairs(given, options).picks.tolist() == picks


def test_pairs_go_inwards_to_the_middle_and_the_first_of_a_task_stay() -> None:
    for rewards, considered in (([1.0, 0.7, 0.4, 0.0], 2), ([1.0, 0.5, 0.0], 1)):
        made = select_pairs(candidates(rewards), RecipeOptions(min_gap=0.2))
        assert len(made) == made.settings["pairs"]["considered"] == considered
    two = candidates([1.0, 0.7, 0.4, 0.0] * 2, [0] * 4 + [1] * 4)
    assert select_pairs(two, RecipeOptions(min_gap=0.2, max_pairs=1)).picks.tolist() == [[0, 3], [4, 7]]


def test_a_rollout_is_in_at_most_so_many_pairs() -> None:
    given = candidates([1.0, 0.7, 0.4, 0.0])
    for uses, picks in ((1, [[0, 3], [1, 2]]), (2, [[0, 3], [1, 3], [0, 2], [1, 2]])):
        made = select_pairs(given, RecipeOptions(strategy="all", min_gap=0.2, max_uses=uses)).picks.tolist()
        assert made == picks


def test_tasks_are_taken_in_the_order_of_their_first_rollout() -> None:
    given = candidates([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], [2, 2, 0, 0, 1, 1])
    assert load_recipe("grpo")(given, RecipeOptions()).picks.tolist() == [0, 2, 4]


def test_a_pair_that_a_filter_bars_is_not_made() -> None:
    given = candidates([1.0, 0.7, 0.4, 0.0], unpairable={"too long": [[0, 3]]})
    chosen = select_pairs(given, RecipeOptions(min_gap=0.2))
    assert chosen.picks.tolist() == [[1, 2]] and chosen.fates == {"kept": 2, "too long": 2}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with three recipes of its own."""
    lines = ["from rollforge.recipes.base import recipe"]
    kinds = {"one": ("demonstration", "dpo"), "two": ("pair", "nothing"), "three": ("pair", "rm")}
    for name, (kind, like) in kinds.items():
        lines.append(f"{name} = recipe({kind!r}, like={like!r})(lambda candidates, options: None)")
    (tmp_path / "own_recipes.py").write_text("\n".join(lines))
    folder = tmp_path / "own_recipes-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: own_recipes\nVersion: 1.0\n")
    names = "".join(f"{name} = own_recipes:{name}\n" for name in kinds)
    (folder / "entry_points.txt").write_text(f"[rollforge.recipes]\n{names}")
    monkeypatch.syspath_prepend(tmp_path)
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()


@pytest.mark.parametrize(("name", "like", "known"), [("one", "dpo", "sft"), ("two", "nothing", "dpo, rm")])
def test_a_recipe_of_ones_own_is_like_a_built_in_one_of_its_kind(
    installed: None, name: str, like: str, known: str
) -> None:
    with pytest.raises(UsageError, match=f"like '{like}', which is no such recipe") as raised:
        load_recipe(name)
    assert raised.value.hint == f"one of {known}"
    assert load_recipe("three").like == "rm"


def test_lengths_are_alike_up_to_the_ratio() -> None:
    options = RecipeOptions(length_ratio=2.0)
    assert _are_of_like_length(np.array([100, 100]), np.array([200, 201]), options).tolist() == [True, False]
    rounded = RecipeOptions(length_ratio=3 - NOISE)
    assert _are_of_like_length(np.array([0, 1, 4]), np.array([3, 3, 1]), rounded).tolist() == [
        True,
        True,
        False,
    ]


def test_hard_pairs_take_the_best_loser_and_stop_at_the_most_pairs() -> None:
    given = candidates([1.0, 0.9, 0.5, 0.1])
    hardest = select_pairs(given, RecipeOptions(strategy="hardest", max_pairs=1))
    assert hardest.picks.tolist() == [[0, 2]]
    everything = select_pairs(given, RecipeOptions(strategy="all"))
    assert everything.picks.tolist()[0] == [0, 3] and len(everything.picks) == 5
    two = select_pairs(given, RecipeOptions(strategy="all", max_pairs=2))
    assert len(two.picks) == 2 and two.settings["pairs"]["considered"] == 2


def test_rewards_that_differ_by_the_least_spread_up_to_rounding_are_no_signal() -> None:
    given = candidates([0.0, 1e-9, 0.0, 1.1e-9], [0, 0, 1, 1])
    assert group_stats(given, RecipeOptions()).has_signal(RecipeOptions()).tolist() == [False, True]


def test_a_reward_reaches_a_threshold_up_to_rounding() -> None:
    assert reaches(np.array([0.6 + 0.3, 1 - 2e-9]), 0.9).tolist() == [True, True]
    assert reaches(np.array([1 - NOISE, 1 - 1.1e-9]), 1.0).tolist() == [True, False]


def test_the_standard_deviation_of_an_advantage_has_a_millionth_added() -> None:
    rewards = np.array([0.0, 2e-6])
    made = advantages(np.array([0, 0]), rewards)["advantage_grpo"]
    assert made == pytest.approx((rewards - 1e-6) / (np.std(rewards, ddof=1) + 1e-6), rel=1e-6)
