"""This module says what an answer looks like: how long, how many turns, how it ended. It keeps a hash, never the text.

The meaning of each fact is that of `records.Response`; here it is computed from a partly decoded response, because most of a
row is never needed. Texts stay as they are escaped in the file: making them costs more than counting and hashing them does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from rollforge.index.beginnings import is_long_error, look_at_text
from rollforge.index.compiled import LOOKED_AT
from rollforge.index.hashes import hash_text
from rollforge.index.lengths import measure
from rollforge.index.spelling import escaped
from rollforge.records import UNANSWERED, JsonObject, content_text

Number = int | float | bool | None


class Part(Struct, gc=False):
    """A piece of a message's content."""

    type: str | None = None
    text: Raw = Raw(b"null")


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


NO_ANSWER = Answer()

decode_response = msgspec.json.Decoder(PartlyRead | None).decode
_encode = msgspec.json.Encoder().encode
_decode_item = msgspec.json.Decoder(Item).decode

_BY_MODEL = frozenset({"message", "reasoning", "function_call"})
_LENGTH = frozenset({"max_output_tokens", "length", "max_tokens"})


Seen = tuple[bytes, int, int, str | None, bool, bool, str | None]
"""What a response shows before its text is read: the text as it is escaped in JSON, turns, tool calls, how it finished, whether
it has a refusal part, whether it has token ids, the model. A plain tuple, because one is made per row."""


def look(response: PartlyRead) -> Seen:
    """What a response shows before its text is read."""
    said: list[bytes] = []
    turns = calls = 0
    has_refused = has_token_ids = in_turn = False
    last = None
    for item in response.output or ():
        last = item.type
        if last == "message":
            if item.role is not None and item.role != "assistant":
                in_turn = False  # a simulated user spoke
                continue
            content = item.content
            if type(content) is list:
                for part in content:
                    if part.type == "output_text":
                        said.append(_inner(part.text))
                    elif part.type == "refusal":
                        has_refused = True
            elif content:
                said.append(escaped(content))  # type: ignore[arg-type]
        elif last == "function_call":
            calls += 1
        elif last != "reasoning":
            in_turn = False
            continue
        if not in_turn:
            turns += 1
            in_turn = True
        if len(item.generation_token_ids) > 2:
            has_token_ids = True
    text = said[0] if len(said) == 1 else b"".join(said)
    return text, turns, calls, _finish_reason(response, last), has_refused, has_token_ids, response.model


def answers_of(seen: Sequence[Seen | None]) -> list[tuple[object, ...]]:
    """The facts of many responses, as the fields of `Answer`."""
    found = iter(_facts([one for one in seen if one is not None]))
    return [NO_ANSWER if one is None else next(found) for one in seen]


def _inner(text: Raw) -> bytes:
    """What stands between the quotes; nothing for a value that is no text."""
    data = bytes(text)
    return data[1:-1] if data[:1] == b'"' else b""


def answer_of_chat(messages: list[JsonObject]) -> Answer:
    """The facts of the assistant's messages in chat form; how the answer ended is not known there."""
    said = [
        message for message in messages if isinstance(message, dict) and message.get("role") == "assistant"
    ]
    calls = sum(len(message["tool_calls"]) for message in said if isinstance(message.get("tool_calls"), list))
    text = "".join(content_text(message.get("content")) for message in said)
    has_refused = any(message.get("refusal") for message in said)
    return Answer(*_facts([(escaped(text), len(said), calls, None, has_refused, False, None)])[0])  # type: ignore[arg-type]


def _facts(seen: list[Seen]) -> list[tuple[object, ...]]:
    if not seen:
        return []
    texts, lengths = measure([one[0] for one in seen])
    answers: list[tuple[object, ...]] = []
    for one, text, length in zip(seen, texts, lengths, strict=True):
        _, turns, calls, finish, is_refusal, has_token_ids, model = one
        is_error = is_blank = False
        if length <= LOOKED_AT:
            is_blank, refuses, is_error = look_at_text(text)
            is_refusal = is_refusal or refuses
        else:
            is_error = is_long_error(text)
        answers.append(
            (
                hash_text(text) if length else None, length, turns, calls, finish, finish == "length", is_blank and not calls,
                is_refusal, is_error, has_token_ids, model,
            )
        )  # fmt: skip
    return answers


def _finish_reason(response: PartlyRead, last: str | None) -> str | None:
    if response.incomplete_details is not None and response.incomplete_details.reason:
        reason = response.incomplete_details.reason
        return "length" if reason in _LENGTH else reason
    if response.status in UNANSWERED:
        return response.status
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
