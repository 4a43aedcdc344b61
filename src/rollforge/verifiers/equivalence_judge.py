"""Rewards an answer that a judge model finds equivalent to the expected one.

Needs `expected_answer` (or `metadata.expected_answer`). The question is the last user message; the candidate is the last
assistant message, or the last match of the row's `template_metadata.output_regex` (or of the `response_extract_regex` option) in
it. An empty answer, or one longer than `max_answer_chars`, gets 0 without calling the judge. Options follow NeMo Gym's
equivalence_llm_judge and its shipped settings.

The candidate is untrusted data: see `equivalence` for the labels that count. An unreachable judge or unreadable reply is a
failure to judge, while NeMo Gym treats an unreadable reply as "not equal".
"""

from __future__ import annotations

from pathlib import Path

from rollforge.errors import UsageError
from rollforge.records import Response, Task
from rollforge.verifiers.building_blocks.answer_limit import TIMED_OUT
from rollforge.verifiers.building_blocks.equivalence import (
    DIFFERENT,
    EQUAL,
    EquivalenceJudge,
    Labels,
    PairVerdict,
    Reading,
)
from rollforge.verifiers.building_blocks.extraction import Extractor
from rollforge.verifiers.building_blocks.gym_version import NEWEST, GymVersion
from rollforge.verifiers.building_blocks.judge_model import JudgeCost, JudgeEndpoint, JudgeOptions, with_cost
from rollforge.verifiers.building_blocks.verdict_fields import EquivalenceVerdictJson

needs = ("expected_answer|metadata.expected_answer",)


