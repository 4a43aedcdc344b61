"""Preparing datasets: numbers that decide what is said or done, each at its border and one step beside it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rollforge.errors import UsageError
from rollforge.recipes.base import RecipeOptions
from rollforge.steps.prepare.dataset_manifest import DatasetStatistics, Distribution
from rollforge.steps.prepare.dataset_plan import DatasetPlan, _sample
from rollforge.steps.prepare.describe import histogram, red_flags, scale_flags, summary
from rollforge.steps.prepare.overlap import Grams, SignatureIndex
from rollforge.steps.prepare.read_back import _Checker
from rollforge.steps.prepare.rollout_pool import _length_limits, _samples
from rollforge.steps.prepare.settings import _LEAST, make_settings
from rollforge.steps.prepare.survey import _keys

NAN = float("nan")


@pytest.mark.parametrize(("limit", "rows"), [(1, 2), (2, 2), (3, 2), (4, 4), (6, 6)])
def test_a_sample_of_groups_is_of_whole_ones(limit: int, rows: int) -> None:
    selection: Any = SimpleNamespace(kind="scored", first=np.arange(6))
    pool: Any = SimpleNamespace(candidates=SimpleNamespace(group=np.array([0, 0, 1, 1, 2, 2])))
    settings: Any = SimpleNamespace(limit=limit, seed=0)
    assert len(_sample(selection, pool, settings)) == rows


def spread(mean: float = 1.0, n: int = 100, least: float = 0.0) -> Distribution:
    return Distribution(n=n, mean=mean, std=0.1, min=least, median=mean, max=1.0)


@pytest.mark.parametrize(
    ("recipe", "numbers", "flags"),
    [
        ("sft", {"reward": spread(0.9)}, []), ("sft", {"reward": spread(0.89)}, ["low-mean-reward"]),
        ("sft", {"reward": spread(), "exact_duplicates": 20}, []),
        ("sft", {"reward": spread(), "exact_duplicates": 21}, ["duplicates"]),
        ("sft", {"reward": None}, []), ("dpo", {"gap": spread(0.2), "share_chosen_longer": 0.5}, []),
        ("rm", {"gap": spread(0.19), "share_chosen_longer": 0.5}, ["small-gaps"]), ("dpo", {"gap": None}, []),
        ("dpo", {"gap": spread(), "share_chosen_longer": 0.5, "share_gap_below": 0.2}, []),
        ("dpo", {"gap": spread(), "share_chosen_longer": 0.5, "share_gap_below": 0.21}, ["ambiguous-pairs"]),
        ("dpo", {"gap": spread(least=0.95), "share_chosen_longer": 0.5}, []),
        ("dpo", {"gap": spread(least=0.96), "share_chosen_longer": 0.5}, ["only-large-gaps"]),
        ("dpo", {"gap": spread(), "share_chosen_longer": 0.75}, []), ("dpo", {"gap": spread(), "share_chosen_longer": 0.25}, []),
        ("dpo", {"gap": spread(), "share_chosen_longer": 0.76}, ["length-bias"]),
        ("dpo", {"gap": spread(), "share_chosen_longer": 0.24}, ["length-bias"]),
        ("dpo", {"gap": spread(n=99), "share_chosen_longer": 0.9}, []), ("kto", {"desirable": 3, "undesirable": 4}, []),
        ("kto", {"desirable": 5, "undesirable": 4}, []), ("kto", {"desirable": 29, "undesirable": 40}, ["label-imbalance"]),
        ("kto", {"desirable": 40, "undesirable": 29}, ["label-imbalance"]),
        ("kto", {"desirable": 0, "undesirable": 4}, ["label-imbalance"]),
        ("grpo", {"mean_reward": spread(0.9), "std_reward": spread(0.1)}, []),
        ("ppo", {"mean_reward": spread(0.91), "std_reward": spread(0.1)}, ["too-easy"]),
        ("grpo", {"mean_reward": spread(0.1), "std_reward": spread(0.1)}, []),
        ("grpo", {"mean_reward": spread(0.09), "std_reward": spread(0.1)}, ["too-hard"]),
        ("grpo", {"mean_reward": spread(0.5), "std_reward": spread(0.09)}, ["flat-rewards"]), ("grpo", {}, []),
    ],
)  # fmt: skip
def test_a_dataset_is_flagged_beyond_the_border(
    recipe: str, numbers: dict[str, Any], flags: list[str]
) -> None:
    statistics = DatasetStatistics(tasks=9)
    for name in ("reward", "gap", "mean_reward", "std_reward", "share_gap_below", "share_chosen_longer"):
        setattr(statistics, name, None)
    statistics.desirable = statistics.undesirable = statistics.exact_duplicates = 0
    for name, value in numbers.items():
        setattr(statistics, name, value)
    assert [flag.id for flag in red_flags(recipe, 100, statistics)] == flags


@pytest.mark.parametrize(
    ("rewards", "is_flagged"),
    [
        ([0.0, 1.0], False),
        ([0.0, 1.1], True),
        ([-1.0, 1.0], False),
        ([-1.0, 0.9], True),
        ([NAN], False),
        ([0.2, 0.8], False),
    ],
)
def test_a_default_threshold_is_flagged_where_rewards_are_of_another_scale(
    rewards: list[float], is_flagged: bool
) -> None:
    assert bool(scale_flags(np.array(rewards), {"min_reward": 0.95}, RecipeOptions())) is is_flagged
    assert not scale_flags(np.array(rewards), {"min_reward": 0.95}, RecipeOptions(min_reward=0.95))
    assert not scale_flags(np.array(rewards), {}, RecipeOptions())


def test_one_number_has_no_spread_and_a_histogram_goes_from_0_to_1_if_it_can() -> None:
    one, two = summary(np.array([0.5, NAN])), summary(np.array([0.0, 1.0]))
    assert one is not None and one.std is None and two is not None and two.std == pytest.approx(0.5**0.5)
    assert summary(np.array([NAN])) is None
    for values, edges in (
        ([0.0, 1.0], (0.0, 1.0)),
        ([0.2, 0.4], (0.0, 1.0)),
        ([-0.1, 0.4], (-0.1, 0.4)),
        ([0.2, 1.1], (0.2, 1.1)),
    ):
        made = histogram(np.array([*values, NAN]))
        assert (made.edges[0], made.edges[-1]) == edges and sum(made.counts) == 2


@pytest.mark.parametrize(("equal", "is_near"), [(48, True), (47, False)])
def test_a_text_is_a_near_duplicate_from_the_threshold_on(equal: int, is_near: bool) -> None:
    index = SignatureIndex(0.75)
    one = np.arange(64, dtype=np.uint64)
    other = np.where(np.arange(64) < equal, one, one + 100)
    assert not index.has_near(one) and index.has_near(one)
    assert index.has_near(other) is is_near


def test_a_prompt_shorter_than_the_words_compared_matches_only_as_a_whole() -> None:
    grams = Grams(3)
    grams.add("alpha beta gamma delta")
    grams.add("short one")
    grams.add("")
    texts = (
        "beta gamma delta",
        "beta gamma",
        "so alpha beta gamma it is",
        "a short one here",
        "short one",
        "short",
        "alpha beta delta",
    )
    assert [grams.overlaps(text) for text in texts] == [True, False, True, True, True, False, False]
    assert len(grams) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"near": 1.0}, None), ({"near": 0.0}, "--near"), ({"near": 1.1}, "--near"), ({"low": 0.2, "high": 0.3}, None),
        ({"low": 0.3, "high": 0.3}, "is not below"), ({"band": (0.5, 0.5)}, None), ({"band": (0.6, 0.5)}, "above the second"),
        ({"split": (1.0,)}, None), ({"split": (0.5, 0.5)}, None), ({"split": (0.5, 0.4)}, "sum to 0.9"),
        ({"split": (1.0, 0.0)}, "above 0"),
        ({"split": ()}, "one to three"), ({"split": (0.25, 0.25, 0.25, 0.25)}, "one to three"),
        ({"max_tokens": 5}, "--tokenizer"),
        ({"high": float("inf")}, "must be a finite number"),
    ],
)  # fmt: skip
def test_settings_are_within_their_bounds(options: dict[str, object], said: str | None) -> None:
    if said is None:
        make_settings(options)
        return
    with pytest.raises(UsageError, match=said):
        make_settings(options)


@pytest.mark.parametrize(("name", "least"), _LEAST.items())
def test_a_setting_may_be_its_least(name: str, least: int) -> None:
    make_settings({name: least})
    with pytest.raises(UsageError, match=f"must be at least {least}"):
        make_settings({name: least - 1})


def test_answers_may_be_as_long_as_the_limits() -> None:
    candidates: Any = SimpleNamespace(chars=np.array([1, 2, 3, 4]))
    settings: Any = SimpleNamespace(min_chars=2, max_chars=3)
    ruled_out = {why: mask.tolist() for why, mask in _length_limits(candidates, settings).items()}
    assert ruled_out == {
        "answer too short": [True, False, False, False],
        "answer too long": [False, False, False, True],
    }
    assert _length_limits(candidates, cast("Any", SimpleNamespace(min_chars=None, max_chars=None))) == {}


def test_samples_without_a_number_are_counted_in_their_group() -> None:
    columns = {"sample_key": np.array([0, -1, 5, -1])}
    assert _samples(columns, np.array([0, 0, 1, 1])).tolist() == [0, 1, 5, 1]


def test_a_file_is_read_back_up_to_its_fifth_problem(tmp_path: Path) -> None:
    checker: Any = object.__new__(_Checker)
    checker._blocks = lambda path, digest: [b"good", b"a\nb\nc\nd\ne\nf", b"good"]
    checker._count_good = lambda lines: 2 if lines == b"good" else None
    checker._problems = lambda line: [] if line == b"b" else ["odd"]
    assert checker._read(tmp_path, None) == (8, [f"row {row}: odd" for row in (3, 5, 6, 7, 8)])
    checker._problems = lambda line: ["odd"] if line == b"a" else []
    assert checker._read(tmp_path, None) == (10, ["row 3: odd"])


def test_a_prompt_that_moves_to_the_first_split_changes_places_with_one_there() -> None:
    selection: Any = SimpleNamespace(first=np.arange(6))
    prompts = np.array([7, 7, 8, 8, 9, 9])
    for keep, split in (([], [0, 0, 1, 1, 0, 0]), ([2], [1, 1, 0, 0, 0, 0]), ([0, 2], [0, 0, 0, 0, 0, 0])):
        plan = DatasetPlan(selection, np.array([0, 0, 0, 0, 1, 1]), ("train", "test"), 6)
        plan.swap_into_first(4, keep, prompts)
        assert plan.split.tolist() == split


def test_columns_with_optional_keys_come_in_order_of_name() -> None:
    uses = [frozenset({"rejected.name", "plain"}), frozenset({"chosen.name", "chosen.weight"})]
    keys = _keys(uses)
    assert list(keys) == ["chosen", "rejected"] and keys["chosen"] == {"name", "weight"}
