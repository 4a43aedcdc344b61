from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.errors import Failure
from rollforge.records import Response, Task
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.mcqa import Mcqa, McqaOptions
from rollforge.verifiers.running.ready_verifier import make_judge
from tests.verifiers.conftest import make_response

OPTIONS = [{"A": "Circle"}, {"B": "Square"}, {"C": "red square"}, {"D": None}]

STRICT = "strict_single_letter_boxed"
BOXED = "lenient_boxed"
COLON = "lenient_answer_colon"
MARKDOWN = "lenient_answer_colon_md"

GOLDEN = [
    (STRICT, r"so \boxed{B}", "B"),
    (STRICT, r"\boxed{ (B) }", "B"),
    (STRICT, r"\boxed{[B].}", "B"),
    (STRICT, r"\boxed{\text{B}}", "B"),
    (STRICT, r"\boxed{\text{ \text{B} }}", "B"),
    (STRICT, r"\boxed{B: Square}", "B"),
    (STRICT, r"\boxed{B) Square}", "B"),
    (STRICT, r"\boxed{B. Square}", "B"),
    (STRICT, r"\boxed{B - Square}", "B"),
    (STRICT, r"\boxed{A} no, \boxed{B}", "B"),
    (STRICT, r"\boxed{B} and \boxed{unclosed", None),
    (STRICT, r"\boxed{b}", None),
    (STRICT, r"\boxed{D}", None),
    (STRICT, r"\boxed{E}", None),
    (STRICT, r"\boxed{Square}", None),
    (STRICT, "B", None),
    (STRICT, "", None),
    (BOXED, r"\boxed{it is the Circle}", "A"),
    (BOXED, r"\boxed{\text{CIRCLE}}", "A"),
    (BOXED, r"\boxed{red   Square}", None),
    (BOXED, r"\boxed{triangle}", None),
    (BOXED, "Circle", None),
    (COLON, "Answer: B", "B"),
    (COLON, "ANSWER : b", "B"),
    (COLON, "Answer: A\nAnswer: B", "A"),
    (COLON, r"Answer: \text{B}", "B"),
    (COLON, "answer: red  SQUARE", "C"),
    (COLON, "Answer: B because", None),
    (COLON, "Answer: D", None),
    (MARKDOWN, "**Answer:** B", "B"),
    (MARKDOWN, "_Answer_: *c*", "C"),
    (MARKDOWN, "Answer: A\n\n**Answer**: B because it has four sides", "B"),
    (MARKDOWN, "Answer: A or B", None),
    (MARKDOWN, "Answer: A, B", None),
    (MARKDOWN, "Answer: A\nAnswer: A/B", "A"),
    (MARKDOWN, "Answer: the option B", "B"),
    (MARKDOWN, "Answer: Ｂ", "B"),
    (MARKDOWN, "Answer: ب", "B"),
]


@pytest.mark.parametrize(("mode", "text", "letter"), GOLDEN)
def test_each_grading_mode_reads_the_letter_as_documented(
    judged: Callable[..., Any], mode: Any, text: str, letter: str | None
) -> None:
    verdict = judged(Mcqa(McqaOptions(grading_mode=mode)), text, options=OPTIONS, expected_answer=" b ")
    assert verdict == {
        "reward": float(letter == "B"),
        "expected_answer": "B",
        "extracted_answer": letter,
    }


def test_the_rows_regex_is_tried_first_and_may_name_a_letter_without_option(
    judged: Callable[..., Any],
) -> None:
    def read(regex: Any, text: str) -> Any:
        return judged(
            Mcqa(), text, options=OPTIONS, expected_answer="A", template_metadata={"output_regex": regex}
        )["extracted_answer"]

    assert read(r"final:\s*(\w+)", r"final: b, Final: Z \boxed{A}") == "Z"
    assert read(r"final:\s*(.+)", "final: red   square") == "C"
    assert read([r"(broken", r"none (\w)", r"final:\s*(\w)"], "final: a") == "A"
    assert read(r"none (\w)", r"\boxed{A}") == "A"
    assert read(r"(x)?final: (\w)", "final: c") == "C"


