"""This module turns one line into facts: keys, numbers, hashes and what the answer looks like, never the text itself.

A line is split into its top-level values without building anything nested; only the few parts that facts come from are
decoded further. A value of an unexpected type makes that one fact missing, and is told in `notes`; it never costs the row.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from rollforge.index import prompts
from rollforge.index.answers import (
    Answer,
    answer_of,
    answer_of_chat,
    decode_response,
    tolerant_response,
)
from rollforge.records import ATTEMPT_KEY, OWN_KEY, PARAMS_KEY, ROLLOUT_KEY, TASK_KEY

MAX_TEXT = 256
"""Longer top-level texts stay in the file; shorter ones (an extracted answer, a difficulty) become columns."""

_Scalar = int | float | bool | str | None


class _Params(Struct):
    input: Raw = Raw()
    instructions: str | None = None
    temperature: _Scalar = None


class _AgentRef(Struct):
    name: str | None = None


class _Own(Struct):
    started: float | None = None
    seconds: float | None = None
    verify_seconds: float | None = None
    verifier: str | None = None
    fingerprint: str | None = None
    mode: str | None = None


_split = msgspec.json.Decoder(dict[str, Raw]).decode
_scalars = msgspec.json.Decoder(list[int | float | bool | str | list[Raw] | dict[str, Raw] | None]).decode
_params = msgspec.json.Decoder(_Params).decode
_agent_ref = msgspec.json.Decoder(_AgentRef).decode
_own = msgspec.json.Decoder(_Own).decode
_components = msgspec.json.Decoder(dict[str, _Scalar | list[Raw] | dict[str, Raw]]).decode
_any = msgspec.json.Decoder().decode


class Own(NamedTuple):
    """What rollforge wrote about how the row was made."""

    verifier: str | None = None
    fingerprint: str | None = None
    mode: str | None = None
    started: float | None = None
    seconds: float | None = None
    verify_seconds: float | None = None


class Row(NamedTuple):
    """One line, as values for the columns of its kind."""

    fixed: tuple[object, ...]
    numbers: list[tuple[str, float]]
    texts: list[tuple[str, str]]
    notes: list[str]
    """What was odd but did not cost the row."""
    scalars: dict[str, Raw] | None = None
    """Top-level values still unread: those of many rows are read together."""
    usage: Raw | bytes = b"null"
    """The usage object, unread."""


Line = bytes | memoryview

_NOTHING: list[Any] = []
_NO_OWN = Own()
_NO_ANSWER = Answer()


class BadLine(Exception):
    """The line is no row; the message says why."""


class Reader:
    """Reads lines one after another; remembers prompts and agents it has seen, because rollouts of a task share them."""

    REMEMBERED = 100_000

    def __init__(self) -> None:
        self._hash_by_params: dict[int, int | None] = {}
        self._name_by_agent: dict[bytes, str | None] = {}

    def read(self, line: Line) -> Row:
        """A rollout row; task, rollout and attempt are among the scalars still unread.

        Raises:
            BadLine: the line is no JSON object; nothing of it is used.
        """
        values, notes = split_line(line)
        pop = values.pop
        params, response = pop(PARAMS_KEY, None), pop("response", None)
        agent, own, components = pop("agent_ref", None), pop(OWN_KEY, None), pop("reward_components", None)
        numbers = _read_components(components, notes) if components is not None else _NOTHING
        if params is not None:
            answer, usage = self._read_response(response, notes)
            prompt_hash = self.prompt_hash(params, notes)
        else:
            chat = [pop(key, None) for key in ("messages", "prompt", "completion")]
            answer, usage, prompt_hash = self._read_chat(chat, response, notes)
        name = self.agent(agent, notes) if agent is not None else None
        made = _read_own(own, notes) if own is not None else _NO_OWN
        fixed = (None, None, None, name, prompt_hash, *answer, *made)
        return Row(fixed, numbers, _NOTHING, notes, values, usage)

    def agent(self, raw: Raw, notes: list[str]) -> str | None:
        data = bytes(raw)
        if data not in self._name_by_agent:
            try:
                self._name_by_agent[data] = _agent_ref(data).name
            except msgspec.ValidationError:
                notes.append("agent_ref: expected an object with a name")
                return None
        return self._name_by_agent[data]

    def prompt_hash(self, raw: Raw | None, notes: list[str]) -> int | None:
        """The canonical hash of the prompt in `responses_create_params`; rollouts of one task have the same bytes there."""
        if raw is None:
            return None
        data = bytes(raw)
        seen = hash(data)
        if seen in self._hash_by_params:
            return self._hash_by_params[seen]
        try:
            params = _params(data)
        except msgspec.ValidationError as error:
            notes.append(f"{PARAMS_KEY}: {error}")
            return None
        if len(self._hash_by_params) >= self.REMEMBERED:
            self._hash_by_params.clear()
        asked = _any(params.input) if len(params.input) else None
        found = prompts.prompt_hash(asked, params.instructions) if asked is not None else None
        self._hash_by_params[seen] = found
        return found

    def _read_response(self, raw: Raw | None, notes: list[str]) -> tuple[Answer, Raw | bytes]:
        if raw is None or len(raw) == 4:  # null
            return _NO_ANSWER, b"null"
        try:
            response = decode_response(raw)
        except msgspec.ValidationError as error:
            notes.append(f"response: {error}")
            response = tolerant_response(raw)
        return answer_of(response), response.usage

    def _read_chat(
        self, chat: list[Raw | None], response: Raw | None, notes: list[str]
    ) -> tuple[Answer, Raw | bytes, int | None]:
        messages, prompt, completion = chat
        answer, usage = self._read_response(response, notes)
        if messages is None and prompt is None and completion is None:
            return answer, usage, None
        try:
            if messages is not None:
                asked, answered = prompts.split_messages(_any(messages))
            else:
                asked, answered = (
                    prompts.as_messages(prompt, "user"),
                    prompts.as_messages(completion, "assistant"),
                )
        except TypeError as error:
            notes.append(f"messages: {error}")
            return answer, usage, None
        return answer_of_chat(answered), usage, prompts.prompt_hash(asked)


def split_line(line: Line) -> tuple[dict[str, Raw], list[str]]:
    """The top-level values of a line, unread, and notes on what was odd about it."""
    try:
        values = _split(line)
    except msgspec.ValidationError:
        raise BadLine("not an object") from None
    except RecursionError:
        raise BadLine("nested too deeply") from None
    except UnicodeDecodeError:
        raise BadLine("invalid UTF-8") from None
    except msgspec.DecodeError as error:
        repaired, notes = _without_constants(bytes(line), str(error))
        return _split(repaired), notes
    keys = tuple(values)
    size = _SIZE_BY_KEYS.get(keys) or _size_of(keys)
    size += sum(map(len, values.values()))
    if len(line) == size or len(line) == size + 2 * len(keys) - 1:
        return values, []
    repeated = _repeated_keys(bytes(line))
    return values, [f"key {key!r} is there more than once; the last value counts" for key in repeated]


_SIZE_BY_KEYS: dict[tuple[str, ...], int] = {}


def _size_of(keys: tuple[str, ...]) -> int:
    """Bytes of a compact object beside its values; a line of another size has white space, escapes, or a key twice."""
    if len(_SIZE_BY_KEYS) > 10_000:
        _SIZE_BY_KEYS.clear()
    _SIZE_BY_KEYS[keys] = 1 + sum(map(len, keys)) + 4 * len(keys)
    return _SIZE_BY_KEYS[keys]


def _without_constants(line: bytes, reason: str) -> tuple[bytes, list[str]]:
    """The line with NaN and Infinity as null; raises `BadLine` when they are not what is wrong with it."""
    found: list[str] = []

    def missing(word: str) -> None:
        found.append(word)

    try:
        value = json.loads(line, parse_constant=missing)
        if not found or not isinstance(value, dict):
            raise BadLine(reason)
        return msgspec.json.encode(value), [f"{', '.join(sorted(set(found)))} is no JSON; taken as missing"]
    except UnicodeError:
        raise BadLine("invalid UTF-8") from None
    except RecursionError:
        raise BadLine("nested too deeply") from None
    except ValueError:
        is_torn = reason == "Input data was truncated"
        told = "torn: the JSON ends too early" if is_torn else reason.replace("JSON is malformed: ", "")
        raise BadLine(told) from None


def _repeated_keys(line: bytes) -> list[str]:
    """Keys that stand more than once in one object; the lengths of the values gave the suspicion."""
    repeated: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            repeated.extend(sorted({name for name in names if names.count(name) > 1}))

    json.loads(line, object_pairs_hook=check)
    return repeated


def sort_scalars(
    values: dict[str, Raw],
    numbers: list[tuple[str, float]],
    texts: list[tuple[str, str]],
    keys: dict[str, int],
    notes: list[str],
) -> None:
    small = [(key, raw) for key, raw in values.items() if len(raw) < 4 * MAX_TEXT]
    try:
        read = _scalars(b"[" + b",".join([raw for _, raw in small]) + b"]")
    except msgspec.DecodeError as error:  # a number that no float holds, a lone surrogate
        notes.append(f"a top-level value cannot be read: {error}")
        read, small = _one_by_one(small)
    for (key, _), value in zip(small, read, strict=True):
        kind = type(value)
        if kind is float or kind is int or kind is bool:
            if key in KEYS:
                keys[key] = int(value)  # type: ignore[arg-type]
            else:
                numbers.append((key, value))  # type: ignore[arg-type]
        elif kind is str:
            if key == "reward" or key in KEYS:
                notes.append(f"{key}: expected a number, got text")
            if len(value) <= MAX_TEXT:  # type: ignore[arg-type]
                texts.append((key, value))  # type: ignore[arg-type]
        elif value is not None and (key == "reward" or key in KEYS):
            notes.append(f"{key}: expected a number, got {'an array' if kind is list else 'an object'}")


KEYS = frozenset({TASK_KEY, ROLLOUT_KEY, ATTEMPT_KEY})


def _one_by_one(small: list[tuple[str, Raw]]) -> tuple[list[Any], list[tuple[str, Raw]]]:
    read, kept = [], []
    for key, raw in small:
        try:
            read += _scalars(b"[" + raw + b"]")
        except msgspec.DecodeError:
            continue
        kept.append((key, raw))
    return read, kept


def _read_components(raw: Raw, notes: list[str]) -> list[tuple[str, float]]:
    try:
        components = _components(raw)
    except msgspec.DecodeError:
        notes.append("reward_components: expected an object of numbers")
        return []
    return [
        (f"reward_components.{name}", value)
        for name, value in components.items()
        if isinstance(value, int | float)
    ]


def _read_own(raw: Raw, notes: list[str]) -> Own:
    try:
        own = _own(raw)
    except msgspec.ValidationError as error:
        notes.append(f"{OWN_KEY}: {error}")
        return Own()
    return Own(own.verifier, own.fingerprint, own.mode, own.started, own.seconds, own.verify_seconds)
