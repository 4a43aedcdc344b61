"""This module says what an answer looks like: how long, how many turns, how it ended. It keeps a hash, never the text.

The meaning of each fact is that of `records.Response`; here it is computed from a partly decoded response, because most of a
row is never needed.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

Number = int | float | bool | None


class Part(Struct):
    """A piece of a message's content."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class Item(Struct):
    """One item of a rollout; only what facts come from."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    generation_token_ids: Raw = Raw()


class Reason(Struct):
    """Why a response is incomplete."""

    reason: str | None = None


Usage = dict[str, Number | dict[str, Number]]


class PartlyRead(Struct):
    """A response; only what facts come from."""

    output: list[Item] | None = None
    usage: Usage | None = None
    status: str | None = None
    incomplete_details: Reason | None = None
    model: str | None = None


class ChatMessage(Struct):
    """A message of a row in chat form."""

    role: str | None = None
    content: str | list[Part] | None = None
    tool_calls: list[Raw] | None = None
    refusal: str | None = None


class Answer(NamedTuple):
    """What the answer looks like."""

    answer_hash: int | None = None
    answer_chars: int | None = None
    turns: int | None = None
    tool_calls: int | None = None
    finish_reason: str | None = None
    is_truncated: bool | None = None
    is_empty: bool | None = None
    is_refusal: bool | None = None
    error_text: bool | None = None
    has_token_ids: bool | None = None
    model: str | None = None


decode_response = msgspec.json.Decoder(PartlyRead).decode
decode_chat = msgspec.json.Decoder(list[ChatMessage]).decode
_decode_item = msgspec.json.Decoder(Item).decode

_REFUSAL = re.compile(
    r"\s*(?:(?:i['’]?m|i am) (?:really |very |so )?sorry,?|sorry,?|unfortunately,?)? ?(?:but )?(?:as an ai[^,]*, )?"
    r"i(?: can['’]?t|can['’]?t| cannot| won['’]?t| am (?:unable|not able) to|['’]m (?:unable|not able) to| must decline)"
    r" ?(?:to )?(?:help|assist|comply|provide|fulfil|answer|continue|do that|discuss|create|share)",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"\s*(?:traceback \(most recent call last\)|\{\s*\"(?:error|detail)\"\s*:|<!doctype html|<html"
    r"|(?:http |error )*[45]\d\d[: ]+(?:internal|bad|service|gateway|too many|not found|unauthorized|forbidden)"
    r"|internal server error|bad gateway|service unavailable|gateway time-?out|too many requests"
    r"|error code: \d|error: |exception: |connection (?:refused|error|reset)|rate limit|(?:error|failed|failure)[.!]*\s*$)",
    re.IGNORECASE,
)
_LOOKED_AT = 400
"""A refusal or an error message shows itself at the start; a long text that mentions one is neither."""

_BY_MODEL = frozenset({"message", "reasoning", "function_call"})
_LENGTH = frozenset({"max_output_tokens", "length", "max_tokens"})


def text_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process and on every machine."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def answer_of(response: PartlyRead) -> Answer:
    """The facts of a response."""
    texts: list[str] = []
    turns = calls = 0
    has_refused = has_token_ids = in_turn = False
    last = None
    for item in response.output or ():
        last = item.type
        if last == "function_call":
            calls += 1
        elif last == "message":
            content = item.content
            if type(content) is list:
                for part in content:
                    if part.type == "output_text":
                        texts.append(part.text or "")
                    elif part.type == "refusal":
                        has_refused = True
            elif content:
                texts.append(content)  # type: ignore[arg-type]
        if last in _BY_MODEL and item.role != "user":
            turns += not in_turn
            in_turn = True
        else:
            in_turn = False
        if not has_token_ids and len(item.generation_token_ids) > 2:
            has_token_ids = True
    text = texts[0] if len(texts) == 1 else "".join(texts)
    finish = _finish_reason(response, last)
    return _facts(text, turns, calls, finish, has_refused, has_token_ids, response.model)


def answer_of_chat(messages: list[ChatMessage]) -> Answer:
    """The facts of the assistant's messages in chat form; how the answer ended is not known there."""
    said = [message for message in messages if message.role == "assistant"]
    calls = sum(len(message.tool_calls or ()) for message in said)
    text = "".join(_chat_text(message.content) for message in said)
    return _facts(text, len(said), calls, None, any(message.refusal for message in said), False, None)


def _chat_text(content: str | list[Part] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text or "" for part in content)
    return content or ""


def _facts(
    text: str,
    turns: int,
    calls: int,
    finish: str | None,
    has_refused: bool,
    has_token_ids: bool,
    model: str | None,
) -> Answer:
    is_short = len(text) <= _LOOKED_AT
    is_empty = not calls and (not text or text.isspace())
    return Answer(
        answer_hash=text_hash(text) if text else None,
        answer_chars=len(text),
        turns=turns,
        tool_calls=calls,
        finish_reason=finish,
        is_truncated=finish == "length",
        is_empty=is_empty,
        is_refusal=has_refused or (is_short and _REFUSAL.match(text) is not None),
        error_text=is_short and _ERROR.match(text) is not None,
        has_token_ids=has_token_ids,
        model=model,
    )


def _finish_reason(response: PartlyRead, last: str | None) -> str | None:
    if response.incomplete_details is not None and response.incomplete_details.reason:
        reason = response.incomplete_details.reason
        return "length" if reason in _LENGTH else reason
    if response.status != "completed":
        return None
    return "tool_calls" if last == "function_call" else "stop"


def tolerant_response(raw: Raw) -> PartlyRead:
    """What can be saved of a response in which some part has an unexpected type."""
    value = msgspec.json.decode(raw)
    if not isinstance(value, dict):
        return PartlyRead()
    details = value.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    output = value.get("output")
    return PartlyRead(
        output=[_tolerant_item(item) for item in output] if isinstance(output, list) else None,
        usage=_tolerant_usage(value.get("usage")),
        status=_text(value.get("status")),
        incomplete_details=Reason(_text(reason)),
        model=_text(value.get("model")),
    )


def _tolerant_item(item: object) -> Item:
    try:
        return _decode_item(msgspec.json.encode(item))
    except msgspec.ValidationError:
        return (
            Item(type=_text(item.get("type")), role=_text(item.get("role")))
            if isinstance(item, dict)
            else Item()
        )


def _tolerant_usage(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    kept: Usage = {}
    for name, value in usage.items():
        if isinstance(value, int | float):
            kept[name] = value
        elif isinstance(value, dict):
            kept[name] = {inner: number for inner, number in value.items() if isinstance(number, int | float)}
    return kept


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
