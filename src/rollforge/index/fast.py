"""This module drives the compiled reader of ordinary rollout lines, where there is one: what `rollouts.py` does, many times faster.

Without a compiler at installation there is no `_rows`, and everything takes the Python way. The compiled reader leaves every line
that is not ordinary to it as well, so that what is odd about a line is said in one place only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollforge.index.answers import LONG_STARTS, LOOKED_AT, is_long_error, look_at_text, respell
from rollforge.index.arrays import arrow_array, arrow_floats
from rollforge.index.facts import Reader
from rollforge.index.hashes import hash_text
from rollforge.index.kinds import PIECES, PLACES, Kind
from rollforge.index.lines import Batch

try:
    from rollforge.index._rows import Rows

    IS_THERE = True
except ImportError:
    IS_THERE = False

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_HAS_RESPONSE, _HAS_REFUSED, _HAS_TOKEN_IDS = 1, 2, 4
_NO_PROMPT = -1
_SECONDS = ("started", "seconds", "verify_seconds")

Note = Callable[[int, int, str], None]
"""Takes down what is odd about the row that stands in this line and at this offset."""


def reads(kind: Kind) -> bool:
    """Whether the compiled reader is there, and is for lines of this kind."""
    return IS_THERE and kind in ("rollouts", "tasks")


class FastRollouts:
    """The ordinary rollouts of one chunk."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rows = Rows(LOOKED_AT, LONG_STARTS)
        self._respelled: list[tuple[int, int, int]] = []
        self._looks: list[tuple[int, bool, bool, bool]] = []
        self._odd_prompts: list[int | None] = []
        self._noted: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, batch: Batch, line: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Read the lines, the first of which has this number; how many there are, and (number, start, end) of those left."""
        lines, left = self._rows.take(batch.data, line, batch.offset)
        said, said_ends, rows, characters, prompts, prompt_ends = self._rows.drain()
        for row, count, text in zip(
            _int32s(rows).tolist(), _int32s(characters).tolist(), _pieces(said, said_ends), strict=True
        ):
            self._look(row, count, text)
        for params in _pieces(prompts, prompt_ends):
            self._read_prompt(params)
        return lines, list(zip(*_ints(left).reshape(-1, 3).T.tolist(), strict=True))

    def _look(self, row: int, characters: int, text: bytes) -> None:
        """Look at an answer that is short, may be an error message, or may be spelled otherwise than an equal one."""
        if characters < 0:
            text, characters = respell(text)
            self._respelled.append((row, hash_text(text), characters))
        if characters <= LOOKED_AT:
            self._looks.append((row, *look_at_text(text)))
        elif is_long_error(text):
            self._looks.append((row, False, False, True))

    def _read_prompt(self, params: bytes) -> None:
        notes: list[str] = []
        self._odd_prompts.append(self._reader.prompt_hash(params, notes.append))
        if notes:
            self._noted[len(self._odd_prompts) - 1] = notes

    def finish(
        self, note: Note, *, has_usage: bool
    ) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]], dict[str, pa.Array]]:
        """The fixed columns, the discovered numbers (NaN where missing) and the discovered texts; this is empty afterwards."""
        count, numbers, texts, besides, words, raw = self._rows.finish()
        fixed: dict[str, Any] = {name: arrow_array(_ints(raw[name])) for name in PLACES}
        fixed |= {name: arrow_array(_int32s(raw[name])) for name in PIECES}
        fixed["prompt_hash"] = self._prompt_hashes(raw, note)
        fixed |= self._answers(count, raw, *words["finish_reason"])
        fixed |= {name: _word_column(*found) for name, found in words.items()}
        for name in _SECONDS:
            fixed[name] = arrow_floats(np.frombuffer(raw[name], np.float64))
        found = {name: np.frombuffer(values, np.float64) for name, values in numbers}
        for name, values in sorted(besides if has_usage else [], key=lambda pair: "." in pair[0]):
            # Usage overrides a field of the same name, as in NeMo Gym.
            beside = np.frombuffer(values, np.float64)
            found[name] = np.where(np.isnan(beside), found[name], beside) if name in found else beside
        return fixed, found, {name: _text_column(count, *parts) for name, *parts in texts}

    def _prompt_hashes(self, raw: dict[str, bytes], note: Note) -> pa.Array:
        prompt, hashes = _int32s(raw["prompt"]), _ints(raw["prompt_hash"])
        missing = prompt == _NO_PROMPT
        if self._odd_prompts:
            hashes = hashes.copy()
            for row in np.flatnonzero(prompt >= 0).tolist():
                number = int(prompt[row])
                found = self._odd_prompts[number]
                hashes[row], missing[row] = found or 0, found is None
                if number in self._noted:
                    line, offset = (int(_ints(raw[name])[row]) for name in ("line", "offset"))
                    note(line, offset, "; ".join(self._noted[number]))
        return arrow_array(hashes, missing)

    def _answers(
        self, count: int, raw: dict[str, bytes], finishes: list[str], finish: bytes
    ) -> dict[str, pa.Array]:
        flags = np.frombuffer(raw["flags"], np.uint8)
        missing = (flags & _HAS_RESPONSE) == 0
        hashes, characters = _ints(raw["answer_hash"]).copy(), _int32s(raw["answer_chars"]).astype(np.int64)
        for row, respelled, many in self._respelled:
            hashes[row], characters[row] = respelled, many
        calls = _int32s(raw["tool_calls"])
        is_blank, is_error = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        is_refusal: Bools = (flags & _HAS_REFUSED) != 0
        for row, blank, refusal, error in self._looks:
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


def _pieces(data: bytes, ends: bytes) -> Iterator[bytes]:
    """Texts that stand one after another, each up to its end."""
    start = 0
    for end in _ints(ends).tolist():
        yield data[start:end]
        start = end


def _word_column(words: list[str], numbers: bytes) -> pa.DictionaryArray:
    found = _int32s(numbers)
    return pa.DictionaryArray.from_arrays(arrow_array(found, found < 0), pa.array(words, pa.string()))


def _text_column(count: int, is_valid: bytes, ends: bytes, text: bytes) -> pa.Array:
    known = np.packbits(np.frombuffer(is_valid, np.uint8), bitorder="little")
    offsets = np.append(np.int32(0), np.frombuffer(ends, np.int32))
    return pa.Array.from_buffers(
        pa.string(), count, [pa.py_buffer(known), pa.py_buffer(offsets), pa.py_buffer(text)]
    )