class EquivalenceOptions(JudgeOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options for the judge, its prompt, and rewards."""

    gym: GymVersion = NEWEST
    """The release of NeMo Gym to agree with; 0.5 reads a reply to a template by its earliest label."""
    plain_labels: bool = False
    """Accept a label without the nonced fence in replies to a template, as NeMo Gym does: the last one counts. An answer may then
    make the judge repeat a label."""
    max_answer_chars: int | None = None
    """Longer answers get 0 and no judge is asked; None sets no limit."""
    template: str | None = None
    """File with the judge's prompt: {question}, {expected_answer}, {generated_answer}; None uses the built-in one."""
    system_message: str | None = None
    """System message of the judge, beside the prompt."""
    equal_label: str = EQUAL
    """What the judge writes when the answers are equivalent."""
    not_equal_label: str = DIFFERENT
    """What the judge writes when they are not."""
    question_extract_regex: str | None = None
    """Takes the question out of the last user message: last match, first group that is not empty."""
    response_extract_regex: str | None = None
    """Takes the answer out of the last assistant message in the same way; no match leaves the whole text."""
    use_per_record_regex: bool = True
    """Use the row's `template_metadata.output_regex` instead, where there is one."""
    extraction_length_threshold: int | None = None
    """Show the whole text instead of the row's regex's catch when the expected answer is longer than this."""
    check_twice_swap: bool = False
    """Ask again with the answers swapped; both must be found equal."""
    reward_if_swap_fails: float = 0.0
    """The reward when only the first order was found equal."""
    check_full_generation_on_fail: bool = False
    """Judge the whole text when what the row's regex caught was found different."""
    reward_if_full_generation_succeeds: float = 0.0
    """The reward when only the whole text was found equal."""


class EquivalenceVerifier:
    """Judges with a model that compares answers."""

    options_type = EquivalenceOptions
    is_deterministic = False

    def __init__(self, options: EquivalenceOptions | None = None) -> None:
        self._options = options or EquivalenceOptions()
        self._endpoint = JudgeEndpoint(self._options)
        self._extractor = Extractor()
        self._judge = EquivalenceJudge(
            self._endpoint,
            attempts=self._options.attempts,
            labels=Labels(self._options.equal_label, self._options.not_equal_label),
            template=read_template(self._options.template),
            system=self._options.system_message,
            reading=_reading(self._options),
        )

    async def verify(self, task: Task, response: Response) -> EquivalenceVerdictJson:
        expected = expected_answer(task)
        whole = answer_text(response)
        if not whole:
            return _zero(expected, "empty_final_answer")
        longest = self._options.max_answer_chars
        if longest is not None and len(whole) > longest:
            return _zero(expected, f"final_answer_too_long: {len(whole)} characters exceeds {longest}")
        question = await self._extractor.extracted(question_text(task), self._options.question_extract_regex)
        if question is None:
            raise ValueError("question_extract_regex takes too long on this question")
        row_regex = self._row_regex(task)
        threshold = self._options.extraction_length_threshold
        is_long = row_regex is not None and threshold is not None and len(expected) > threshold
        regex = None if is_long else row_regex or self._options.response_extract_regex
        candidate = await self._extractor.extracted(whole, regex)
        if candidate is None:
            return {**_zero(expected, "the regex takes too long on this answer"), TIMED_OUT: True}
        if not candidate.strip():
            return _zero(expected, "empty_final_answer")
        cost = JudgeCost()
        first = await self._judge.compare(question, expected, candidate, cost)
        comparisons = [first]
        if first.is_equal:
            reward = 1.0
            if self._options.check_twice_swap and not is_long:
                comparisons.append(await self._judge.compare(question, candidate, expected, cost))
                reward = 1.0 if comparisons[1].is_equal else self._options.reward_if_swap_fails
        else:
            reward = 0.0
            if self._options.check_full_generation_on_fail and row_regex is not None and not is_long:
                comparisons.append(await self._judge.compare(question, expected, whole, cost))
                reward = self._options.reward_if_full_generation_succeeds if comparisons[1].is_equal else 0.0
        return _verdict(reward, expected, candidate, comparisons, cost)

    async def close(self) -> None:
        await self._endpoint.close()
        await self._extractor.close()

    def _row_regex(self, task: Task) -> str | None:
        metadata = task.get("template_metadata")
        if not self._options.use_per_record_regex or not isinstance(metadata, dict):
            return None
        return metadata.get("output_regex") or None


def _reading(options: EquivalenceOptions) -> Reading:
    if options.gym == "0.5":
        return "earliest"
    return "last" if options.plain_labels else "nonced"


def _zero(expected: str, reason: str) -> EquivalenceVerdictJson:
    """The verdict 0 for an answer that needs no judge."""
    verdict: EquivalenceVerdictJson = {
        "reward": 0.0,
        "expected_answer": expected,
        "extracted_answer": None,
        "judge_evaluations": [],
        "failure_reason": reason,
    }
    return with_cost(verdict, JudgeCost())


def expected_answer(task: Task) -> str:
    """The row's expected answer, at the top level or in `metadata`; raises ValueError without one."""
    metadata = task.get("metadata")
    for row in (task, metadata if isinstance(metadata, dict) else {}):
        answer = row.get("expected_answer")
        if answer is not None and str(answer).strip():
            return str(answer)
    raise ValueError("the task has no expected_answer")


def question_text(task: Task) -> str:
    """Text of the last user message with text, its parts joined by newlines."""
    items = task.params.get("input") if isinstance(task.get("responses_create_params"), dict) else None
    if isinstance(items, str):
        return items.strip()
    for item in reversed(items if isinstance(items, list) else []):
        if isinstance(item, dict) and item.get("role") == "user":
            text = _joined(item.get("content"))
            if text is not None:
                return text.strip()
    return ""


def answer_text(response: Response) -> str:
    """Text of the last assistant message, its parts joined by newlines; empty without one."""
    for item in reversed(response.output):
        if item.get("type") == "message" and item.get("role", "assistant") == "assistant":
            return (_joined(item.get("content")) or "").strip()
    return ""


def read_template(path: str | None) -> str | None:
    """The text of a prompt file."""
    if path is None:
        return None
    try:
        return Path(path).expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="the judge's template is a text file") from error


def _joined(content: object) -> str | None:
    if isinstance(content, str):
        return content
    parts = (
        [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        if isinstance(content, list)
        else []
    )
    return "\n".join(parts) if parts else None


def _verdict(
    reward: float, expected: str, candidate: str, comparisons: list[PairVerdict], cost: JudgeCost
) -> EquivalenceVerdictJson:
    verdict: EquivalenceVerdictJson = {
        "reward": reward,
        "expected_answer": expected,
        "extracted_answer": candidate[:2000],
        "judge_evaluations": [comparison.to_fields() for comparison in comparisons],
    }
    return with_cost(verdict, cost)
