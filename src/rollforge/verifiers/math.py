"""Rewards an answer that is mathematically equal to the expected one.

Needs `expected_answer`; the judge also reads `question` (or else the prompt). The expected answer, freed of
`\\(...\\)` or `$...$` around it, is put in a box and read as LaTeX; the answer is searched for LaTeX and
plain expressions; math-verify says whether one equals the other. With a judge, an answer the library did
not accept is shown to a model in both orders, and is right only if both agree.

math-verify's own alarm is off: the worker this runs in has the hard time limit, and running into it is a
failure to judge. An answer in which nothing can be read is wrong; an expected answer that cannot be read is
a failure. Extra: `math`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonObject, Response, Task
from rollforge.verifiers.equivalence import EquivalenceJudge
from rollforge.verifiers.equivalence_judge import read_template
from rollforge.verifiers.judge_model import JudgeCost, JudgeEndpoint, JudgeOptions

needs = ("expected_answer",)


class MathOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a model has the last word on what the library did not accept."""

    judge: JudgeOptions | None = None
    """The judge for answers the library did not accept; None means the library decides alone."""
    judge_template: str | None = None
    """File with the judge's prompt: {question}, {first_answer}, {second_answer}; labels as in NeMo Gym."""


class Math:
    """Judges by symbolic equality, then, if asked to, by a model."""

    options_type = MathOptions

    @staticmethod
    def is_deterministic_with(options: JsonObject) -> bool:
        """A judge may change its mind."""
        return options.get("judge") is None

    def __init__(self, options: MathOptions | None = None) -> None:
        self._options = options or MathOptions()
        self._library = _Library()
        if self._options.judge is not None:
            JudgeEndpoint(
                self._options.judge
            )  # refuses a judge without model or address before the first rollout
        self._template = read_template(self._options.judge_template)

    def verify(self, task: Task, response: Response) -> JsonObject:
        expected = task.get("expected_answer")
        if expected is None:
            raise ValueError("the task has no expected_answer")
        text = response.text
        try:
            library_reward, extracted = self._library.score(str(expected), text)
        except UnreadableGold:
            if self._options.judge is None:
                raise
            library_reward, extracted = 0.0, None
        verdict: JsonObject = {
            "reward": library_reward,
            "library_reward": library_reward,
            "extracted_answer": extracted,
        }
        if self._options.judge is None or library_reward > 0.5:
            return verdict
        question = str(task.get("question") or task.prompt)
        return {**verdict, **_awaited(self._appeal(question, str(expected), extracted or text))}

    async def _appeal(self, question: str, expected: str, answer: str) -> JsonObject:
        """Both orders, since a judge may favour a place; the second is asked only after a first yes."""
        assert self._options.judge is not None
        endpoint = JudgeEndpoint(self._options.judge)
        judge = EquivalenceJudge(endpoint, attempts=self._options.judge.attempts, template=self._template)
        cost = JudgeCost()
        try:
            comparisons = [await judge.compare(question, expected, answer, cost)]
            if comparisons[0].is_equal:
                comparisons.append(await judge.compare(question, answer, expected, cost))
        finally:
            await endpoint.close()
        return {
            "reward": float(all(comparison.is_equal for comparison in comparisons)),
            "judge_evaluations": [comparison.to_fields() for comparison in comparisons],
            **cost.numbers(),
        }


def _awaited(coroutine: Coroutine[Any, Any, JsonObject]) -> JsonObject:
    """Its result: in this thread, or in one of its own where an event loop already runs here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


class UnreadableGold(ValueError):
    """The task's expected answer holds nothing the library can read."""


class _Library:
    """math-verify, set up once."""

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

    def score(self, expected: str, text: str) -> tuple[float, str | None]:
        """1.0 or 0.0, and what was read: the part written like the expected answer, else the first part."""
        answers = self._parse(text, self._answer_targets, parsing_timeout=None)
        golds = self._parse(
            f"\\boxed{{{without_delimiters(expected)}}}", self._gold_targets, parsing_timeout=None
        )
        if not golds:
            raise UnreadableGold(f"expected_answer {expected[:200]!r} holds nothing that can be compared")
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
    """The text without the math delimiters around it, which a box would not survive."""
    text = text.strip()
    if text.startswith("\\(") and text.endswith("\\)"):
        text = text[2:-2].strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text[1:-1].strip()
    return text
