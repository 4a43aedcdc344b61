from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollforge.errors import Failure, UsageError
from rollforge.records import Response, Task
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.building_blocks.equivalence import DIFFERENT, EQUAL
from rollforge.verifiers.building_blocks.judge_model import JudgeOptions
from rollforge.verifiers.math import Math, MathOptions, without_delimiters
from rollforge.verifiers.running.ready_verifier import make_judge
from tests.verifiers.judge_server import in_fence, judge_server

Judged = Callable[..., Any]


@pytest.mark.parametrize(
    ("expected", "text", "reward", "extracted"),
    [
        ("42", r"so \boxed{42}", 1.0, "42"),
        (r"\frac{1}{2}", r"\boxed{0.5}", 1.0, None),
        ("$0.5$", r"\boxed{\frac{2}{4}}", 1.0, "1/2"),
        (r"\(x^2+1\)", r"\boxed{1+x^2}", 1.0, "x**2 + 1"),
        ("42", "it is 42", 0.0, None),
        ("42", "$42$", 0.0, None),
        ("42", r"42, so \boxed{ }", 0.0, None),
        (r"\{1,2,3\}", r"\boxed{\{3,2,1\}}", 1.0, None),
        ("42", r"\boxed{41}", 0.0, "41"),
        ("42", "no idea", 0.0, None),
        ("42", "", 0.0, None),
        ("42", r"\boxed{", 0.0, None),
    ],
)
def test_answers_are_compared_as_mathematics(
    judged: Judged, expected: str, text: str, reward: float, extracted: str | None
) -> None:
    verdict = judged(Math(), text, expected_answer=expected)
    assert verdict["reward"] == verdict["library_reward"] == reward
    if extracted is not None:
        assert verdict["extracted_answer"] == extracted


@pytest.mark.parametrize(
    ("expected", "text", "reward"),
    [
        ("42", "it is 42", 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"\(x^2+1\)", r"$1+x^2$", 1.0),
        ("42", "41", 0.0),
    ],
)
def test_before_0_7_the_whole_text_is_searched(
    judged: Judged, expected: str, text: str, reward: float
) -> None:
    assert judged(Math(MathOptions(gym="0.5")), text, expected_answer=expected)["reward"] == reward
    assert load_verifier("math", {"gym": 0.5}).fingerprint != load_verifier("math").fingerprint


@pytest.mark.parametrize(
    "answer", ["9^{9^{9^{9}}}", "((((2^9)^9)^9)^9)^{9999}!", r"\sum_{k=1}^{10^{9}} k^{k^k}"]
)
async def test_an_answer_that_takes_for_ever_is_wrong_and_holds_no_worker(answer: str) -> None:
    judge = make_judge(load_verifier("math", {"answer_seconds": 0.3}), workers=1, timeout=60)
    await judge.start()
    try:
        task = Task({"expected_answer": "42"})
        verdict = await judge.judge(task, Response.from_text(f"\\boxed{{{answer}}}"))
        assert verdict.reward == 0.0
        assert (await judge.judge(task, Response.from_text(r"\boxed{42}"))).reward == 1.0
    finally:
        await judge.close()


def test_outer_delimiters_are_taken_off_once_each_way() -> None:
    assert without_delimiters(r" \( $5$ \) ") == "5"
    assert without_delimiters("$") == "$"
    assert without_delimiters("$5") == "$5"


def test_an_unreadable_expected_answer_is_a_failure_not_a_zero(judged: Judged) -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        judged(Math(), "42", expected_answer="")
    with pytest.raises(ValueError, match="no expected_answer"):
        judged(Math(), "42")


def with_judge(url: str, **options: Any) -> Math:
    return Math(MathOptions(judge=JudgeOptions(model="judge", base_url=url, retries=0, **options)))


def test_the_judge_is_asked_in_both_orders_and_only_about_what_the_library_refused(judged: Judged) -> None:
    with judge_server(in_fence(EQUAL)) as server:
        verifier = with_judge(server.url)
        right = judged(verifier, r"\boxed{42}", expected_answer="42", question="6 times 7?")
        assert right["reward"] == 1.0
        assert server.requests == []
        rescued = judged(verifier, r"\boxed{forty-two}", expected_answer="42", question="6 times 7?")
    assert (rescued["reward"], rescued["library_reward"], len(server.requests)) == (1.0, 0.0, 2)
    first, second = (request["messages"][-1]["content"] for request in server.requests)
    assert first.index("42") < first.index("forty-two")
    assert second.index("forty-two") < second.index("42\n")
    assert "6 times 7?" in first
    assert [item["verdict_label"] for item in rescued["judge_evaluations"]] == [EQUAL, EQUAL]
    assert (rescued["judge_input_tokens"], rescued["judge_output_tokens"]) == (22, 14)
    assert rescued["judge_seconds"] >= 0


def test_with_a_judge_it_is_not_deterministic_so_that_nothing_is_shared() -> None:
    judge = {"model": "judge", "base_url": "http://localhost/v1"}
    members = {"verifiers": {"one": "math", "other": "exact"}}
    dispatching = "rollforge.verifiers.by_taskset:ByTaskset"
    assert load_verifier("math").is_deterministic
    assert not load_verifier("math", {"judge": judge}).is_deterministic
    assert load_verifier(dispatching, members).is_deterministic
    assert not load_verifier(
        dispatching, {"verifiers": {"one": "math"}, "options": {"judge": judge}}
    ).is_deterministic


def test_a_judge_that_says_yes_only_in_one_order_means_no(judged: Judged) -> None:
    labels = iter([EQUAL, DIFFERENT])
    with judge_server(lambda request: in_fence(next(labels))(request)) as server:
        verdict = judged(with_judge(server.url), r"\boxed{forty-two}", expected_answer="42")
    assert verdict["reward"] == 0.0
    assert len(verdict["judge_evaluations"]) == 2


def test_a_first_no_is_not_asked_about_again(judged: Judged) -> None:
    with judge_server(in_fence(DIFFERENT)) as server:
        assert judged(with_judge(server.url), r"\boxed{forty-two}", expected_answer="42")["reward"] == 0.0
    assert len(server.requests) == 1


def test_a_judge_that_cannot_be_reached_or_read_is_a_failure_not_a_zero(judged: Judged) -> None:
    with judge_server(lambda request: (500, "down")) as server, pytest.raises(Failure, match="500"):
        judged(with_judge(server.url), r"\boxed{forty-two}", expected_answer="42")
    with judge_server(lambda request: "hm") as server:
        with pytest.raises(Failure, match="no verdict"):
            judged(with_judge(server.url, attempts=2), r"\boxed{forty-two}", expected_answer="42")
        assert len(server.requests) == 2


def test_a_judge_without_model_or_address_is_refused_before_the_first_rollout() -> None:
    with pytest.raises(UsageError, match="base_url"):
        Math(MathOptions(judge=JudgeOptions(model="judge")))
