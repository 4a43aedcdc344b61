"""The fields of the verdicts that ready verifiers give; all but `reward` become fields of the row."""

from __future__ import annotations

from typing import TypedDict


class AnswerVerdictJson(TypedDict, total=False):
    """A verdict on an answer that was read out of the text."""

    reward: float
    expected_answer: str
    extracted_answer: str | None
    timed_out: bool


class SearchJson(TypedDict):
    """What a regular expression found: no verdict, but it travels as one."""

    reward: None
    extracted: str | None


class ComparisonJson(TypedDict):
    """What a judge said about two answers."""

    verdict_label: str | None
    text: str


class JudgeCostJson(TypedDict, total=False):
    """What judging took."""

    judge_calls: int
    judge_input_tokens: int
    judge_output_tokens: int
    judge_seconds: float
    judge_cached_tokens: int
    judge_reasoning_tokens: int


class JudgeVerdictJson(JudgeCostJson, total=False):
    """A score by a rubric."""

    reward: float
    judge_score: float
    judge_reason: str


class EquivalenceVerdictJson(AnswerVerdictJson, JudgeCostJson, total=False):
    """A verdict of a judge that compares answers."""

    judge_evaluations: list[ComparisonJson]
    failure_reason: str


class MathVerdictJson(EquivalenceVerdictJson, total=False):
    """A verdict of the library, or of a judge after it."""

    library_reward: float


class InstructionVerdictJson(TypedDict):
    """Which instructions an answer follows."""

    reward: float | None
    follow_all_instructions: bool | None
    follow_instruction_list: list[bool]


class SchemaVerdictJson(TypedDict, total=False):
    """Whether an answer fits a JSON schema, and where not."""

    reward: float
    is_json: bool
    error: str | None
    timed_out: bool


class NeedleVerdictJson(TypedDict):
    """Whether the values handed in are the expected ones."""

    reward: float
    accuracy: bool
    set_overlap: float
    parsed_synonym_values: list[object]
    arguments_are_readable: bool
    original_term_minefield_hit: bool
    order_instruction_following_failure: bool


CodeRunJson = TypedDict(
    "CodeRunJson",
    {
        "error_code": int,
        "error_message": str,
        "error": str,
        "output": str,
        "inputs": str,
        "expected": str,
        "execution time": float,
    },
    total=False,
)
"""How a program's tests ended: the first that failed, or how long all took."""


class CodeVerdictJson(TypedDict, total=False):
    """A verdict on a program."""

    reward: float
    extracted_model_code: str | None
    result: list[bool | int] | None
    metadata: CodeRunJson
    tests_passed: int
    tests_total: int
    unit_tests_time_taken: float
    reasoning_format_violation_rate: float
    difficulty: object
    sandbox: str
