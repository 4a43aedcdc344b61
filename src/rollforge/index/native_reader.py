"""Converts ordinary rollout and task lines to columns with the compiled reader (`_rows.c`), if it is installed.

All other lines are left to `python_reader.py`, the only place that describes irregularities. The compiled code parses; hashing
and classifying texts happens here, in Python, a block of lines at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from msgspec import Raw
from numpy.typing import NDArray

from rollforge.index.answer_kind import LONG_HEAD, LONG_STARTS, SHORT, answer_kind
from rollforge.index.arrow import ARROW_TYPES, arrow_array, arrow_floats, arrow_texts
from rollforge.index.parts import KEY_COLUMNS, NOT_WHOLE, TOO_LARGE, NotedLines, part_table
from rollforge.index.row_facts import params_hash
from rollforge.index.schema import COLUMNS, LINE_COLUMNS, Kind
from rollforge.index.text_hash import text_hash, text_hashes
from rollforge.runtime.native import load_native
from rollforge.statistics.stats import Floats

if TYPE_CHECKING:
    from rollforge.index._rows import Finished, Rows

KINDS: tuple[Kind, ...] = ("rollouts", "tasks")
"""Kinds of files that the compiled reader reads."""

REMEMBERED = 100_000
"""Size of the cache of prompt hashes, which rollouts of one task share."""

MAX_LOOKED_AT = 4 * LONG_HEAD
"""Bytes at the start of an answer that suffice to classify it."""

_HAS_RESPONSE, _HAS_REFUSAL, _HAS_TOKEN_IDS = 1, 2, 4
_NO_PROMPT = -1
_LOWER = 0x20
"""The bit that turns an ASCII letter into lower case."""
_STARTS = np.array(
    sorted({int.from_bytes(bytes(byte | _LOWER for byte in start[:3].encode())) for start in LONG_STARTS}),
    dtype=np.int32,
)


def is_available() -> bool:
    """Whether the compiled reader is installed and up to date."""
    return load_native("rollforge.index._rows") is not None


def _new_rows() -> Rows:
    module = load_native("rollforge.index._rows")
    assert module is not None
    rows: Rows = module.Rows()
    return rows


class LineLeft(NamedTuple):
    """A line that the compiled reader leaves to Python."""

    number: int
    start: int
    """Offset of the line in the block."""
    end: int


class _Prompt(NamedTuple):
    hash: int | None
    notes: list[str]


class PromptHashes:
    """Hashes of `responses_create_params`, cached by their bytes."""

    def __init__(self) -> None:
        self._known: dict[int, _Prompt] = {}

    def get(self, params: bytes) -> _Prompt:
        """The hash, and notes on irregular parameters."""
        key = text_hash(params)
        prompt = self._known.get(key)
        if prompt is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            notes: list[str] = []
            prompt = self._known[key] = _Prompt(params_hash(Raw(params), notes.append), notes)
        return prompt


class NativeRows:
    """The ordinary rows of one chunk."""

    def __init__(self, kind: Kind, prompts: PromptHashes) -> None:
        self._kind: Kind = kind
        self._hashes = prompts
        self._rows = _new_rows()
        self._answer_hashes: list[int] = []
        self._kinds: list[tuple[int, bool, bool, bool]] = []
        """(row, is blank, is a refusal, is an error message) for each unusual answer."""
        self._prompts: list[_Prompt] = []

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, block: memoryview, first_line: int, offset: int) -> tuple[int, list[LineLeft]]:
        """Read the complete lines of a block; returns how many there are, and those left to Python."""
        lines, left = self._rows.take(block, first_line, offset)
        answers, answer_ends, characters, prompts, prompt_ends = self._rows.drain()
        if self._kind == "rollouts":
            self._look_at(answers, _int64s(answer_ends), _int32s(characters))
        self._prompts += [self._hashes.get(params) for params in _pieces(prompts, _int64s(prompt_ends))]
        numbers = memoryview(left).cast("q").tolist()
        return lines, list(map(LineLeft, numbers[::3], numbers[1::3], numbers[2::3]))

    def _look_at(self, text: bytes, ends: NDArray[np.int64], characters: NDArray[np.int32]) -> None:
        """Hash and classify answers."""
        first, answers = len(self._answer_hashes), _pieces(text, ends)
        self._answer_hashes += text_hashes(answers)
        for position in np.flatnonzero((characters <= SHORT) | _may_be_errors(text, ends)).tolist():
            kind = answer_kind(answers[position][:MAX_LOOKED_AT].decode(errors="ignore"))
            if any(kind):
                self._kinds.append((first + position, *kind))

    def table(self) -> tuple[pa.Table, NotedLines]:
        """A table of all rows, and notes by (line, offset). The object is empty afterwards."""
        finished = self._rows.finish()
        count, numbers, texts, nested, words, raw = finished
        columns = {name: pa.nulls(count, ARROW_TYPES[column]) for name, column in COLUMNS[self._kind].items()}
        columns |= {name: arrow_array(_int64s(raw[name])) for name in LINE_COLUMNS}
        notes: NotedLines = {}
        columns["prompt_hash"] = self._prompt_hashes(raw, notes)
        read_columns = {name: _word_column(*stored) for name, stored in words.items()}
        if self._kind == "rollouts":
            read_columns |= self._answer_columns(finished)
            read_columns |= {
                name: arrow_floats(_float64s(raw[name])) for name in ("started", "seconds", "verify_seconds")
            }
        columns |= {name: values for name, values in read_columns.items() if name in columns}
        floats_by_name = {name: _float64s(values) for name, values in numbers}
        if self._kind == "rollouts":
            _add_nested(floats_by_name, nested)
        for key, name in KEY_COLUMNS.items():
            if key in floats_by_name:
                values = _key_column(key, floats_by_name[key], raw, notes)
                columns |= {name: values} if name in columns else {}
        return part_table(
            columns, floats_by_name, {name: _text_column(count, *parts) for name, *parts in texts}
        ), notes

    def _prompt_hashes(self, raw: dict[str, bytes], notes: NotedLines) -> pa.Array:
        number = _int32s(raw["prompt"])
        prompts = [*self._prompts, _Prompt(None, [])]  # the last is for rows without a prompt
        hashes = np.array([0 if one.hash is None else one.hash for one in prompts], dtype=np.int64)
        is_missing = np.array([one.hash is None for one in prompts])
        has_notes = np.array([bool(one.notes) for one in prompts])
        for row in np.flatnonzero(has_notes[number]).tolist():
            _note(notes, raw, row, "; ".join(prompts[number[row]].notes))
        return arrow_array(hashes[number], is_missing[number])

    def _answer_columns(self, finished: Finished) -> dict[str, pa.Array]:
        count, _, _, _, words, raw = finished
        flags = np.frombuffer(raw["flags"], np.uint8)
        missing = (flags & _HAS_RESPONSE) == 0
        characters, calls = _int32s(raw["answer_chars"]), _int32s(raw["tool_calls"])
        is_blank, is_error = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
        is_refusal: NDArray[np.bool_] = (flags & _HAS_REFUSAL) != 0
        for row, blank, refusal, error in self._kinds:
            is_blank[row], is_error[row] = blank, error
            is_refusal[row] |= refusal
        finish_names, finish = words["finish_reason"]
        length = finish_names.index("length") if "length" in finish_names else len(finish_names)
        hashes = np.array(self._answer_hashes, dtype=np.int64)
        arrays: dict[str, NDArray[Any]] = {
            "answer_chars": characters.astype(np.int64),
            "turns": _int32s(raw["turns"]).astype(np.int64),
            "tool_calls": calls.astype(np.int64),
            "is_truncated": _int32s(finish) == length,
            "is_empty": is_blank & (calls == 0),
            "is_refusal": is_refusal,
            "error_text": is_error,
            "has_token_ids": (flags & _HAS_TOKEN_IDS) != 0,
        }
        columns = {name: arrow_array(values, missing) for name, values in arrays.items()}
        return columns | {"answer_hash": arrow_array(hashes, missing | (characters == 0))}


def _add_nested(columns: dict[str, Floats], nested: list[tuple[str, bytes]]) -> None:
    """Numbers of usage and reward components; usage overrides a field of the same name, as in NeMo Gym."""
    for name, values in sorted(nested, key=lambda pair: "." in pair[0]):
        numbers = _float64s(values)
        columns[name] = np.where(np.isnan(numbers), columns[name], numbers) if name in columns else numbers


def _key_column(key: str, numbers: Floats, raw: dict[str, bytes], notes: NotedLines) -> pa.Array:
    """An index column as integers; missing, with a note, if the value is not an integer."""
    is_fraction, is_large = numbers % 1 > 0, np.abs(numbers) >= 2**53
    for is_wrong, text in ((is_fraction, NOT_WHOLE), (is_large & ~is_fraction, TOO_LARGE)):
        for row in np.flatnonzero(is_wrong).tolist():
            _note(notes, raw, row, text.format(name=key, value=numbers[row]))
    missing = np.isnan(numbers) | is_fraction | is_large
    return arrow_array(np.where(missing, 0, numbers).astype(np.int64), missing)


def _note(notes: NotedLines, raw: dict[str, bytes], row: int, text: str) -> None:
    line, offset = (int(_int64s(raw[name])[row]) for name in ("line", "offset"))
    notes.setdefault((line, offset), []).append(text)


def _pieces(data: bytes, ends: NDArray[np.int64]) -> list[bytes]:
    """Split concatenated texts at their end offsets."""
    stops = ends.tolist()
    return [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


def _may_be_errors(text: bytes, ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Answers that begin with the first three letters of a long error message; a vectorised test that few answers pass."""
    if not text:
        return np.zeros(len(ends), dtype=np.bool_)
    letters, last = np.frombuffer(text, np.uint8), len(text) - 1
    begins = np.append(0, ends[:-1])
    codes = np.zeros(len(ends), dtype=np.int32)
    for letter in range(3):
        codes = codes << 8 | letters[np.minimum(begins + letter, last)] | _LOWER
    is_start: NDArray[np.bool_] = (
        _STARTS[np.minimum(np.searchsorted(_STARTS, codes), len(_STARTS) - 1)] == codes
    )
    return is_start


def _int64s(data: bytes) -> NDArray[np.int64]:
    return np.frombuffer(data, np.int64)


def _int32s(data: bytes) -> NDArray[np.int32]:
    return np.frombuffer(data, np.int32)


def _float64s(data: bytes) -> Floats:
    return np.frombuffer(data, np.float64)


def _word_column(words: list[str], codes: bytes) -> pa.DictionaryArray:
    numbers = _int32s(codes)
    return pa.DictionaryArray.from_arrays(arrow_array(numbers, numbers < 0), arrow_texts(words))


def _text_column(count: int, is_valid: bytes, ends: bytes, text: bytes) -> pa.Array:
    validity = np.packbits(np.frombuffer(is_valid, np.uint8), bitorder="little")
    offsets = np.append(np.int32(0), _int32s(ends))
    return pa.Array.from_buffers(
        pa.string(), count, [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(text)]
    )
