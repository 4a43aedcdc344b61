"""Verifying: numbers that decide what is said or done, each at its border and one step beside it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.steps.verify.flips import flip_of
from rollforge.steps.verify.judge_cost import JudgeMeter
from rollforge.steps.verify.spread import SpreadVerification
from rollforge.store import RunFiles


@pytest.mark.parametrize(
    ("a", "b", "flip"),
    [(0.49, 0.5, "0→1"), (0.5, 0.49, "1→0"), (0.5, 1.0, "changed"), (0.0, 0.49, "changed"), (0.5, 0.5, None)],
)
def test_a_flip_crosses_one_half(a: float, b: float, flip: str | None) -> None:
    assert flip_of(a, b) == flip


@pytest.mark.parametrize(
    ("before", "units", "paid", "pending", "may_exceed"),
    [
        (0, 0, 0, 0, False), (0, 0, 0, 1, True), (10, 0, 0, 0, True), (9, 0, 0, 0, False), (0, 4, 1, 0, False),
        (0, 4, 2, 1, False),
        (0, 4, 2, 2, True), (1, 4, 2, 1, True),
    ],
)  # fmt: skip
def test_verdicts_in_flight_are_reckoned_at_one_and_a_half_times_the_mean(
    before: int, units: int, paid: int, pending: int, may_exceed: bool
) -> None:
    cost: Any = object.__new__(JudgeMeter)
    cost._max_cost, cost._paid = 10.0, paid
    cost._before, cost._units = before * 10**12, units * 10**12
    assert cost.may_exceed_budget(pending) is may_exceed
    cost._max_cost = None
    assert not cost.may_exceed_budget(99)


def test_a_small_run_is_judged_in_32_parts_and_its_groups_in_one(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(
        "".join(f'{{"_ng_task_index":{task + 10},"_ng_rollout_index":0}}\n' for task in range(64))
    )
    spread: Any = object.__new__(SpreadVerification)
    spread.files = RunFiles(path)
    for is_group, parts in ((False, 32), (True, 1)):
        assert len(spread._parts_to_judge(SimpleNamespace(is_group=is_group))) == parts
    path.write_text('{"reward": 1}\n')
    with pytest.raises(UsageError, match="no task and rollout number"):
        spread._parts_to_judge(SimpleNamespace(is_group=False))
