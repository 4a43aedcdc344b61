"""Arrow columns to numpy arrays and back, exactly, with missing values.

It uses the buffers of an array directly, because `pyarrow.compute` is slow to import, and `pa.array(values)` and
`array.to_numpy()` import pandas if it is installed: 0.2 s and 40 MB in every command.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollforge.index.schema import ColumnType
from rollforge.statistics.stats import Floats, Ints

ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
}

JOINED = 65_536
"""Number of texts joined at a time; joining all at once takes ten times the memory."""


def ints(column: pa.ChunkedArray, missing: int = 0) -> Ints:
    """A column of integers. Arrow itself would convert columns with nulls to floats, which cannot represent hashes."""
    pieces = [np.zeros(0, dtype=np.int64)]
    for chunk in column.chunks:
        if chunk.null_count == len(chunk):
            pieces.append(np.full(len(chunk), missing, dtype=np.int64))
        elif chunk.null_count:
            pieces.append(np.where(_is_known(chunk), _stored(chunk), missing).astype(np.int64, copy=False))
        else:
            pieces.append(_stored(chunk))
    return np.concatenate(pieces, dtype=np.int64, casting="unsafe")


def floats(column: pa.ChunkedArray) -> Floats:
    """A column of numbers or bools as floats; NaN for null. Read-only: it may share memory with the column."""
    pieces = [array_floats(chunk) for chunk in column.chunks]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate([np.zeros(0), *pieces])


def array_floats(array: pa.Array) -> Floats:
    """Numbers or bools of one array as floats; NaN for null."""
    if array.null_count == len(array):
        return np.full(len(array), math.nan)
    values = _stored(array).astype(np.float64, copy=False)
    return np.where(_is_known(array), values, math.nan) if array.null_count else values


def _stored(array: pa.Array) -> NDArray[Any]:
    """Raw numbers or bools of an array; undefined where they are null."""
    data, first, last = array.buffers()[1], array.offset, array.offset + len(array)
    if pa.types.is_boolean(array.type):
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little", count=last)
        return bits[first:].astype(np.bool_)
    values: NDArray[Any] = np.frombuffer(data, dtype=array.type.to_pandas_dtype())[first:last]
    return values


def flags(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """A column of bools; False for null."""
    pieces = [np.zeros(0, dtype=np.bool_)]
    for chunk in column.chunks:
        is_blank = chunk.null_count == len(chunk)
        stored = np.zeros(len(chunk), dtype=np.bool_) if is_blank else _stored(chunk)
        pieces.append(stored & _is_known(chunk) if chunk.null_count else stored)
    return np.concatenate(pieces)


def codes(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """Dictionary-encode a text column: a code per row (-1 for null) and the texts in order of appearance."""
    numbers, words = coded(column)
    return numbers, words.to_pylist()


def coded(column: pa.ChunkedArray) -> tuple[Ints, pa.Array]:
    """`codes` with the texts as an Arrow array: of hundreds of thousands, most are never accessed."""
    column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return np.zeros(0, dtype=np.int64), pa.nulls(0, pa.string())
    numbers = ints(pa.chunked_array([chunk.indices for chunk in column.chunks]), -1)
    words = column.chunk(0).dictionary
    if words.null_count:  # a null among the words is no word
        listed = words.to_pylist()
        is_word = np.array([word is not None for word in listed], dtype=np.bool_)
        number = np.append(np.where(is_word, np.cumsum(is_word) - 1, -1), -1)
        numbers, words = number[numbers], arrow_texts([word for word in listed if word is not None])
    return numbers, words


def is_known(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Mask of non-null values."""
    pieces = [np.zeros(0, dtype=np.bool_)]
    for chunk in column.chunks:
        pieces.append(_is_known(chunk) if chunk.null_count else np.ones(len(chunk), dtype=np.bool_))
    return np.concatenate(pieces)


def _is_known(array: pa.Array) -> NDArray[np.bool_]:
    bits = np.frombuffer(array.buffers()[0], dtype=np.uint8)
    validity = np.unpackbits(bits, bitorder="little", count=array.offset + len(array))
    is_known: NDArray[np.bool_] = validity[array.offset :].astype(np.bool_)
    return is_known


def arrow_array(values: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers or bools as an Arrow array, null where `missing` is true."""
    validity = None
    if missing is not None and missing.any():
        validity = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    if values.dtype == np.bool_:
        kind, data = pa.bool_(), np.packbits(values, bitorder="little")
    else:
        kind, data = pa.from_numpy_dtype(values.dtype), np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(data)])


def arrow_floats(values: NDArray[np.float64]) -> pa.Array:
    """Floats as an Arrow array, null where they are NaN."""
    return arrow_array(values, np.isnan(values))


def arrow_texts(words: Sequence[str | None]) -> pa.Array:
    """Texts as an Arrow array."""
    codes = np.array([len(words) if word is None else code for code, word in enumerate(words)], np.int64)
    return texts(codes, [word or "" for word in words])


def texts(numbers: Ints, words: Sequence[str]) -> pa.Array:
    """A text column from codes into `words`; null for a code out of range."""
    spelled = [*(word.encode() for word in words), b""]
    numbers = np.minimum(numbers, len(words))
    sizes = np.array([len(word) for word in spelled], dtype=np.int32)
    offsets = np.append(np.int32(0), np.cumsum(sizes[numbers], dtype=np.int32))
    validity = pa.py_buffer(np.packbits(numbers < len(words), bitorder="little"))
    data = b"".join(
        b"".join([spelled[number] for number in numbers[first : first + JOINED].tolist()])
        for first in range(0, len(numbers), JOINED)
    )
    return pa.Array.from_buffers(
        pa.string(), len(numbers), [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
