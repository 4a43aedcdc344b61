"""This module says what an answer looks like: how long, how many turns, how it ended. It keeps a hash, never the text.

The meaning of each fact is that of `records.Response`; here it is computed from a partly decoded response, because most of a
row is never needed.
"""

from __future__ import annotations

import re
from hashlib import sha256
from struct import Struct as Struct8
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from rollforge.records import JsonObject, content_text

Number = int | float | bool | None


class Part(Struct, gc=False):
    """A piece of a message's content."""

    type: str | None = None
    text: str | None = None


class Item(Struct, gc=False):
    """One item of a rollout; only what facts come from."""

    type: str | None = None
    role: str | None = None
    content: list[Part] | str | None = None
    generation_token_ids: Raw = Raw()


class Reason(Struct, gc=False):
    """Why a response is incomplete."""

    reason: str | None = None


Usage = dict[str, Number | dict[str, Number]]


class PartlyRead(Struct, gc=False):
    """A response; only what facts come from."""

    output: list[Item] | None = None
    usage: Raw = Raw(b"null")
    status: str | None = None
    incomplete_details: Reason | None = None
    model: str | None = None


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
_encode = msgspec.json.Encoder().encode
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


def answer_of(response: PartlyRead) -> Answer:
    """The facts of a response."""
    texts: list[str] = []
    turns = calls = 0
    has_refused = has_token_ids = in_turn = False
    last = None
    for item in response.output or ():
        last = item.type
        if last == "message":
            content = item.content
            if type(content) is list:
                for part in content:
                    if part.type == "output_text":
                        texts.append(part.text or "")
                    elif part.type == "refusal":
                        has_refused = True
            elif content:
                texts.append(content)  # type: ignore[arg-type]
        elif last == "function_call":
            calls += 1
        elif last != "reasoning":
            in_turn = False
            continue
        if not in_turn:
            if item.role == "user":
                continue
            turns += 1
            in_turn = True
        if len(item.generation_token_ids) > 2:
            has_token_ids = True
    text = texts[0] if len(texts) == 1 else "".join(texts)
    finish = _finish_reason(response, last)
    return _facts(text, turns, calls, finish, has_refused, has_token_ids, response.model)


def answer_of_chat(messages: list[JsonObject]) -> Answer:
    """The facts of the assistant's messages in chat form; how the answer ended is not known there."""
    said = [
        message for message in messages if isinstance(message, dict) and message.get("role") == "assistant"
    ]
    calls = sum(len(message["tool_calls"]) for message in said if isinstance(message.get("tool_calls"), list))
    text = "".join(content_text(message.get("content")) for message in said)
    return _facts(text, len(said), calls, None, any(message.get("refusal") for message in said), False, None)


def _facts(
    text: str,
    turns: int,
    calls: int,
    finish: str | None,
    has_refused: bool,
    has_token_ids: bool,
    model: str | None,
) -> Answer:
    length = len(text)
    is_refusal, is_error, is_blank = has_refused, False, False
    if length <= _LOOKED_AT:
        is_blank = not text or text.isspace()
        is_refusal = has_refused or _REFUSAL.match(text) is not None
        is_error = _ERROR.match(text) is not None
    digest = text_hash(text) if text else None
    return Answer(
        digest, length, turns, calls, finish, finish == "length", is_blank and not calls, is_refusal, is_error,
        has_token_ids, model,
    )  # fmt: skip


def text_hash(text: str) -> int:
    """A 64-bit hash that is the same in every process and on every machine."""
    found: int = _eight_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest())[0]
    return found


_eight_bytes = Struct8("<q24x").unpack


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
        usage=Raw(_encode(_tolerant_usage(value.get("usage")))),
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
