"""Facts from one row, such as keys, numbers and kinds of answers, without its text.

A line is first split into its top-level values; only the few values that contain facts are decoded further. A value of an
unexpected type makes that one fact missing and adds a note. It never costs the row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from rollforge.index.answer_kind import answer_kind
from rollforge.index.text_hash import prompt_hash, text_hash
from rollforge.json_shapes import ChatMessageJson
from rollforge.records import OWN_KEY, PARAMS_KEY, UNANSWERED, content_text

Note = Callable[[str], None]
"""Callback for a note: one sentence about an irregularity of the row."""

Decoded = TypeVar("Decoded")

LONGEST_WHOLE = 400
"""Most digits of an integer that is parsed. From 310 digits on no float can represent it; from 4,300 on Python refuses it."""


class UnreadableLine(Exception):
    """The line is not a row; the message says why."""


# A line → its top-level values

_split = msgspec.json.Decoder(dict[str, Raw]).decode


def split_line(line: bytes) -> tuple[dict[str, Raw], list[str]]:
    """The top-level values of a line, not decoded, and notes on irregularities.

    Raises:
        UnreadableLine: the line is not a JSON object in UTF-8.
    """
    try:
        line.decode()
        values = _split(line)
        return values, _notes_on_repeated_keys(line, values)
    except UnicodeDecodeError as error:
        raise UnreadableLine(f"invalid UTF-8 (byte {error.start})") from None
    except msgspec.ValidationError:
        raise UnreadableLine("not an object") from None
    except (RecursionError, MemoryError):
        raise UnreadableLine("nested too deeply") from None
    except msgspec.DecodeError as error:
        return _split_loosely(line, str(error))


def _split_loosely(line: bytes, reason: str) -> tuple[dict[str, Raw], list[str]]:
    """Decode a line that contains NaN, Infinity or half a surrogate pair with Python's json, which accepts them."""
    missing: list[str] = []
    try:
        value = _load(line, missing.append)
        if not isinstance(value, dict):
            raise UnreadableLine("not an object")
        words = ", ".join(sorted(set(missing)))[:80]
        return _split(_encode(value)), [f"{words} is no JSON; taken as missing"] if missing else []
    except UnicodeError:
        raise UnreadableLine("invalid UTF-8") from None
    except (RecursionError, MemoryError):
        raise UnreadableLine("nested too deeply") from None
    except ValueError:
        is_torn = reason == "Input data was truncated"
        text = "torn: the JSON ends too early" if is_torn else reason.replace("JSON is malformed: ", "")
        raise UnreadableLine(text) from None


def _notes_on_repeated_keys(line: bytes, values: dict[str, Raw]) -> list[str]:
    """A note for every key that appears twice in one object.

    Most lines need no second parse, because compact JSON without duplicates has one of two known lengths.
    """
    compact = 1 + sum(len(key.encode()) + 4 + len(raw) for key, raw in values.items())
    if len(line) in (compact, compact + 2 * len(values) - 1):
        return []
    repeated: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            repeated.extend(sorted({name for name in names if names.count(name) > 1}))

    json.loads(line, object_pairs_hook=check, parse_int=str)
    return [f"key {key!r} is there more than once; the last value counts" for key in repeated]


def _load(data: bytes, missing: Callable[[str], None]) -> Any:
    """Parse JSON with Python; calls `missing` for NaN, Infinity and numbers beyond float range, which become None."""

    def fraction(text: str) -> float | None:
        number = float(text)
        if math.isfinite(number):
            return number
        missing(text)
        return None

    def whole(text: str) -> int | None:
        if len(text) <= LONGEST_WHOLE:
            return int(text)
        missing(text)
        return None

    return json.loads(data, parse_constant=missing, parse_float=fraction, parse_int=whole)


def _encode(value: Any) -> bytes:
    """A value as strict JSON; half a surrogate pair becomes a question mark."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def decode_leniently(decode: Callable[[bytes | Raw], Decoded], raw: Raw) -> Decoded:
    """Decode a value; a value with half a surrogate pair is cleaned first.

    Raises:
        msgspec.ValidationError: its type is not the expected one.
    """
    try:
        return decode(raw)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return decode(_encode(_load(bytes(raw), lambda _: None)))


# Agent, prompt, verifier, reward components


class _AgentRef(Struct):
    name: str | None = None


class _Params(Struct):
    input: Any = None
    instructions: str | None = None
    temperature: int | float | bool | str | None = None


class OwnFacts(Struct):
    """rollforge's own fields of a row (`_rf`): how the row was made."""

    verifier: str | None = None
    fingerprint: str | None = None
    mode: str | None = None
    started: float | None = None
    seconds: float | None = None
    verify_seconds: float | None = None


