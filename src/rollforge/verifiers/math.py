"""Rewards an answer that is mathematically equal to the expected one.

Needs `expected_answer`; the judge also reads `question` (or else the prompt). As in NeMo Gym 0.7, an answer without a complete,
non-empty `\\boxed{...}` is wrong; with `gym=0.5` the whole text is searched. The expected answer, without enclosing `\\(...\\)` or
`$...$`, is put in a box and parsed as LaTeX; math-verify decides whether an expression of the answer equals it. With a judge, a model
compares answers that the library rejected, in both orders; they are right only if both results agree.

An answer that takes more than `answer_seconds` of CPU time is wrong, with `timed_out`. An expected answer that cannot be read, or
that itself takes too long, is a failure to judge. Extra: `math`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields, Response, Task
from rollforge.verifiers.building_blocks.answer_limit import (
    ANSWER_SECONDS,
    TIMED_OUT,
    AnswerTooSlow,
    answer_limit,
)
from rollforge.verifiers.building_blocks.equivalence import EquivalenceJudge
from rollforge.verifiers.building_blocks.gym_version import NEWEST, GymVersion
from rollforge.verifiers.building_blocks.judge_model import JudgeCost, JudgeEndpoint, JudgeOptions, with_cost
from rollforge.verifiers.building_blocks.verdict_fields import EquivalenceVerdictJson, MathVerdictJson
from rollforge.verifiers.equivalence_judge import read_template
from rollforge.verifiers.exact import last_boxed

needs = ("expected_answer",)


class MathOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for parsing answers, and the optional judge for rejected ones."""

    gym: GymVersion = NEWEST
    """The release of NeMo Gym to agree with: 0.7 wants a box, 0.5 searches the whole text."""
    answer_seconds: float = ANSWER_SECONDS
    """CPU time for reading and comparing one answer."""

    judge: JudgeOptions | None = None
    """The judge for answers the library did not accept; None means the library decides alone."""
    judge_template: str | None = None
    """File with the judge's prompt: {question}, {first_answer}, {second_answer}; labels as in NeMo Gym."""


class Math:
    """Judges by symbolic equality, then optionally by a model."""

    options_type = MathOptions

    @staticmethod
    def is_deterministic_with(options: JsonFields) -> bool:
        """Whether verdicts are deterministic: not with a judge model."""
        return options.get("judge") is None

    def __init__(self, options: MathOptions | None = None) -> None:
        self._options = options or MathOptions()
        self._library = _Library()
        if self._options.judge is not None:
            JudgeEndpoint(
                self._options.judge
            )  # refuses a judge without model or address before the first rollout
        self._template = read_template(self._options.judge_template)

    def verify(self, task: Task, response: Response) -> MathVerdictJson:
        expected = task.get("expected_answer")
        if expected is None:
            raise ValueError("the task has no expected_answer")
        golds = self._golds(str(expected))
        text = response.text
        boxed = last_boxed(text)
        wrong: MathVerdictJson = {"reward": 0.0, "library_reward": 0.0, "extracted_answer": None}
        if self._options.gym != "0.5" and not (boxed or "").strip():
            return wrong
        try:
            with answer_limit(self._options.answer_seconds):
                library_reward, extracted = self._library.score(golds, text)
        except AnswerTooSlow:
            return {**wrong, TIMED_OUT: True}
        verdict: MathVerdictJson = {
            "reward": library_reward,
            "library_reward": library_reward,
            "extracted_answer": extracted,
        }
        if self._options.judge is None or library_reward > 0.5:
            return verdict
        question = str(task.get("question") or task.prompt)
        shown = (extracted or text) if self._options.gym == "0.5" else str(boxed)
        return {**verdict, **_awaited(self._appeal(question, str(expected), shown))}

    def _golds(self, expected: str) -> list[Any]:
        """Expressions of the expected answer; empty if only a judge can read it."""
        try:
            return self._library.golds(expected)
        except UnreadableGold:
            if self._options.judge is None:
                raise
            return []

    async def _appeal(self, question: str, expected: str, answer: str) -> EquivalenceVerdictJson:
        """Compare in both orders, since a judge may favour a position; the second order only after a first yes."""
        assert self._options.judge is not None
        endpoint = JudgeEndpoint(self._options.judge)
        judge = EquivalenceJudge(
            endpoint,
            attempts=self._options.judge.attempts,
            template=self._template,
            reading="earliest" if self._options.gym == "0.5" else "nonced",
        )
        cost = JudgeCost()
        try:
            comparisons = [await judge.compare(question, expected, answer, cost)]
            if comparisons[0].is_equal:
                comparisons.append(await judge.compare(question, answer, expected, cost))
        finally:
            await endpoint.close()
        verdict: EquivalenceVerdictJson = {
            "reward": float(all(comparison.is_equal for comparison in comparisons)),
            "judge_evaluations": [comparison.to_fields() for comparison in comparisons],
        }
        return with_cost(verdict, cost)


def _awaited(coroutine: Coroutine[Any, Any, EquivalenceVerdictJson]) -> EquivalenceVerdictJson:
    """Run the coroutine in this thread, or in another one if this thread has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


class UnreadableGold(ValueError):
    """The library cannot parse the task's expected answer."""


class _Library:
    """The math-verify library, configured once."""

    def __init__(self) -> None:
        try:
            from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
        except ImportError as error:
            raise UsageError(
                "the math verifier needs the package math-verify", hint="pip install 'rollforge[math]'"
            ) from error
        logging.getLogger("math_verify").setLevel(logging.CRITICAL)
        self._gold_targets = (LatexExtractionConfig(),)
        self._answer_targets = (ExprExtractionConfig(), LatexExtractionConfig())
        self._parse: Any = parse
        self._verify: Any = verify

    def golds(self, expected: str) -> list[Any]:
        """Expressions of an expected answer; raises `UnreadableGold` if there is none."""
        parsed: list[Any] = self._parse(
            f"\\boxed{{{without_delimiters(expected)}}}", self._gold_targets, parsing_timeout=None
        )
        if not parsed:
            raise UnreadableGold(f"expected_answer {expected[:200]!r} holds nothing that can be compared")
        return parsed

    def score(self, golds: list[Any], text: str) -> tuple[float, str | None]:
        """1.0 or 0.0, and the extracted expression: one spelled like the expected answer, else the first."""
        if not golds:
            return 0.0, None
        answers = self._parse(text, self._answer_targets, parsing_timeout=None)
        try:
            gold_texts = {str(gold).strip() for gold in golds} - {""}
            answer_texts = [str(answer) for answer in answers]
        except (ValueError, RecursionError):  # an expression too large to be written down is no answer
            return 0.0, None
        is_equal = bool(self._verify(golds, answers, 6, timeout_seconds=None))
        extracted = next((text for text in answer_texts if text.strip() in gold_texts), None)
        if extracted is None and answer_texts:
            extracted = answer_texts[0]
        return float(is_equal), extracted


def without_delimiters(text: str) -> str:
    """The text without enclosing math delimiters, which cannot be parsed inside a box."""
    text = text.strip()
    if text.startswith("\\(") and text.endswith("\\)"):
        text = text[2:-2].strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text[1:-1].strip()
    return text
