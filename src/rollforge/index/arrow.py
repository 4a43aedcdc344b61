"""Arrow columns to numpy arrays and back, exactly, with missing values.

It avoids `pyarrow.compute` and `pa.array(numpy)`, which import more than most commands otherwise need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollforge.index.schema import ColumnType
from rollforge.stats import Floats, Ints

ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
}

JOINED = 65_536
"""Texts joined at a time: joining all at once would take ten times the memory."""


def ints(column: pa.ChunkedArray, missing: int = 0) -> Ints:
    """A column of whole numbers. Arrow itself would convert columns with nulls to floats, which cannot hold hashes."""
    found = [np.zeros(0, dtype=np.int64)]
    for chunk in column.chunks:
        if chunk.null_count == len(chunk):
            found.append(np.full(len(chunk), missing, dtype=np.int64))
        elif chunk.null_count:
            stored = np.frombuffer(chunk.buffers()[1], dtype=chunk.type.to_pandas_dtype())
            values = stored[chunk.offset : chunk.offset + len(chunk)]
            found.append(np.where(_is_known(chunk), values, missing).astype(np.int64, copy=False))
        else:
            found.append(chunk.to_numpy(zero_copy_only=False))
    return np.concatenate(found, dtype=np.int64, casting="unsafe")


def floats(column: pa.ChunkedArray) -> Floats:
    """A column of numbers or bools as floats; NaN for null. Read-only: it may share memory with the column."""
    found = []
    for chunk in column.chunks:
        is_blank = chunk.null_count == len(chunk)
        found.append(np.full(len(chunk), math.nan) if is_blank else chunk.to_numpy(zero_copy_only=False))
    if len(found) == 1:
        return np.asarray(found[0], dtype=np.float64)
    return np.concatenate([np.zeros(0), *found], dtype=np.float64, casting="unsafe")


def flags(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """A column of bools; False for null."""
    found = [np.zeros(0, dtype=np.bool_)]
    for chunk in column.chunks:
        found.append(chunk.to_numpy(zero_copy_only=False).astype(np.bool_))
    return np.concatenate(found)


def codes(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """Dictionary-encode a column of texts: a code per row (-1 for null) and the texts in order of appearance."""
    number: dict[str | None, int] = {None: -1}
    found = [np.zeros(0, dtype=np.int64)]
    for chunk in column.chunks:
        is_coded = pa.types.is_dictionary(chunk.type)
        texts = (chunk.dictionary if is_coded else chunk).to_pylist()
        for text in dict.fromkeys(texts):
            number.setdefault(text, len(number) - 1)
        numbers = np.array([*(number[text] for text in texts), -1], dtype=np.int64)
        found.append(numbers[ints(pa.chunked_array([chunk.indices]), -1)] if is_coded else numbers[:-1])
    return np.concatenate(found), [text for text in number if text is not None]


def is_known(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Where a column is not null."""
    found = [np.zeros(0, dtype=np.bool_)]
    for chunk in column.chunks:
        found.append(_is_known(chunk) if chunk.null_count else np.ones(len(chunk), dtype=np.bool_))
    return np.concatenate(found)


def _is_known(array: pa.Array) -> NDArray[np.bool_]:
    bits = np.frombuffer(array.buffers()[0], dtype=np.uint8)
    known = np.unpackbits(bits, bitorder="little", count=array.offset + len(array))
    is_known: NDArray[np.bool_] = known[array.offset :].astype(np.bool_)
    return is_known


def arrow_array(values: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers or bools as an Arrow array, null where `missing` is true."""
    known = None
    if missing is not None and missing.any():
        known = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    if values.dtype == np.bool_:
        kind, data = pa.bool_(), np.packbits(values, bitorder="little")
    else:
        kind, data = pa.from_numpy_dtype(values.dtype), np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(data)])


def arrow_floats(values: NDArray[np.float64]) -> pa.Array:
    """Floats as an Arrow array, null where they are NaN."""
    return arrow_array(values, np.isnan(values))


def texts(numbers: Ints, words: Sequence[str]) -> pa.Array:
    """A column of texts from codes into `words`; null for a code beyond them."""
    spelled = [*(word.encode() for word in words), b""]
    numbers = np.minimum(numbers, len(words))
    sizes = np.array([len(word) for word in spelled], dtype=np.int32)
    offsets = np.append(np.int32(0), np.cumsum(sizes[numbers], dtype=np.int32))
    known = pa.py_buffer(np.packbits(numbers < len(words), bitorder="little"))
    data = b"".join(
        b"".join([spelled[number] for number in numbers[first : first + JOINED].tolist()])
        for first in range(0, len(numbers), JOINED)
    )
    return pa.Array.from_buffers(
        pa.string(), len(numbers), [known, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
