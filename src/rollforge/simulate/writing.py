"""Formats the model's turns for both APIs, with usage, logprobs and token ids."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple, cast

import msgspec

from rollforge.json_shapes import (
    ChatChoiceJson,
    ChatCompletionJson,
    ChatMessageJson,
    ItemJson,
    PartJson,
    ResponseJson,
    Shape,
    TokenLogprobJson,
    UsageJson,
)
from rollforge.simulate import tokens
from rollforge.simulate.conversation import Ask, SimulatedTurn, ToolOutput
from rollforge.simulate.draws import Chance

FINGERPRINT = "rollforge-simulated"


class Answered(NamedTuple):
    """A turn with its identity."""

    turn: SimulatedTurn
    key: int
    """Key of the answer: equal for equal (seed, prompt, sample)."""


def write_responses(ask: Ask, model: str, answers: Sequence[Answered]) -> ResponseJson:
    """Format as a `response` object; the Responses API has one answer per request."""
    turn, key = answers[0]
    is_cut = turn.finish in ("length", "content_filter")
    status = "incomplete" if is_cut else "completed"
    reason = "max_output_tokens" if turn.finish == "length" else turn.finish
    body = ask.body
    return {
        "id": f"resp_{key:016x}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if is_cut else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": model,
        "output": _output_items(ask, turn, key, status),
        "parallel_tool_calls": ask.parallel_calls,
        "previous_response_id": None,
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "store": False,
        "temperature": ask.temperature,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p", 1.0),
        "truncation": "disabled",
        "usage": _responses_usage(ask, turn),
        "user": body.get("user"),
        "metadata": body.get("metadata") or {},
        "system_fingerprint": FINGERPRINT,
    }


def write_chat(ask: Ask, model: str, answers: Sequence[Answered]) -> ChatCompletionJson:
    """Format as a `chat.completion` object with one choice per answer."""
    prompt, generated = tokens.count_prompt(ask), [tokens.count_turn(turn) for turn, _ in answers]
    completion: ChatCompletionJson = {
        "id": f"chatcmpl-{answers[0].key:016x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
        "choices": [_choice(ask, number, answered) for number, answered in enumerate(answers)],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": sum(generated),
            "total_tokens": prompt + sum(generated),
            "prompt_tokens_details": {"cached_tokens": _cached(ask, prompt)},
            "completion_tokens_details": {
                "reasoning_tokens": sum(tokens.count(turn.reasoning) for turn, _ in answers)
            },
        },
    }
    if ask.wants_token_ids:
        completion["prompt_token_ids"] = tokens.prompt_ids(ask)
    return completion


_ABSURD: dict[str, object] = {
    "digits": msgspec.Raw(b"9" * 400),
    "negative": -5,
    "huge": msgspec.Raw(b"1e308"),
    "fraction": 12.5,
    "text": "many",
    "nan": msgspec.Raw(b"NaN"),
}
"""Token counts as broken servers report them; some are invalid JSON."""


def make_numbers_absurd(body: Shape, kind: str) -> Shape:
    """Replace the answer's times and token counts by one kind of invalid value."""
    nonsense = _ABSURD[kind]
    times = {key: nonsense for key in ("created", "created_at") if key in body}
    return cast("Shape", {**body, **times, "usage": _all_replaced(body["usage"], nonsense)})


def _all_replaced(value: object, nonsense: object) -> object:
    if isinstance(value, dict):
        return {key: _all_replaced(item, nonsense) for key, item in value.items()}
    return nonsense


def _output_items(ask: Ask, turn: SimulatedTurn, key: int, status: str) -> list[ItemJson]:
    items: list[ItemJson] = []
    if turn.reasoning:
        summary: list[PartJson] = [{"type": "summary_text", "text": turn.reasoning}]
        items.append(
            {"type": "reasoning", "id": f"rs_{key:016x}", "summary": summary, "encrypted_content": None}
        )
    if turn.refusal is not None:
        items.append(_message(key, status, {"type": "refusal", "refusal": turn.refusal}))
    elif turn.text or not turn.calls:
        part: PartJson = {"type": "output_text", "text": turn.text, "annotations": []}
        part["logprobs"] = _logprobs(ask, turn.text, key) if ask.wants_logprobs else []
        items.append(_message(key, status, part))
    for number, call in enumerate(turn.calls):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{key:016x}_{number}",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
                "status": status,
            }
        )
    if ask.wants_token_ids:
        items[-1] |= _token_fields(ask, turn, key)
    return items


def _message(key: int, status: str, part: PartJson) -> ItemJson:
    return {
        "type": "message",
        "id": f"msg_{key:016x}",
        "role": "assistant",
        "status": status,
        "content": [part],
    }


def _token_fields(ask: Ask, turn: SimulatedTurn, key: int) -> ItemJson:
    """The three token fields that NeMo Gym puts on the last item of a model call."""
    ids = tokens.turn_ids(turn)
    chance = Chance("token logprobs", key)
    return {
        "prompt_token_ids": tokens.prompt_ids(ask),
        "generation_token_ids": ids,
        "generation_log_probs": [round(-3.0 * chance.uniform() ** 4, 6) for _ in ids],
    }


def _choice(ask: Ask, number: int, answered: Answered) -> ChatChoiceJson:
    turn, key = answered
    message: ChatMessageJson = {"role": "assistant", "content": turn.text or (None if turn.calls else "")}
    message["refusal"] = turn.refusal
    if turn.refusal is not None:
        message["content"] = None
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in turn.calls
        ]
    choice: ChatChoiceJson = {
        "index": number,
        "message": message,
        "finish_reason": turn.finish,
        "logprobs": None,
    }
    if ask.wants_logprobs:
        # A server that gives token ids gives a logprob for each of them, reasoning and calls included.
        texts = tokens.generated_texts(turn) if ask.wants_token_ids else [turn.text]
        entries = [entry for text in texts for entry in _logprobs(ask, text, key)]
        choice["logprobs"] = {"content": entries, "refusal": None}
    if ask.wants_token_ids:
        choice["token_ids"] = tokens.turn_ids(turn)
    return choice


def _logprobs(ask: Ask, text: str, key: int) -> list[TokenLogprobJson]:
    return tokens.logprobs(text, ask.top_logprobs, Chance("logprobs", key))


def _responses_usage(ask: Ask, turn: SimulatedTurn) -> UsageJson:
    prompt, generated = tokens.count_prompt(ask), tokens.count_turn(turn)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": _cached(ask, prompt)},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": tokens.count(turn.reasoning)},
        "total_tokens": prompt + generated,
    }


def _cached(ask: Ask, prompt_tokens: int) -> int:
    """Prompt tokens already sent by an earlier turn of the rollout, in blocks of 16."""
    return prompt_tokens // 2 // 16 * 16 if any(isinstance(item, ToolOutput) for item in ask.items) else 0
