"""This module turns columns of Arrow into arrays of numpy and back, exactly, whatever is missing.

It does without `pyarrow.compute`, which documents every one of its functions on import, and without `pa.array`, which loads numpy's
masked arrays to see whether it was given one: either takes longer than the columns of most runs. Nothing here knows what a
column means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollforge.index.kinds import ColumnType
from rollforge.stats import Floats, Ints

ARROW_TYPES: dict[ColumnType, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
}

JOINED = 65_536
"""Texts joined at a time: joining takes ten times the memory of the references to them."""


def ints(column: pa.ChunkedArray, missing: int = 0) -> Ints:
    """A column of whole numbers. Arrow would make floats of those that have missing ones, and hashes do not survive that."""
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
    """A column of numbers or truth values; NaN where one is missing. It may not be written to: it may be the column itself."""
    found = []
    for chunk in column.chunks:
        is_blank = chunk.null_count == len(chunk)
        found.append(np.full(len(chunk), math.nan) if is_blank else chunk.to_numpy(zero_copy_only=False))
    if len(found) == 1:
        return np.asarray(found[0], dtype=np.float64)
    return np.concatenate([np.zeros(0), *found], dtype=np.float64, casting="unsafe")


def flags(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    """A column of truth values; no where one is missing."""
    found = [np.zeros(0, dtype=np.bool_)]
    for chunk in column.chunks:
        found.append(chunk.to_numpy(zero_copy_only=False).astype(np.bool_))
    return np.concatenate(found)


def codes(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """A column of texts: the number of each row's text, -1 where it is missing, and the texts in the order they first appear."""
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
    """Where a column has a value."""
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
    """Numbers or truth values as an Arrow array, null where `missing` says so."""
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
    """A column of texts, given as the numbers of a few words; null for a number that is none of theirs."""
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
