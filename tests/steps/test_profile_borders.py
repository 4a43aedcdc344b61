"""Profiles: numbers that decide what is said or done, each at its border and one step beside it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollforge.adaptive.group_yield import Chain
from rollforge.index import open_index
from rollforge.steps.metrics.compat import _nth
from rollforge.steps.metrics.run_cost import usable_groups
from rollforge.steps.profile.gym_files import _statistics
from rollforge.steps.profile.profile_tables import (
    ProfileOptions,
    _expected_per_task,
    _reward_columns,
    profile_index,
)
from rollforge.steps.profile.summary import (
    _are_chains,
    _are_two,
    _chain,
    _class_counts,
    _tokens_per_success,
    _within_correlation,
    _yields,
    band_numbers,
)
from rollforge.steps.verify.tally import RolloutRewards
from tests.builders import make_rollout, write_rows
from tests.steps.made_groups import grouped

NAN = float("nan")


def test_bands_of_difficulty_begin_and_end_at_their_edges() -> None:
    rates = np.array([0.0, 0.01, 0.25, 0.26, 0.74, 0.75, 0.99, 1.0, NAN])
    assert band_numbers(rates).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 5]


@pytest.mark.parametrize(
    ("rewards", "are_two"),
    [
        ([0.0, 0.75], False), ([0.0, 0.76], True), ([0.0, 0.25, 1.0], True), ([0.0, 0.26, 1.0], False), ([0.0, 0.75, 1.0], True),
        ([0.0, 0.74, 1.0], False), ([NAN], False), ([0.0, NAN, 1.0], True),
    ],
)  # fmt: skip
def test_rewards_are_two_where_each_is_within_the_tolerance_of_an_end(
    rewards: list[float], are_two: bool
) -> None:
    assert _are_two(np.array(rewards), 0.25) is are_two


def test_rewards_within_the_tolerance_are_equal() -> None:
    ascending = np.array([[0.0, 0.25, 0.5], [0.0, 0.25, 0.25], [0.0, 0.5, 1.0]])
    assert _are_chains(ascending, 0.25).tolist() == [True, False, False]
    assert _chain(ascending[0], 0.25) == Chain((1, 1, 0))
    assert _class_counts(ascending[1:], 0.25) == [((3,), 1), ((1, 1, 1), 1)]
    assert _class_counts(np.array([[0.0, 0.25, 1.0]]), 0.25) == [((2, 1), 1)]
    assert _class_counts(np.array([[0.5], [0.7]]), 0.25) == [((1,), 2)]


def test_a_yield_is_exact_up_to_the_smallest_group_and_needs_two_samples() -> None:
    made = _yields(grouped(4, 4, 1), np.array([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]), 1e-9)
    assert [(one.k, one.is_exact, one.tasks) for one in made][:3] == [
        (2, True, 2),
        (4, True, 2),
        (8, False, 2),
    ]
    assert made[1].value == pytest.approx(0.5)
    assert _yields(grouped(1, 1), np.array([0.0, 1.0]), 1e-9) == []


@pytest.mark.parametrize(("threshold", "tokens"), [(0.5, 25.0), (0.51, 50.0), (1.1, None)])
def test_tokens_are_counted_by_rewards_that_reach_the_threshold(
    threshold: float, tokens: float | None
) -> None:
    column = np.array([10.0, 40.0, 70.0, NAN])
    rows: Any = SimpleNamespace(index=SimpleNamespace(numbers=["output_tokens"]), one=lambda name: column)
    assert _tokens_per_success(rows, np.array([0.5, 1.0, NAN, 1.0]), threshold) == tokens
    rows.index.numbers = []
    assert _tokens_per_success(rows, np.array([1.0] * 4), threshold) is None


def test_a_correlation_needs_four_samples_of_a_task_and_some_spread() -> None:
    reward, length = (
        np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]),
        np.array([1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 3.0]),
    )
    pooled, each = _within_correlation(grouped(4, 3), reward, length)
    assert pooled is not None and 0.8 < pooled < 1 and each[0] == pytest.approx(1.0) and np.isnan(each[1])
    assert _within_correlation(grouped(4, 3), np.ones(7), length)[0] is None


@pytest.mark.parametrize(
    ("rewards", "solved", "has_signal"),
    [
        ([0.5, 0.25], 1, False), ([0.5, 0.5], 2, False), ([0.49, 0.75], 1, True), ([0.0, 0.24], 0, False), ([0.0, 0.26], 0, True),
        ([1.0], 1, None),
    ],
)  # fmt: skip
def test_a_task_has_signal_where_two_rewards_differ_by_more_than_the_tolerance(
    rewards: list[float], solved: int, has_signal: bool | None
) -> None:
    rows = grouped(len(rewards))
    rows._kept, rows._remembered = {"reward": np.array(rewards)}, 0
    shelf: Any = SimpleNamespace(put=lambda values: values)
    made = _reward_columns(rows, ProfileOptions(threshold=0.5, tolerance=0.25), shelf)
    assert [made[name].to_pylist() for name in ("num_solved", "has_signal")] == [[solved], [has_signal]]


def test_requested_rollouts_are_counted_by_the_manifest_else_by_the_inputs() -> None:
    named = (np.array([3, 5]), np.array([2, 4]))
    index = SimpleNamespace(samples=None, inputs_per_task=lambda: named)
    rows: Any = SimpleNamespace(index=index)
    wanted = np.array([3, 4, 5, 9])
    assert np.asarray(_expected_per_task(rows, wanted)).tolist() == [2, 0, 4, 0]
    index.samples = 8
    assert np.asarray(_expected_per_task(rows, wanted)).tolist() == [8] * 4
    index.samples, index.inputs_per_task = None, lambda: None
    assert _expected_per_task(rows, wanted) is None


def test_a_single_value_has_no_error() -> None:
    made = _statistics("reward", np.array([0.5, NAN]))
    assert {value for key, value in made.items() if "std" in key or "sem" in key} == {0.0}
    assert _statistics("reward", np.array([NAN])) == {}
    assert _nth([[1.0], [2.0, 3.0]], 1) == [3.0] and _nth([[1.0]], 1) == []


def test_rewards_that_differ_make_a_group_usable() -> None:
    rewards = np.array([0.0, 0.0, 1.0, 0.5, NAN, NAN, NAN, 1.0])
    assert (
        usable_groups(rewards, np.array([0, 2, 4, 6])) == 1 and usable_groups(rewards[:0], np.array([0])) == 0
    )


def test_a_first_stage_ends_before_its_number() -> None:
    stage, everything = RolloutRewards(2), RolloutRewards()
    assert [stage.counts_rollout((0, sample)) for sample in (0, 1, 2)] == [True, True, False]
    assert everything.counts_rollout((0, 99))


@pytest.mark.parametrize(("gap", "is_equal"), [(1e-9, True), (2e-9, False)])
def test_rewards_are_equal_up_to_a_billionth_unless_said_otherwise(
    gap: float, is_equal: bool, tmp_path: Path
) -> None:
    write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 0.0), make_rollout(0, 1, gap)])
    with open_index(tmp_path) as index:
        summary = profile_index(index, ProfileOptions()).summary
    assert (summary.no_signal.tasks == 1) is is_equal