_decode_agent = msgspec.json.Decoder(_AgentRef).decode
_decode_params = msgspec.json.Decoder(_Params).decode
_decode_own = msgspec.json.Decoder(OwnFacts).decode
_decode_components = msgspec.json.Decoder(
    dict[str, int | float | bool | str | list[Raw] | dict[str, Raw] | None]
).decode


def agent_name(raw: Raw, note: Note) -> str | None:
    """The name in an `agent_ref`."""
    try:
        return _decode_agent(raw).name
    except msgspec.DecodeError:
        note("agent_ref: expected an object with a name")
        return None


def params_hash(raw: Raw, note: Note) -> int | None:
    """The hash of the prompt in `responses_create_params`."""
    try:
        params = decode_leniently(_decode_params, raw)
    except msgspec.DecodeError as error:
        note(f"{PARAMS_KEY}: {error}")
        return None
    return prompt_hash(params.input, params.instructions)


def own_facts(raw: Raw, note: Note) -> OwnFacts:
    """Read rollforge's own fields of the row."""
    try:
        return _decode_own(raw)
    except msgspec.DecodeError as error:
        note(f"{OWN_KEY}: {error}")
        return OwnFacts()


def component_numbers(raw: Raw, note: Note) -> list[tuple[str, float]]:
    """The numbers of `reward_components`, under dotted names."""
    try:
        components = _decode_components(raw)
    except msgspec.DecodeError:
        note("reward_components: expected an object of numbers")
        return []
    finite = ((name, _finite(number)) for name, number in components.items())
    return [(f"reward_components.{name}", number) for name, number in finite if number is not None]


def _finite(value: object) -> float | None:
    """A number or bool as a float; None for other values and beyond float range."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(float(value)) else None
    except OverflowError:
        return None


# The response


class _ContentPart(Struct):
    type: str | None = None
    text: Any = None


class _OutputItem(Struct):
    type: str | None = None
    role: str | None = None
    content: list[_ContentPart] | str | None = None
    generation_token_ids: Raw = Raw()


class _Incomplete(Struct):
    reason: str | None = None


class PartialResponse(Struct):
    """The parts of a response that facts come from."""

    output: list[_OutputItem | list[_OutputItem]] | None = None
    usage: Raw = Raw(b"null")
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    model: str | None = None

    def items(self) -> Iterator[_OutputItem]:
        """Items of the output, flattened if an agent wrote one list per step."""
        for item in self.output or ():
            if isinstance(item, list):
                yield from item
            else:
                yield item


class AnswerFacts(NamedTuple):
    """Facts about an answer."""

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


NO_ANSWER = AnswerFacts()

_decode_response: Callable[[bytes | Raw], PartialResponse | None] = msgspec.json.Decoder(
    PartialResponse | None
).decode
_decode_item: Callable[[bytes], _OutputItem | list[_OutputItem]] = msgspec.json.Decoder(
    _OutputItem | list[_OutputItem]
).decode
_LENGTH = frozenset({"max_output_tokens", "length", "max_tokens"})
_MANY_IDS = 2
"""Encoded size from which a `generation_token_ids` list cannot be empty."""


def read_response(raw: Raw, note: Note) -> PartialResponse | None:
    """Decode the response; fields of an unexpected type become missing, with a note. None for null."""
    try:
        return decode_leniently(_decode_response, raw)
    except msgspec.DecodeError as error:
        note(f"response: {error}")
        return _salvaged(_load(bytes(raw), lambda _: None))


def _salvaged(value: object) -> PartialResponse:
    """The parts of a response that have the expected type."""
    if not isinstance(value, dict):
        return PartialResponse()
    details, output = value.get("incomplete_details"), value.get("output")
    return PartialResponse(
        output=[_salvaged_item(item) for item in output] if isinstance(output, list) else None,
        usage=Raw(_encode(value.get("usage"))),
        status=_text(value.get("status")),
        incomplete_details=_Incomplete(_text(details.get("reason")) if isinstance(details, dict) else None),
        model=_text(value.get("model")),
    )


def _salvaged_item(item: object) -> _OutputItem | list[_OutputItem]:
    try:
        return _decode_item(_encode(item))
    except msgspec.DecodeError:
        if not isinstance(item, dict):
            return _OutputItem()
        return _OutputItem(type=_text(item.get("type")), role=_text(item.get("role")))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def describe_answer(response: PartialResponse) -> AnswerFacts:
    """Facts of a response, as defined by `records.Response`."""
    answer: list[str] = []
    turns = calls = 0
    has_refusal = has_token_ids = in_turn = False
    last = None
    for item in response.items():
        last = item.type
        if last == "message":
            if item.role not in (None, "assistant"):
                in_turn = False  # a simulated user speaks
                continue
            if isinstance(item.content, str):
                answer.append(item.content)
            for part in item.content if isinstance(item.content, list) else ():
                if part.type == "output_text" and isinstance(part.text, str):
                    answer.append(part.text)
                has_refusal = has_refusal or part.type == "refusal"
        elif last == "function_call":
            calls += 1
        elif last != "reasoning":
            in_turn = False
            continue
        turns += not in_turn
        in_turn = True
        has_token_ids = has_token_ids or len(item.generation_token_ids) > _MANY_IDS
    return _answer_facts(
        "".join(answer),
        turns,
        calls,
        _finish_reason(response, last),
        has_refusal,
        has_token_ids,
        response.model,
    )


def response_facts(response: Raw) -> AnswerFacts:
    """Facts of an encoded response, equal to those that its run's index will contain."""
    facts = read_response(response, lambda _: None)
    return NO_ANSWER if facts is None else describe_answer(facts)


