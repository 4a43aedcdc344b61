"""This module turns one line into facts: keys, numbers, hashes and what the answer looks like, never the text itself.

A line is split into its top-level values without building anything nested; only the few parts that facts come from are
decoded further. A value of an unexpected type makes that one fact missing, and is told in `notes`; it never costs the row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from rollforge.index import prompts
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


split_raw = msgspec.json.Decoder(dict[str, Raw]).decode
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
    """One line that is no rollout, as values for the columns of its kind."""

    fixed: tuple[object, ...]
    numbers: list[tuple[str, float]]
    texts: list[tuple[str, str]]
    notes: list[str]
    """What was odd but did not cost the row."""


Line = bytes | memoryview
Note = Callable[[str], None]
"""Takes down what is odd about a row."""


class BadLine(Exception):
    """The line is no row; the message says why."""


class Reader:
    """Remembers prompts and agents it has seen, because rollouts of a task share them."""

    REMEMBERED = 100_000

    def __init__(self) -> None:
        self.hash_by_params: dict[int, int | None] = {}
        self.name_by_agent: dict[bytes, str | None] = {}

    def agent(self, data: bytes, note: Note) -> str | None:
        """The name in an `agent_ref`."""
        if data not in self.name_by_agent:
            try:
                self.name_by_agent[data] = _agent_ref(data).name
            except msgspec.DecodeError:
                note("agent_ref: expected an object with a name")
                return None
        return self.name_by_agent[data]

    def prompt_hash(self, data: bytes, note: Note) -> int | None:
        """The canonical hash of the prompt in `responses_create_params`; rollouts of one task have the same bytes there."""
        seen = hash(data)
        if seen in self.hash_by_params:
            return self.hash_by_params[seen]
        try:
            params, asked = _read_params(data)
        except msgspec.DecodeError as error:
            note(f"{PARAMS_KEY}: {error}")
            return None
        if len(self.hash_by_params) >= self.REMEMBERED:
            self.hash_by_params.clear()
        found = prompts.prompt_hash(asked, params.instructions) if asked is not None else None
        self.hash_by_params[seen] = found
        return found


def _read_params(data: bytes) -> tuple[_Params, Any]:
    """The parameters, and what was asked; half a character in them is replaced, as it is in answers."""
    try:
        params = _params(data)
        return params, _any(params.input) if len(params.input) else None
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        params = _params(_encoded(_load(data, lambda _: None)))
        return params, _any(params.input) if len(params.input) else None


def _encoded(value: Any) -> bytes:
    """A value as JSON that every reader takes: half a surrogate pair is replaced."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def split_line(line: Line) -> tuple[dict[str, Raw], list[str]]:
    """The top-level values of a line, unread, and notes on what was odd about it."""
    try:
        values = split_raw(line)
    except msgspec.ValidationError:
        raise BadLine("not an object") from None
    except RecursionError:
        raise BadLine("nested too deeply") from None
    except UnicodeDecodeError:
        raise BadLine("invalid UTF-8") from None
    except msgspec.DecodeError as error:
        repaired, notes = _repaired(bytes(line), str(error))
        return split_raw(repaired), notes
    if len(line) == _compact_size(values) or len(line) == _compact_size(values) + 2 * len(values) - 1:
        return values, []
    return values, repeated_notes(line)


def _compact_size(values: dict[str, Raw]) -> int:
    """Bytes of a compact object; a line of another size has white space, escapes, or a key twice."""
    return 1 + sum(len(key.encode()) + 4 + len(raw) for key, raw in values.items())


def repeated_notes(line: Line) -> list[str]:
    """A note for every key that stands in one object more than once."""
    return [
        f"key {key!r} is there more than once; the last value counts" for key in _repeated_keys(bytes(line))
    ]


def _repaired(line: bytes, reason: str) -> tuple[bytes, list[str]]:
    """The line with NaN and Infinity as null, without halves of characters; raises `BadLine` when more is wrong with it."""
    found: list[str] = []

    def missing(word: str) -> None:
        found.append(word)

    try:
        value = _load(line, missing)
        if not isinstance(value, dict):
            raise BadLine("not an object")
        notes = [f"{', '.join(sorted(set(found)))[:80]} is no JSON; taken as missing"] if found else []
        return _encoded(value), notes
    except UnicodeError:
        raise BadLine("invalid UTF-8") from None
    except RecursionError:
        raise BadLine("nested too deeply") from None
    except ValueError:
        is_torn = reason == "Input data was truncated"
        told = "torn: the JSON ends too early" if is_torn else reason.replace("JSON is malformed: ", "")
        raise BadLine(told) from None


def _load(data: bytes, missing: Callable[[str], None]) -> Any:
    """JSON as Python reads it, with `missing` for every word and every number that no float holds."""

    def number(text: str) -> float | None:
        found = float(text)
        if math.isfinite(found):
            return found
        missing(text)
        return None

    def whole(text: str) -> int | None:
        if len(text) <= LONGEST_WHOLE:
            return int(text)
        missing(text)
        return None

    return json.loads(data, parse_constant=missing, parse_float=number, parse_int=whole)


LONGEST_WHOLE = 400
"""Digits of a whole number that is read; from 310 on no float holds it, and from 4,300 on Python refuses."""


def _repeated_keys(line: bytes) -> list[str]:
    """Keys that stand more than once in one object; the lengths of the values gave the suspicion."""
    repeated: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            repeated.extend(sorted({name for name in names if names.count(name) > 1}))

    json.loads(line, object_pairs_hook=check, parse_int=str)
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
                if value % 1:  # type: ignore[operator]
                    notes.append(NOT_WHOLE.format(name=key, value=value))
                elif abs(value) < 2**53:  # type: ignore[arg-type]  # beyond, neighbours are one and the same
                    keys[key] = int(value)  # type: ignore[arg-type]
                else:
                    notes.append(TOO_LARGE.format(name=key, value=value))
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
NOT_WHOLE = "{name}: expected a whole number, got {value:g}"
TOO_LARGE = "{name}: {value:g} is too large to be told from its neighbours"


def _one_by_one(small: list[tuple[str, Raw]]) -> tuple[list[Any], list[tuple[str, Raw]]]:
    read, kept = [], []
    for key, raw in small:
        try:
            read += _scalars(b"[" + raw + b"]")
        except msgspec.DecodeError:
            continue
        kept.append((key, raw))
    return read, kept


def read_components(raw: Raw, note: Note) -> list[tuple[str, float]]:
    """The numbers of `reward_components`, under their dotted names."""
    try:
        components = _components(raw)
    except msgspec.DecodeError:
        note("reward_components: expected an object of numbers")
        return []
    return [
        (f"reward_components.{name}", value)
        for name, value in components.items()
        if isinstance(value, int | float)
    ]


def read_own(raw: Raw, note: Note) -> Own:
    """What rollforge wrote into the row."""
    try:
        own = _own(raw)
    except msgspec.DecodeError as error:
        note(f"{OWN_KEY}: {error}")
        return Own()
    return Own(own.verifier, own.fingerprint, own.mode, own.started, own.seconds, own.verify_seconds)
