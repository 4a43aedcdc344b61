"""Recipes: which rollouts are chosen, and that every rollout meets exactly one fate."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge.recipes import RECIPES
from rollforge.recipes.base import (
    Candidates,
    RecipeOptions,
    balanced,
    group_stats,
    load_recipe,
    scrambled,
    success_threshold,
)
from rollforge.recipes.prompting import advantages, select_groups

NAN = float("nan")


def candidates(groups: list[int], rewards: list[float], **columns: Any) -> Candidates:
    size = len(groups)
    return Candidates(
        row=np.arange(size),
        group=np.array(groups, dtype=np.int64),
        reward=np.array(rewards, dtype=float),
        answer=np.array(columns.pop("answer", range(size)), dtype=np.int64),
        chars=np.array(columns.pop("chars", [100] * size), dtype=np.int64),
        flags={name: np.array(mask) for name, mask in columns.pop("flags", {}).items()},
        **columns,
    )


def select(recipe: str, given: Candidates, **options: Any) -> Any:
    return load_recipe(recipe)(given, RecipeOptions(**options))


def test_sft_keeps_reward_one_for_binary_rewards_and_095_for_others() -> None:
    assert success_threshold(np.array([0.0, 1.0, NAN]), None) == 1.0
    assert success_threshold(np.array([0.0, 0.96, 1.0]), None) == 0.95
    assert select("sft", candidates([0, 0, 0], [0.94, 0.95, 1.0])).picks.tolist() == [1, 2]


def test_sft_leaves_out_unjudged_truncated_empty_and_error_texts_and_says_so() -> None:
    flags = {
        "truncated": [False, True, False, False, False],
        "empty": [False, False, True, False, False],
        "error_text": [False, False, False, True, False],
    }
    chosen = select("sft", candidates([0] * 5, [NAN, 1.0, 1.0, 1.0, 1.0], flags=flags))
    assert chosen.picks.tolist() == [4]
    assert chosen.fates == {
        "kept": 1, "unjudged": 1, "truncated": 1, "empty answer": 1, "error text as answer": 1,
    }  # fmt: skip


def test_an_unjudged_rollout_is_never_a_rejected_answer() -> None:
    assert len(select("dpo", candidates([0, 0], [1.0, NAN]))) == 0


def test_sft_takes_the_best_n_of_each_task() -> None:
    given = candidates([0, 0, 0, 1, 1], [0.96, 1.0, 0.97, 1.0, 0.99])
    assert select("sft", given, per_task=1).picks.tolist() == [1, 3]


def test_ties_go_by_the_key_and_the_seed_and_not_by_the_order_or_the_length() -> None:
    keys = np.arange(400) * 7919
    chars = np.arange(400)
    given = candidates([i // 8 for i in range(400)], [1.0] * 400, chars=chars, key=keys)
    picked = select("sft", given, per_task=1).picks
    assert abs(float(np.mean(chars[picked] % 8)) - 3.5) < 1.0
    order = np.random.default_rng(1).permutation(400)
    other = candidates([i // 8 for i in order], [1.0] * 400, chars=chars[order], key=keys[order])
    assert set(order[select("sft", other, per_task=1).picks]) == set(picked)
    assert set(select("sft", given, per_task=1, seed=1).picks) != set(picked)


def test_pairs_of_equal_rewards_favour_no_length() -> None:
    rng = np.random.default_rng(5)
    size, rewards = 1600, rng.integers(0, 2, 1600).astype(float)
    chars = np.arange(size) % 8 * 100  # the order of lines is the order of lengths, as with a slow server
    for strategy in ("inwards", "all", "best", "hardest"):
        given = candidates(
            [i // 8 for i in range(size)], rewards.tolist(), chars=chars, key=rng.permutation(size)
        )
        pairs = select("dpo", given, strategy=strategy, max_pairs=1).picks
        assert len(pairs) > 150
        assert abs(chars[pairs[:, 0]].mean() - chars[pairs[:, 1]].mean()) < 70


def test_a_sum_in_another_order_does_not_break_a_tie() -> None:
    for key in ([3, 4], [4, 3]):
        given = candidates([0, 0], [0.3, 0.1 + 0.2], key=np.array(key))
        ties = given.ties(0)
        assert select("sft", given, min_reward=0.1, per_task=1).picks.tolist() == [int(np.argmin(ties))]


def test_balance_goes_by_ties() -> None:
    kept = balanced(np.array([0, 0, 0, 1]), np.array([5, 1, 9, 7], dtype=np.uint64))
    assert kept.tolist() == [False, True, False, True]


def test_sft_drops_equal_answers_of_one_task_only() -> None:
    given = candidates([0, 0, 1], [1.0, 1.0, 1.0], answer=[7, 7, 7])
    kept = select("sft", given, dedupe="exact").picks.tolist()
    assert kept in ([0, 2], [1, 2])
    assert select("sft", given).picks.tolist() == [0, 1, 2]


def test_a_band_keeps_tasks_by_their_pass_rate() -> None:
    given = candidates([0, 0, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0])
    assert select("sft", given, band=(0.1, 0.9)).picks.tolist() == [2]


def test_balance_gives_every_class_as_many_as_the_smallest() -> None:
    given = candidates([0] * 9, [1.0] * 9, balance=np.array([0] * 6 + [1] * 3))
    picks = select("sft", given).picks
    assert Counter(given.balance[picks].tolist()) == {0: 3, 1: 3}  # type: ignore[index]


def test_pairs_go_inwards_from_best_and_worst() -> None:
    given = candidates([0] * 5, [0.5, 1.0, 0.0, 0.8, 0.3])
    assert select("dpo", given).picks.tolist() == [[1, 2], [3, 4]]


def test_pairs_equal_those_of_the_plain_script() -> None:
    rng = np.random.default_rng(3)
    groups = np.sort(rng.integers(0, 40, 300)).tolist()
    rewards = rng.integers(0, 11, 300) / 10
    wanted = set()
    ties = scrambled(np.arange(300), 0)
    for group in set(groups):
        members = sorted((i for i in range(300) if groups[i] == group), key=lambda i: (-rewards[i], ties[i]))
        for i in range(len(members) // 2):
            chosen, rejected = members[i], members[-(i + 1)]
            if rewards[chosen] - rewards[rejected] >= 0.2 - 1e-9:
                wanted.add((chosen, rejected))
    found = {tuple(pair) for pair in select("dpo", candidates(groups, rewards.tolist())).picks.tolist()}
    assert found == wanted


def test_tiers_pair_only_high_with_low() -> None:
    given = candidates([0] * 4, [0.9, 0.6, 0.5, 0.1])
    assert select("dpo", given, high=0.7, low=0.4, strategy="all").picks.tolist() == [[0, 3]]
    flags = {"chosen_where": [True, False, False, False], "rejected_where": [False, False, True, True]}
    pairs = select(
        "dpo", candidates([0] * 4, [0.9, 0.6, 0.5, 0.1], flags=flags), strategy="all"
    ).picks.tolist()
    assert sorted(pairs) == [[0, 2], [0, 3]]


def test_best_faces_each_worse_one_and_hardest_the_nearest() -> None:
    given = candidates([0] * 4, [1.0, 0.9, 0.5, 0.0])
    assert sorted(select("dpo", given, strategy="best").picks.tolist()) == [[0, 2], [0, 3]]
    assert sorted(select("dpo", given, strategy="hardest").picks.tolist()) == [[0, 2], [1, 2], [2, 3]]


def test_lengths_are_matched_on_request() -> None:
    given = candidates([0, 0, 1, 1], [1, 0, 1, 0], chars=[100, 120, 100, 900])
    assert select("dpo", given, length_ratio=1.5).picks.tolist() == [[0, 1]]


@pytest.mark.parametrize("strategy", ["all", "best", "hardest"])
def test_the_next_pair_is_tried_where_lengths_differ_too_much(strategy: Any) -> None:
    given = candidates([0] * 4, [1.0, 0.5, 0.7, 0.0], chars=[100, 115, 900, 2])
    options = {"strategy": strategy, "length_ratio": 1.15, "max_pairs": 1}
    assert select("dpo", given, **options).picks.tolist() == [[0, 1]]


@pytest.mark.parametrize("strategy", ["inwards", "all", "best", "hardest"])
def test_a_gap_as_wide_as_asked_is_wide_enough(strategy: Any) -> None:
    given = candidates([0, 0], [1.0, 0.8])
    assert select("dpo", given, strategy=strategy, min_gap=0.2).picks.tolist() == [[0, 1]]
    assert select("dpo", given, strategy=strategy, min_gap=0.21).fates == {"kept": 0, "gap too small": 2}


@pytest.mark.parametrize("strategy", ["inwards", "all", "best", "hardest"])
def test_equal_rewards_make_no_pair_however_small_the_gap_asked_for(strategy: Any) -> None:
    given = candidates([0, 0, 0], [0.3, 0.1 + 0.2, 0.0])
    chosen = select("dpo", given, strategy=strategy, min_gap=0.0).picks
    assert len(chosen) and (given.reward[chosen[:, 1]] == 0.0).all()


def test_a_reward_as_high_as_asked_reaches_a_threshold_whatever_its_last_digit() -> None:
    given = candidates([0, 0], [0.6 + 0.3, 0.1 + 0.2])
    assert select("sft", given, min_reward=0.9).picks.tolist() == [0]
    assert select("kto", given, high=0.9, low=0.3).values["label"].tolist() == [True, False]
    assert select("dpo", given, high=0.9, low=0.3).picks.tolist() == [[0, 1]]
    assert select("grpo", given, min_reward=0.9).values["pass_rate"].tolist() == [0.5]
    assert len(select("grpo", given, min_spread=0.6)) == 0


def test_kto_labels_the_tiers_and_leaves_out_what_lies_between() -> None:
    chosen = select("kto", candidates([0] * 4, [0.9, 0.5, 0.4, 0.1]))
    assert chosen.picks.tolist() == [0, 2, 3]
    assert chosen.values["label"].tolist() == [True, False, False]
    assert chosen.fates["between the tiers"] == 1
    balanced = select("kto", candidates([0] * 4, [0.9, 0.5, 0.4, 0.1]), balance_labels=True)
    assert balanced.values["label"].sum() * 2 == len(balanced)


@pytest.mark.parametrize(("reward", "label"), [(0.7, True), (0.69, None), (0.41, None), (0.4, False)])
def test_kto_wants_graded_rewards_from_07_and_does_not_want_those_up_to_04(
    reward: float, label: bool | None
) -> None:
    chosen = select("kto", candidates([0] * 3, [0.95, reward, 0.05]))
    found = dict(zip(chosen.picks.tolist(), chosen.values["label"].tolist(), strict=True))
    assert found.get(1) is label and found[0] is True and found[2] is False


def test_grpo_drops_groups_without_signal_by_max_minus_min() -> None:
    given = candidates([0, 0, 1, 1, 2], [1.0, 1.0, 0.5, 0.5001, 1.0])
    chosen = select("grpo", given)
    assert given.group[chosen.picks].tolist() == [1]
    assert chosen.fates == {"kept": 2, "alone in its group": 1, "group without signal": 2}
    assert len(select("grpo", given, min_spread=0.01)) == 0
    assert len(select("ppo", given)) == 3


def test_rewards_that_differ_in_the_last_digits_of_a_sum_are_no_signal() -> None:
    chosen = select("grpo", candidates([0, 0, 0], [0.3, 0.1 + 0.2, 0.3]))
    assert len(chosen) == 0 and chosen.fates["group without signal"] == 3


def test_statistics_of_a_task_are_over_its_judged_rollouts() -> None:
    stats = group_stats(candidates([0, 0, 0, 1], [1.0, 0.0, NAN, NAN]), RecipeOptions())
    assert stats.count.tolist() == [2, 0]
    assert stats.mean[0] == stats.pass_rate[0] == 0.5
    assert np.isnan(stats.mean[1]) and np.isnan(stats.low[1])


def test_advantages_are_the_named_variants() -> None:
    found = advantages(np.array([0, 0, 0, 1]), np.array([1.0, 0.0, 0.5, 0.7]))
    assert found["advantage_dr_grpo"][:3] == pytest.approx([0.5, -0.5, 0.0])
    assert found["advantage_rloo"][:3] == pytest.approx([0.75, -0.75, 0.0])
    assert found["advantage_grpo"][:3] == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)
    assert np.isnan(found["advantage_rloo"][3])


def test_groups_stay_together() -> None:
    chosen = select_groups(candidates([0, 1, 0, 1], [1, 0, 0, 1]), RecipeOptions(), needs_spread=True)
    assert chosen.picks.tolist() == [0, 2, 1, 3]


rewards = st.one_of(st.sampled_from([0.0, 0.5, 1.0, NAN]), st.floats(-5, 5))
runs = st.lists(
    st.tuples(st.integers(0, 5), rewards, st.integers(0, 3), st.integers(1, 500)), min_size=1, max_size=40
)


@settings(max_examples=150, deadline=None)
@given(
    rows=runs,
    recipe=st.sampled_from(RECIPES.names()),
    strategy=st.sampled_from(["inwards", "all", "best", "hardest"]),
    dedupe=st.sampled_from(["none", "exact"]),
    max_uses=st.none() | st.integers(1, 3),
    max_pairs=st.none() | st.integers(1, 3),
)
def test_every_rollout_meets_one_fate_and_pairs_keep_their_promises(
    rows: list[tuple[int, float, int, int]],
    recipe: str,
    strategy: Any,
    dedupe: Any,
    max_uses: int | None,
    max_pairs: int | None,
) -> None:
    groups = np.unique([row[0] for row in rows], return_inverse=True)[1].tolist()
    given_rows = candidates(
        groups, [r[1] for r in rows], answer=[r[2] for r in rows], chars=[r[3] for r in rows]
    )
    options = RecipeOptions(strategy=strategy, dedupe=dedupe, max_uses=max_uses, max_pairs=max_pairs)
    chosen = load_recipe(recipe)(given_rows, options)
    assert sum(chosen.fates.values()) == len(rows)
    assert not np.isnan(given_rows.reward[chosen.picks.ravel()]).any()
    if chosen.kind == "pair":
        better, worse = chosen.picks[:, 0], chosen.picks[:, 1]
        assert (given_rows.group[better] == given_rows.group[worse]).all()
        assert (given_rows.reward[better] - given_rows.reward[worse] >= 0.2 - 1e-9).all()
        assert (given_rows.answer[better] != given_rows.answer[worse]).all()
        assert len(set(map(tuple, chosen.picks.tolist()))) == len(chosen)
        assert chosen.fates["kept"] == len(np.unique(chosen.picks))
        if max_pairs is not None and len(chosen):
            assert np.bincount(given_rows.group[better]).max() <= max_pairs
        if max_uses is not None and len(chosen):
            assert np.bincount(chosen.picks.ravel()).max() <= max_uses