def describe_chat_answer(messages: list[ChatMessageJson]) -> AnswerFacts:
    """Facts of the assistant's chat messages, which do not record how the answer ended."""
    assistant_messages = [
        message for message in messages if isinstance(message, dict) and message.get("role") == "assistant"
    ]
    calls = sum(
        len(message["tool_calls"])
        for message in assistant_messages
        if isinstance(message.get("tool_calls"), list)
    )
    text = "".join(content_text(message.get("content")) for message in assistant_messages)
    has_refusal = any(message.get("refusal") for message in assistant_messages)
    return _answer_facts(text, len(assistant_messages), calls, None, has_refusal, False, None)


def _answer_facts(
    text: str,
    turns: int,
    calls: int,
    finish: str | None,
    has_refusal: bool,
    has_token_ids: bool,
    model: str | None,
) -> AnswerFacts:
    kind = answer_kind(text)
    return AnswerFacts(
        answer_hash=text_hash(text.encode("utf-8", "replace")) if text else None,
        answer_chars=len(text),
        turns=turns,
        tool_calls=calls,
        finish_reason=finish,
        is_truncated=finish == "length",
        is_empty=kind.is_blank and not calls,
        is_refusal=has_refusal or kind.is_refusal,
        error_text=kind.is_error,
        has_token_ids=has_token_ids,
        model=model,
    )


def _finish_reason(response: PartialResponse, last: str | None) -> str | None:
    if response.incomplete_details is not None and response.incomplete_details.reason:
        reason = response.incomplete_details.reason
        return "length" if reason in _LENGTH else reason
    if response.status in UNANSWERED:
        return response.status
    if response.status != "completed":
        return None
    return "tool_calls" if last == "function_call" else "stop"


_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_number = msgspec.json.Decoder(int | float | bool).decode


def usage_numbers(usage: Raw) -> list[tuple[str, float]]:
    """All numbers of a usage object, nested ones under dotted names. An invalid number does not affect the others."""
    numbers: list[tuple[str, float]] = []
    pending = [("", usage)]
    while pending:  # no recursion: a line may nest as deep as Python allows
        prefix, outer = pending.pop(0)
        try:
            members = _decode_members(outer)
        except msgspec.DecodeError:
            continue
        for name, value in members.items():
            try:
                number = _decode_number(value)
            except msgspec.DecodeError:
                pending.append((f"{prefix}{name}.", value))
                continue
            finite = _finite(number)
            if finite is not None:
                numbers.append((prefix + name, finite))
    return numbers