async def test_a_rows_regex_that_backtracks_for_ever_fails_its_verdict_and_blocks_nothing() -> None:
    judge = make_judge(load_verifier("mcqa"), workers=1, timeout=1)
    fields = {"options": OPTIONS, "expected_answer": "B"}
    endless = Task({**fields, "template_metadata": {"output_regex": r"(?:\w+\s?)+#"}})
    quick = Task({**fields, "template_metadata": {"output_regex": r"final: (\w)"}})
    await judge.start()
    assert judge.counters.workers == 0
    hanging = asyncio.ensure_future(judge.judge(endless, make_response("many words " * 20)))
    await asyncio.sleep(0)
    assert (await judge.judge(Task(fields), make_response(r"\boxed{B}"))).reward == 1.0
    assert not hanging.done()
    with pytest.raises(Failure, match="no verdict within 1 s"):
        await hanging
    assert (await judge.judge(quick, make_response("final: b"))).reward == 1.0
    await judge.close()


def test_the_rows_own_mode_is_used_unless_the_option_overrules_it(judged: Callable[..., Any]) -> None:
    row = {"options": OPTIONS, "expected_answer": "A", "grading_mode": COLON}
    assert judged(Mcqa(), "Answer: A", **row)["reward"] == 1.0
    assert judged(Mcqa(McqaOptions(grading_mode="lenient_boxed")), "Answer: A", **row)["reward"] == 0.0


def test_a_task_that_cannot_be_judged_raises_instead_of_scoring_zero(judged: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="expected_answer"):
        judged(Mcqa(), r"\boxed{A}", options=OPTIONS, expected_answer="")
    with pytest.raises(ValueError, match="grading_mode"):
        judged(Mcqa(), r"\boxed{A}", options=OPTIONS, expected_answer="A", grading_mode="loose")


def test_text_of_all_messages_is_read_and_reasoning_is_not() -> None:
    def message(text: str) -> dict[str, Any]:
        return {"type": "message", "content": [{"type": "output_text", "text": text}]}

    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": r"\boxed{A}"}]}
    task = Task({"options": OPTIONS, "expected_answer": "B"})
    answer = Response({"output": [message(r"\boxed"), message("{B}"), reasoning]})
    assert Mcqa().verify(task, answer)["reward"] == 1.0


@given(st.text(alphabet="\\boxedtANSWER:ar {}*_AB\n ,"), st.sampled_from([STRICT, BOXED, COLON, MARKDOWN]))
def test_only_an_allowed_letter_is_ever_read(text: str, mode: Any) -> None:
    task = Task({"options": OPTIONS, "expected_answer": "B"})
    response = Response({"output": [{"type": "message", "content": text}]})
    assert Mcqa(McqaOptions(grading_mode=mode)).verify(task, response)["extracted_answer"] in {
        None,
        "A",
        "B",
        "C",
    }


@pytest.mark.parametrize("text", ["Answer：B", "Answer: Ⓑ", "Answer: 𝐁", "**Answer**： b"])
def test_compatible_forms_of_a_letter_count_since_0_7(judged: Callable[..., Any], text: str) -> None:
    row = {"options": OPTIONS, "expected_answer": "B", "grading_mode": "lenient_answer_colon_md"}
    assert judged(Mcqa(), text, **row)["reward"] == 1.0
    assert judged(Mcqa(McqaOptions(gym="0.5")), text, **row)["reward"] == 0.0


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("Die Antwort ist B", 1.0),
        ("die antwort ist: A\nDie Antwort ist B.", 1.0),
        ("Die Antwort ist B, oder Answer: A", 0.0),
        ("keine", 0.0),
        ("\\boxed{B}", 1.0),
    ],
)
def test_the_rows_own_prefix_is_read_since_0_7(judged: Callable[..., Any], text: str, reward: float) -> None:
    row = {
        "options": OPTIONS,
        "expected_answer": "B",
        "grading_mode": "lenient_answer_colon_md",
        "template_metadata": {"answer_prefix": "Die Antwort ist"},
    }
    assert judged(Mcqa(), text, **row)["reward"] == reward


async def test_a_row_regex_that_backtracks_for_ever_on_an_answer_is_a_zero() -> None:
    task = Task(
        {"options": OPTIONS, "expected_answer": "B", "template_metadata": {"output_regex": r"(?:\w+\s?)+#"}}
    )
    judge = make_judge(load_verifier("mcqa"), workers=1, timeout=60)
    await judge.start()
    try:
        verdict = await judge.judge(task, Response.from_text("many words " * 30))
    finally:
        await judge.close()
    assert (verdict.reward, verdict.numbers["timed_out"]) == (0.0, True)
