"""This module drives the compiled reader of ordinary rollout lines, where there is one: what `rollouts.py` does, many times faster.

Without a compiler at installation there is no `_rows`, and everything takes the Python way. The compiled reader leaves every line
that is not ordinary to it as well, so that what is odd about a line is said in one place only.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollforge.index.answers import LOOKED_AT, is_long_error, look_at_text, may_be_long_errors, respell
from rollforge.index.arrays import arrow_array, arrow_floats
from rollforge.index.facts import Reader
from rollforge.index.kinds import PIECES, PLACES, Kind
from rollforge.index.lines import Batch
from rollforge.index.prompts import hash_spelled

try:
    from rollforge.index._rows import Rows

    IS_THERE = True
except ImportError:
    IS_THERE = False

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_HAS_RESPONSE, _HAS_REFUSED, _HAS_TOKEN_IDS = 1, 2, 4
_WORDS = ("agent", "finish_reason", "model", "verifier", "fingerprint", "mode")
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
        self._rows = Rows()
        self._digests: list[Ints] = []
        self._characters: list[Ints] = []
        self._looks: list[tuple[int, bool, bool, bool]] = []
        self._prompts: list[int | None] = []
        self._noted: dict[int, list[str]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, batch: Batch, line: int) -> tuple[int, list[tuple[int, int, int]]]:
        """Read the lines, the first of which has this number; how many there are, and (number, start, end) of those left."""
        first = len(self._rows)
        lines, left = self._rows.take(batch.data, line, batch.offset)
        said, said_ends, characters, prompts, prompt_ends, are_spelled = self._rows.drain()
        self._read_answers(first, memoryview(said), _ints(said_ends), np.frombuffer(characters, np.int32))
        self._read_prompts(prompts, _ints(prompt_ends).tolist(), are_spelled)
        return lines, list(zip(*_ints(left).reshape(-1, 3).T.tolist(), strict=True))

    def _read_answers(self, first: int, said: memoryview, ends: Ints, found: NDArray[np.int32]) -> None:
        """Hash the answers, and look at the short ones: `first` is the row of the first."""
        starts = np.append(0, ends[:-1]) if len(ends) else ends
        texts: list[memoryview | bytes] = [
            said[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        characters = found.astype(np.int64)
        for place in np.flatnonzero(found < 0).tolist():
            texts[place], characters[place] = respell(bytes(texts[place]))
        digests = b"".join([sha256(text).digest() for text in texts])
        self._digests.append(np.frombuffer(digests, "<i8")[::4])
        self._characters.append(characters)
        is_short = characters <= LOOKED_AT
        for place in np.flatnonzero(is_short).tolist():
            self._looks.append((first + place, *look_at_text(bytes(texts[place]))))
        places = np.flatnonzero(~is_short)
        may_be = may_be_long_errors(np.frombuffer(said, np.uint8), starts[places]) | (found[places] < 0)
        for place in places[may_be].tolist():
            if is_long_error(texts[place]):
                self._looks.append((first + place, False, False, True))

    def _read_prompts(self, prompts: bytes, ends: list[int], are_spelled: bytes) -> None:
        start = 0
        for end, is_spelled in zip(ends, are_spelled, strict=True):
            data = prompts[start:end]
            start = end
            if is_spelled:
                self._prompts.append(hash_spelled(data))
                continue
            notes: list[str] = []
            self._prompts.append(self._reader.prompt_hash(data, notes.append))
            if notes:
                self._noted[len(self._prompts) - 1] = notes

    def finish(
        self, note: Note, *, has_usage: bool
    ) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]], dict[str, pa.Array]]:
        """The fixed columns, the discovered numbers (NaN where missing) and the discovered texts; this is empty afterwards."""
        count, numbers, texts, besides, words, raw = self._rows.finish()
        fixed: dict[str, Any] = {name: arrow_array(_ints(raw[name])) for name in PLACES}
        fixed |= {name: arrow_array(np.frombuffer(raw[name], np.int32)) for name in PIECES}
        fixed |= self._hashes(np.frombuffer(raw["prompt"], np.int32), raw, note)
        fixed |= self._answers(count, raw, words)
        labels = [*words, None]  # −1 is the last
        for name in _WORDS:
            fixed[name] = pa.array(
                [labels[word] for word in np.frombuffer(raw[name], np.int32).tolist()], pa.string()
            )
        for name in _SECONDS:
            fixed[name] = arrow_floats(np.frombuffer(raw[name], np.float64))
        found = {name: np.frombuffer(values, np.float64) for name, values in numbers}
        for name, values in sorted(besides if has_usage else [], key=lambda pair: "." in pair[0]):
            # Usage overrides a field of the same name, as in NeMo Gym.
            beside = np.frombuffer(values, np.float64)
            found[name] = np.where(np.isnan(beside), found[name], beside) if name in found else beside
        return fixed, found, {name: _text_column(count, *parts) for name, *parts in texts}

    def _hashes(self, prompt: NDArray[np.int32], raw: dict[str, bytes], note: Note) -> dict[str, pa.Array]:
        for number, notes in self._noted.items():
            for row in np.flatnonzero(prompt == number).tolist():
                note(int(_ints(raw["line"])[row]), int(_ints(raw["offset"])[row]), "; ".join(notes))
        hashes = np.array([0 if found is None else found for found in self._prompts] + [0], dtype=np.int64)
        unknown = np.array([found is None for found in self._prompts] + [True])
        return {"prompt_hash": arrow_array(hashes[prompt], unknown[prompt])}

    def _answers(self, count: int, raw: dict[str, bytes], words: list[str]) -> dict[str, pa.Array]:
        flags = np.frombuffer(raw["flags"], np.uint8)
        missing = (flags & _HAS_RESPONSE) == 0
        characters = _joined(self._characters)
        calls = np.frombuffer(raw["tool_calls"], np.int32)
        finish = np.frombuffer(raw["finish_reason"], np.int32)
        is_blank, is_error = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        is_refusal: Bools = (flags & _HAS_REFUSED) != 0
        for row, blank, refusal, error in self._looks:
            is_blank[row], is_error[row] = blank, error
            is_refusal[row] |= refusal
        is_truncated = (
            finish == words.index("length") if "length" in words else np.zeros(count, dtype=np.bool_)
        )
        found = {
            "answer_hash": arrow_array(_joined(self._digests), missing | (characters == 0)),
            "answer_chars": characters,
            "turns": np.frombuffer(raw["turns"], np.int32).astype(np.int64),
            "tool_calls": calls.astype(np.int64),
            "is_truncated": is_truncated,
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


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _text_column(count: int, is_valid: bytes, ends: bytes, text: bytes) -> pa.Array:
    known = np.packbits(np.frombuffer(is_valid, np.uint8), bitorder="little")
    offsets = np.append(np.int32(0), np.frombuffer(ends, np.int32))
    return pa.Array.from_buffers(
        pa.string(), count, [pa.py_buffer(known), pa.py_buffer(offsets), pa.py_buffer(text)]
    )
