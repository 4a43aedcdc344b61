from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.verifiers.reasoning_gym import ReasoningGym, extracted, names, tasks

Judged = Callable[..., Any]


@pytest.mark.parametrize("name", ["gcd", "chain_sum", "spell_backward"])
def test_rows_are_json_repeatable_and_their_own_answers_pass(judged: Judged, name: str) -> None:
    rows = [json.loads(json.dumps(row)) for row in tasks(name, 3, seed=7)]
    assert rows == list(tasks(name, 3, seed=7))
    assert rows[:2] == list(tasks(name, 2, seed=7))
    for row in rows:
        row.pop("responses_create_params")
        assert judged(ReasoningGym(), f"So <answer>{row['expected_answer']}</answer>", **row)["reward"] == 1.0
        assert judged(ReasoningGym(), "zzz nonsense", **row)["reward"] < 0.5
        assert judged(ReasoningGym(), "", **row)["reward"] < 0.5


def test_a_scorer_that_raises_is_a_failure_to_judge(judged: Judged) -> None:
    row = next(tasks("prime_factorization", 1))
    row.pop("responses_create_params")
    with pytest.raises(ValueError, match="zzz"):
        judged(ReasoningGym(), "zzz nonsense", **row)
    with pytest.raises(ValueError, match="reasoning_gym"):
        judged(ReasoningGym(), "x")


def test_a_wrong_name_suggests_the_right_one() -> None:
    assert "gcd" in names()
    with pytest.raises(UsageError, match="chain_sum"):
        next(tasks("chain_sums", 1))


def test_the_answer_is_taken_from_tags_then_box_then_everything() -> None:
    assert extracted("<answer>1</answer> <answer> 2 </answer> \\boxed{3}") == "2"
    assert extracted("x \\boxed{3}") == "3"
    assert extracted(" 4 ") == "4"
