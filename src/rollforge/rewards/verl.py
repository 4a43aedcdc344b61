"""verl: `compute_score` for `reward.custom_reward_function`; this file's path is what `rollforge rewards --path verl` prints.

No missing reward is safe in verl: NaN poisons the advantages of its group, and None drops the scores of the whole batch. An
answer without a verdict therefore raises after retries, unless `on_unjudged=value=NUMBER` says otherwise. verl loads this file by
path, so classes defined here could not be imported by name; records are in `score_settings`.
"""

from __future__ import annotations

from typing import Any

from rollforge.records import JsonObject, Response, Task
from rollforge.rewards.score_settings import scorer_of
from rollforge.rewards.scoring import UNJUDGED, Judgement, Scorer
from rollforge.rewards.trainer_rows import GROUND_TRUTH, make_response, make_task

_NOT_OF_THE_TASK = ("num_turns", "rollout_reward_scores", "index", "split")
"""Keys of `extra_info` that verl or the prompt set adds; they are not task fields."""


def compute_score(
    data_source: str | None = None,
    solution_str: str = "",
    ground_truth: object = None,
    extra_info: JsonObject | None = None,
    **settings: Any,
) -> dict[str, float]:
    """The score of one answer, for verl's sync path (a thread per call).

    Args:
        settings: `reward_kwargs` of verl's configuration: fields of `ScoreSettings`, such as `verifier` or `dataset`.
    """
    scorer, splits_reasoning = scorer_of(settings)
    pair = _pair(scorer, solution_str, ground_truth, extra_info, splits_reasoning=splits_reasoning)
    return _result(scorer.score([pair])[0])


async def compute_score_async(
    data_source: str | None = None,
    solution_str: str = "",
    ground_truth: object = None,
    extra_info: JsonObject | None = None,
    **settings: Any,
) -> dict[str, float]:
    """The score of one answer, for verl's reward loop, which awaits it: no thread per call."""
    scorer, splits_reasoning = scorer_of(settings)
    pair = _pair(scorer, solution_str, ground_truth, extra_info, splits_reasoning=splits_reasoning)
    return _result((await scorer.score_async([pair]))[0])


def _pair(
    scorer: Scorer,
    answer: str,
    ground_truth: object,
    extra_info: JsonObject | None,
    *,
    splits_reasoning: bool,
) -> tuple[Task, Response]:
    row = {key: value for key, value in dict(extra_info or {}).items() if key not in _NOT_OF_THE_TASK}
    if ground_truth is not None:
        row.setdefault(GROUND_TRUTH, ground_truth)
    task = make_task(row)
    scorer.check_fields(task)
    return task, make_response(answer, splits_reasoning=splits_reasoning)


def _result(judgement: Judgement) -> dict[str, float]:
    """verl's result dict, with the same keys for every answer, because verl stacks them over the batch."""
    assert judgement.reward is not None
    return {"score": judgement.reward, UNJUDGED: float(not judgement.is_judged)}
