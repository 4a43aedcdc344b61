"""Rollout row → experiences.

One per rollout as a rule. Where token ids were captured and every model call continues the one before, the
tokens of the whole rollout are stitched together, with a mask over what the model wrote (`exact`). Where the
calls do not continue each other (a template that drops old reasoning, say), stitching would train on tokens
the model never saw: then one experience per call (`per-call`). Without token ids there is the text (`text`),
and it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from rollforge.experience.record import Experience, Fidelity
from rollforge.records import (
    OWN_KEY,
    PARAMS_KEY,
    RESERVED_KEYS,
    ROLLOUT_KEY,
    TASK_KEY,
    JsonObject,
    Response,
    content_text,
)

USAGE = ("input_tokens", "output_tokens", "total_tokens")
"""What the server counted: numbers of an answer, not of a verdict."""


class RowSource(msgspec.Struct, frozen=True, kw_only=True):
    """What the row itself does not say."""

    run: str = ""
    """The run's id; it begins the ids of all its experiences."""
    taskset: str = ""
    model_version: int | None = None
    """The version of the policy, unless the row's own verdict numbers carry `model_version`."""
    per_turn: bool = False
    """One experience per model call even where the calls could be stitched: for step-wise training."""
    difficulty: float | None = None


class TokenCall(msgspec.Struct, frozen=True):
    """One model call with its tokens."""

    prompt: list[int]
    generated: list[int]
    logprobs: list[float]
    text: str


def experiences_from_row(row: Mapping[str, Any], source: RowSource | None = None) -> list[Experience]:
    """The experiences of one rollout row: one, or one per model call."""
    source = source or RowSource()
    response = Response(row.get("response") or {})
    whole = _whole(row, response, source)
    calls = model_calls(response.output)
    if calls and continues(calls) and not source.per_turn:
        return [_with_tokens(whole, calls, "exact")]
    if calls:
        fidelity: Fidelity = "exact" if len(calls) == 1 else "per-call"
        return [_with_tokens(_turn(whole, turn, call), [call], fidelity) for turn, call in enumerate(calls)]
    if source.per_turn:
        texts = [content_text(message.get("content")) for message in response.messages]
        return [_text_turn(whole, turn, text) for turn, text in enumerate(texts)] or [whole]
    return [whole]


def _whole(row: Mapping[str, Any], response: Response, source: RowSource) -> Experience:
    task, rollout = row.get(TASK_KEY), row.get(ROLLOUT_KEY)
    name = "/".join(part for part in (source.run, source.taskset) if part)
    group = f"{name}/{task}" if name else str(task)
    own = row.get(OWN_KEY) or {}
    params = row.get(PARAMS_KEY) or {}
    prompt = params.get("input") or []
    metrics = row_metrics(row)
    version = metrics.get("model_version")
    output_tokens = response.usage.get("output_tokens")
    return Experience(
        id=f"{group}/{rollout}",
        task=group,
        run=f"{group}/{rollout}",
        taskset=source.taskset,
        messages=[{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt),
        response=response.text,
        reward=_reward(row),
        metrics=metrics,
        model=response.raw.get("model"),
        model_version=source.model_version if version is None else int(version),
        truncated=response.is_truncated if response.finish_reason is not None else None,
        finish_reason=response.finish_reason,
        output_tokens=output_tokens if isinstance(output_tokens, int) else None,
        difficulty=source.difficulty,
        created=own.get("started"),
        info={
            key: value for key in ("verifier", "fingerprint", "mode") if (value := own.get(key)) is not None
        },
    )


def _reward(row: Mapping[str, Any]) -> float | None:
    reward = row.get("reward")
    return float(reward) if isinstance(reward, int | float) else None


def row_metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """Every number of the verdict beside the reward, as it stands at the top level of the row."""
    return {
        key: float(value)
        for key, value in row.items()
        if key not in RESERVED_KEYS and key != "reward" and isinstance(value, bool | int | float)
    }


def model_calls(output: list[JsonObject]) -> list[TokenCall]:
    """The model calls whose tokens were captured; they stand on the last item of each call."""
    calls, text = [], ""
    for item in output:
        if item.get("type") == "message":
            text += content_text(item.get("content"))
        generated = item.get("generation_token_ids")
        if generated:
            prompt = item.get("prompt_token_ids") or []
            logprobs = item.get("generation_log_probs") or []
            calls.append(TokenCall(prompt, generated, logprobs, text))
            text = ""
    return calls


def continues(calls: list[TokenCall]) -> bool:
    """Whether each call's prompt begins with all that came before it."""
    seen: list[int] = []
    for call in calls:
        if call.prompt[: len(seen)] != seen:
            return False
        seen = call.prompt + call.generated
    return True


def _with_tokens(experience: Experience, calls: list[TokenCall], fidelity: Fidelity) -> Experience:
    tokens = list(calls[0].prompt)
    prompt_length = len(tokens)
    mask: list[bool] = []
    logprobs: list[float] = []
    for call in calls:
        between = call.prompt[len(tokens) :]
        tokens += between + call.generated
        known = call.logprobs if len(call.logprobs) == len(call.generated) else None
        mask += [False] * len(between) + [True] * len(call.generated)
        logprobs += [0.0] * len(between) + (known or [np.nan] * len(call.generated))
    has_logprobs = not any(np.isnan(value) for value in logprobs)
    return msgspec.structs.replace(
        experience,
        fidelity=fidelity,
        prompt_length=prompt_length,
        tokens=np.array(tokens, dtype=np.int32),
        mask=np.array(mask, dtype=np.bool_),
        logprobs=np.array(logprobs, dtype=np.float32) if has_logprobs else None,
    )


def _turn(whole: Experience, turn: int, call: TokenCall) -> Experience:
    return msgspec.structs.replace(
        whole, id=f"{whole.run}/{turn}", turn=turn, response=call.text, output_tokens=len(call.generated)
    )


def _text_turn(whole: Experience, turn: int, text: str) -> Experience:
    return msgspec.structs.replace(
        whole, id=f"{whole.run}/{turn}", turn=turn, response=text, output_tokens=None
    )
