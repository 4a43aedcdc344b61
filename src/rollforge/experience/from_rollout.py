"""Experiences from a rollout row.

Usually one per rollout. If token ids were captured and every model call continues the previous one, the tokens of the whole
rollout are stitched together, with a mask over the model's tokens (`exact`). If calls do not continue each other (for example
because a template drops old reasoning), stitching would train on tokens that the model never saw, so each call becomes an
experience (`per-call`). Without valid token ids, the experience has text only (`text`). Non-finite logprobs are dropped; the
rollout stays.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from rollforge.experience.record import Experience, Fidelity
from rollforge.json_shapes import ItemJson, OwnJson, ParamsJson, RowJson, SequenceJson, played_in
from rollforge.records import (
    OWN_KEY,
    PARAMS_KEY,
    RESERVED_KEYS,
    ROLLOUT_KEY,
    TASK_KEY,
    Response,
    content_text,
    finite_number,
)

USAGE = ("input_tokens", "output_tokens", "total_tokens")
"""Usage fields counted by the server: numbers of the answer, not of the verdict."""


class RowSource(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a row that the row itself does not contain."""

    run: str = ""
    """The run's id, the prefix of all experience ids."""
    taskset: str = ""
    model_version: int | None = None
    """Version of the policy, unless the row's verdict contains `model_version`."""
    per_turn: bool = False
    """Whether to make one experience per model call even if calls could be stitched, for step-wise training."""
    difficulty: float | None = None


class TokenCall(msgspec.Struct, frozen=True):
    """One model call with its tokens."""

    prompt: list[int]
    generated: list[int]
    logprobs: list[float]
    text: str


def experiences_from_row(row: RowJson, source: RowSource | None = None) -> list[Experience]:
    """The experiences of one rollout row: one, or one per model call."""
    source = source or RowSource()
    response = Response(row.get("response") or {})
    experiences = _of_sequence(_whole(row, response, source), response, source)
    for number, sequence in further_sequences(row):
        prompt = sequence.get("prompt") or {}
        whole = _whole({**row, PARAMS_KEY: prompt, OWN_KEY: {}}, response, source)
        part = Response({**response.raw, "output": sequence.get("output") or [], "usage": None})
        tokens = sequence.get("output_tokens")
        whole = msgspec.structs.replace(
            whole,
            id=f"{whole.run}/s{number}",
            sequence=number,
            role=str(sequence.get("role")),
            response=part.text,
            output_tokens=tokens if isinstance(tokens, int) else None,
            truncated=None,
            finish_reason=None,
        )
        experiences += _of_sequence(whole, part, source)
    return experiences


def further_sequences(row: RowJson) -> list[tuple[int, SequenceJson]]:
    """Non-main sequences of a recorded program, with their numbers; repeated requests are excluded."""
    own = row.get(OWN_KEY)
    sequences = own.get("sequences") if isinstance(own, dict) else None
    return [
        (number, sequence)
        for number, sequence in enumerate(sequences if isinstance(sequences, list) else [])
        if number and isinstance(sequence, dict) and sequence.get("role") != "retry"
    ]


def _of_sequence(whole: Experience, response: Response, source: RowSource) -> list[Experience]:
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


def _whole(row: RowJson, response: Response, source: RowSource) -> Experience:
    task, rollout = row.get(TASK_KEY), row.get(ROLLOUT_KEY)
    name = "/".join(part for part in (source.run, source.taskset) if part)
    group = f"{name}/{task}" if name else str(task)
    own = row.get(OWN_KEY) or OwnJson()
    played = played_in(own)
    params = played or row.get(PARAMS_KEY) or ParamsJson()
    prompt = params.get("input") or []
    instructions = played.get("instructions") if played is not None else None
    if instructions and isinstance(prompt, list):
        system: ItemJson = {"role": "system", "content": instructions}
        prompt = [system, *prompt]
    metrics = row_metrics(row)
    version = metrics.get("model_version")
    output_tokens = response.usage.get("output_tokens")
    return Experience(
        id=f"{group}/{rollout}",
        task=group,
        run=f"{group}/{rollout}",
        taskset=source.taskset,
        messages=[{"role": "user", "content": prompt}]
        if isinstance(prompt, str)
        else [dict(item) for item in prompt],
        response=response.text,
        reward=_reward(row),
        metrics=metrics,
        model=str(model) if (model := response.raw.get("model")) is not None else None,
        model_version=source.model_version if version is None else int(version),
        truncated=response.is_truncated if response.finish_reason is not None else None,
        finish_reason=response.finish_reason,
        output_tokens=output_tokens if isinstance(output_tokens, int) else None,
        difficulty=source.difficulty,
        created=started if isinstance(started := own.get("started"), int | float) else None,
        info={
            key: value for key in ("verifier", "fingerprint", "mode") if (value := own.get(key)) is not None
        },
    )


def _reward(row: RowJson) -> float | None:
    return finite_number(row.get("reward"))


def row_metrics(row: RowJson) -> dict[str, float]:
    """All numbers of the verdict except the reward, from the top level of the row."""
    return {
        key: number
        for key, value in row.items()
        if key not in RESERVED_KEYS and key != "reward" and (number := finite_number(value)) is not None
    }


def model_calls(output: list[ItemJson]) -> list[TokenCall]:
    """The model calls with captured tokens, which are on the last item of each call."""
    calls, text = [], ""
    for item in output:
        if item.get("type") == "message":
            text += content_text(item.get("content"))
        generated: Any = item.get("generation_token_ids")
        prompt: Any = item.get("prompt_token_ids")
        if generated and _are_token_ids(generated) and _are_token_ids(prompt):
            logprobs = _finite_logprobs(item.get("generation_log_probs"), len(generated))
            calls.append(TokenCall(prompt, generated, logprobs, text))
            text = ""
    return calls


def _are_token_ids(value: object) -> bool:
    """Whether a value is a valid list of token ids: non-empty, of 32-bit integers."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one < 1 << 31 for one in value)
    )


def _finite_logprobs(value: object, count: int) -> list[float]:
    """The logprobs of `count` tokens; none if any of them is missing or not finite."""
    if not isinstance(value, list) or len(value) != count:
        return []
    numbers = [finite_number(one) for one in value]
    finite_numbers = [one for one in numbers if one is not None]
    return finite_numbers if len(finite_numbers) == count else []


def continues(calls: list[TokenCall]) -> bool:
    """Whether each call's prompt begins with all tokens of the previous call."""
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
        call_logprobs = call.logprobs if len(call.logprobs) == len(call.generated) else None
        mask += [False] * len(between) + [True] * len(call.generated)
        logprobs += [0.0] * len(between) + (call_logprobs or [np.nan] * len(call.generated))
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
        whole, id=f"{_stem(whole)}/{turn}", turn=turn, response=call.text, output_tokens=len(call.generated)
    )


def _stem(whole: Experience) -> str:
    """Id prefix of a sequence's turns."""
    return whole.id if whole.sequence else whole.run


def _text_turn(whole: Experience, turn: int, text: str) -> Experience:
    return msgspec.structs.replace(
        whole, id=f"{_stem(whole)}/{turn}", turn=turn, response=text, output_tokens=None
    )
