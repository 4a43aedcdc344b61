"""Caps keep the best: of several pairs of a task those with the widest gap, in the order of the strategy."""

from __future__ import annotations

import pytest

from tests.recipes.test_recipes import candidates, select

REWARDS = [0.9, 0.1, 0.7, 0.3, 1.0, 0.0, 0.8, 0.2]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("inwards", [[0, 1], [4, 5]]),
        ("all", [[0, 1], [4, 5]]),
        ("best", [[0, 1], [4, 5]]),
    ],
)
def test_the_pair_with_the_widest_gap_stays_when_one_pair_is_allowed(
    strategy: str, expected: list[list[int]]
) -> None:
    chosen = select("dpo", candidates(GROUPS, REWARDS), strategy=strategy, max_pairs=1)
    assert sorted(chosen.picks.tolist()) == expected


def test_a_cap_counts_each_task_for_itself() -> None:
    chosen = select("dpo", candidates(GROUPS, REWARDS), max_pairs=2)
    assert sorted(chosen.picks.tolist()) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_tasks_may_come_in_any_order() -> None:
    mixed = candidates([1, 0, 1, 0, 1, 0, 1, 0], [1.0, 0.9, 0.0, 0.1, 0.8, 0.7, 0.2, 0.3])
    assert sorted(select("dpo", mixed, max_pairs=1).picks.tolist()) == [[0, 2], [1, 3]]
