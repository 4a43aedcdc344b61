"""This module makes columns of what the compiled reader read, without a step in Python per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollforge.index.arrays import arrow_array, arrow_floats
from rollforge.index.fast import FastRollouts, SeenInPython
from rollforge.index.kinds import PIECES, PLACES

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_HAS_RESPONSE, _HAS_REFUSED, _HAS_TOKEN_IDS = 1, 2, 4
_NO_PROMPT = -1
_SECONDS = ("started", "seconds", "verify_seconds")

Note = Callable[[int, int, str], None]
"""Takes down what is odd about the row that stands in this line and at this offset."""


def columns_of(
    rows: FastRollouts, note: Note, *, has_usage: bool
) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]], dict[str, pa.Array]]:
    """The fixed columns, the discovered numbers (NaN where missing) and the discovered texts; `rows` are empty afterwards."""
    (count, numbers, texts, besides, words, raw), seen = rows.finish()
    fixed: dict[str, Any] = {name: arrow_array(_ints(raw[name])) for name in PLACES}
    fixed |= {name: arrow_array(_int32s(raw[name])) for name in PIECES}
    fixed["prompt_hash"] = _prompt_hashes(raw, seen, note)
    fixed |= _answers(count, raw, seen, *words["finish_reason"])
    fixed |= {name: _word_column(*found) for name, found in words.items()}
    for name in _SECONDS:
        fixed[name] = arrow_floats(np.frombuffer(raw[name], np.float64))
    found = {name: np.frombuffer(values, np.float64) for name, values in numbers}
    for name, values in sorted(besides if has_usage else [], key=lambda pair: "." in pair[0]):
        # Usage overrides a field of the same name, as in NeMo Gym.
        beside = np.frombuffer(values, np.float64)
        found[name] = np.where(np.isnan(beside), found[name], beside) if name in found else beside
    return fixed, found, {name: _text_column(count, *parts) for name, *parts in texts}


def _prompt_hashes(raw: dict[str, bytes], seen: SeenInPython, note: Note) -> pa.Array:
    prompt, hashes = _int32s(raw["prompt"]), _ints(raw["prompt_hash"])
    missing = prompt == _NO_PROMPT
    if seen.odd_prompts:
        hashes = hashes.copy()
        for row in np.flatnonzero(prompt >= 0).tolist():
            number = int(prompt[row])
            found = seen.odd_prompts[number]
            hashes[row], missing[row] = found or 0, found is None
            if number in seen.noted:
                line, offset = (int(_ints(raw[name])[row]) for name in ("line", "offset"))
                note(line, offset, "; ".join(seen.noted[number]))
    return arrow_array(hashes, missing)


def _answers(
    count: int, raw: dict[str, bytes], seen: SeenInPython, finishes: list[str], finish: bytes
) -> dict[str, pa.Array]:
    flags = np.frombuffer(raw["flags"], np.uint8)
    missing = (flags & _HAS_RESPONSE) == 0
    hashes, characters = _ints(raw["answer_hash"]).copy(), _int32s(raw["answer_chars"]).astype(np.int64)
    for row, respelled, many in seen.respelled:
        hashes[row], characters[row] = respelled, many
    calls = _int32s(raw["tool_calls"])
    is_blank, is_error = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    is_refusal: Bools = (flags & _HAS_REFUSED) != 0
    for row, blank, refusal, error in seen.looks:
        is_blank[row], is_error[row] = blank, error
        is_refusal[row] |= refusal
    length = finishes.index("length") if "length" in finishes else len(finishes)
    found = {
        "answer_hash": arrow_array(hashes, missing | (characters == 0)),
        "answer_chars": characters,
        "turns": _int32s(raw["turns"]).astype(np.int64),
        "tool_calls": calls.astype(np.int64),
        "is_truncated": _int32s(finish) == length,
        "is_empty": is_blank & (calls == 0),
        "is_refusal": is_refusal,
        "error_text": is_error,
        "has_token_ids": (flags & _HAS_TOKEN_IDS) != 0,
    }
    return {
        name: values if isinstance(values, pa.Array) else arrow_array(values, missing)
        for name, values in found.items()
    }


def _ints(data: bytes) -> Ints:
    return np.frombuffer(data, np.int64)


def _int32s(data: bytes) -> NDArray[np.int32]:
    return np.frombuffer(data, np.int32)


def _word_column(words: list[str], numbers: bytes) -> pa.DictionaryArray:
    found = _int32s(numbers)
    return pa.DictionaryArray.from_arrays(arrow_array(found, found < 0), pa.array(words, pa.string()))


def _text_column(count: int, is_valid: bytes, ends: bytes, text: bytes) -> pa.Array:
    known = np.packbits(np.frombuffer(is_valid, np.uint8), bitorder="little")
    offsets = np.append(np.int32(0), np.frombuffer(ends, np.int32))
    return pa.Array.from_buffers(
        pa.string(), count, [pa.py_buffer(known), pa.py_buffer(offsets), pa.py_buffer(text)]
    )
