"""Fields in verdicts of the built-in verifiers; all but `reward` become fields of the row."""

from __future__ import annotations

from typing import TypedDict


class AnswerVerdictJson(TypedDict, total=False):
    """Verdict on an extracted answer."""

    reward: float
    expected_answer: str
    extracted_answer: str | None
    timed_out: bool


class SearchJson(TypedDict):
    """Result of a regular expression search, in the form of a verdict."""

    reward: None
    extracted: str | None


class ComparisonJson(TypedDict):
    """A judge's result for two answers."""

    verdict_label: str | None
    text: str


class JudgeCostJson(TypedDict, total=False):
    """Cost of judging."""

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
    """Verdict of a judge that compares answers."""

    judge_evaluations: list[ComparisonJson]
    failure_reason: str


class MathVerdictJson(EquivalenceVerdictJson, total=False):
    """Verdict of math-verify, or of a judge after it."""

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
    """Whether the submitted values are the expected ones."""

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
"""Result of a program's tests: the first failure, or the duration of all."""


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
