"""OpenRLHF: `reward_func(queries, prompts, labels)` for a file given to --reward.remote_url.

A query is the prompt and the answer as one text, with special tokens; a label is the task row as JSON text, as
`rollforge prepare ppo --to openrlhf` writes it. OpenRLHF catches an `Exception`, continues without a reward, and then requires a
reward model; `UnjudgedStop` is a `BaseException`, so it stops the rollout instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rollforge.errors import DataError, UsageError
from rollforge.records import JsonFields, Response, Task, from_json
from rollforge.rewards.scoring import (
    RETRIES,
    UNJUDGED,
    Scorer,
    ScorerOptions,
    Unjudged,
    UnjudgedPolicy,
    shared_scorer,
)
from rollforge.rewards.trainer_rows import GROUND_TRUTH, answer_in, make_response, make_task
from rollforge.store.reading import UNREADABLE
from rollforge.verifiers.base import Mode
from rollforge.verifiers.running.ready_verifier import Workers

RewardResult = dict[str, Any]
RewardFunction = Callable[[Sequence[str], Sequence[str], Sequence[Any]], RewardResult]


class UnjudgedStop(BaseException):
    """Stops the training job because an answer has no verdict; a `BaseException`, since OpenRLHF swallows an `Exception`."""


def make_reward_func(
    verifier: str | Callable[..., Any],
    options: JsonFields | None = None,
    *,
    on_unjudged: str | float = "retry-then-raise",
    mode: Mode | None = None,
    workers: Workers = "auto",
    timeout_s: float = 60.0,
    retries: int = RETRIES,
    splits_reasoning: bool = False,
) -> RewardFunction:
    """A `reward_func` for OpenRLHF; arguments as in `reward`."""
    if UnjudgedPolicy.parse(on_unjudged).is_none:
        raise UsageError(
            "on_unjudged=none: OpenRLHF has no missing reward",
            hint="leave it out to stop, or say a number: on_unjudged='value=0'",
        )
    scorer = Scorer(
        ScorerOptions(
            verifier=verifier,
            options=options or {},
            mode=mode,
            workers=workers,
            timeout_s=timeout_s,
            retries=retries,
            on_unjudged=on_unjudged,
        )
    )

    def reward_func(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]) -> RewardResult:
        return _rewards(scorer, queries, prompts, labels, splits_reasoning=splits_reasoning)

    return reward_func


def reward_func(
    queries: Sequence[str],
    prompts: Sequence[str],
    labels: Sequence[Any],
    *,
    verifier: str = "",
    **options: Any,
) -> RewardResult:
    """Rewards from a verifier named in the call; `rollforge rewards --write openrlhf` writes a file that calls it."""
    if not verifier:
        raise UsageError(
            "reward_func: no verifier is named", hint="rollforge rewards --write openrlhf math > reward.py"
        )
    splits_reasoning = bool(options.pop("splits_reasoning", False))
    key = ("openrlhf", verifier, sorted(options.items()))
    scorer = shared_scorer(key, lambda: Scorer(ScorerOptions(verifier=verifier, **options)))
    return _rewards(scorer, queries, prompts, labels, splits_reasoning=splits_reasoning)


def _rewards(
    scorer: Scorer,
    queries: Sequence[str],
    prompts: Sequence[str],
    labels: Sequence[Any],
    *,
    splits_reasoning: bool,
) -> RewardResult:
    try:
        pairs = [
            _pair(scorer, query, prompt, label, splits_reasoning=splits_reasoning)
            for query, prompt, label in zip(queries, prompts, labels, strict=True)
        ]
        judgements = scorer.score(pairs)
    except (Unjudged, UsageError, DataError) as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise UnjudgedStop(f"{error}{hint}") from error
    rewards = [float(one.reward) for one in judgements if one.reward is not None]
    unjudged = [float(not one.is_judged) for one in judgements]
    if len(queries) == 1:  # OpenRLHF asks for one answer at a time and reads plain numbers
        return {"rewards": rewards[0], "scores": rewards[0], "extra_logs": {UNJUDGED: unjudged[0]}}
    return {"rewards": rewards, "scores": rewards, "extra_logs": {UNJUDGED: unjudged}}


def _pair(
    scorer: Scorer, query: str, prompt: str, label: object, *, splits_reasoning: bool
) -> tuple[Task, Response]:
    task = make_task(_row(label), prompt=prompt)
    scorer.check_fields(task)
    return task, make_response(answer_in(query, prompt), splits_reasoning=splits_reasoning)


def _row(label: object) -> JsonFields:
    """The task row in a label; a label that is no JSON object is used as the reference answer."""
    if isinstance(label, str):
        try:
            value = from_json(label)
        except UNREADABLE:
            value = None
        if isinstance(value, dict):
            return value
    return {} if label is None else {GROUND_TRUTH: label}
