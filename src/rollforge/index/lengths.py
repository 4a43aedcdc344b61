"""This module counts the characters of texts that are escaped as JSON, many at once and without making them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from rollforge.index.spelling import respell, unescaped

_BACKSLASH = 0x5C
_SPELLINGS = np.zeros(256, dtype=np.bool_)
_SPELLINGS[[ord("u"), ord("/")]] = True
"""What follows the backslash of an escape that has another spelling."""


def measure(said: list[bytes]) -> tuple[list[bytes], list[int]]:
    """Escaped texts in the one spelling that equal texts share, and how many characters each has."""
    data = np.frombuffer(b'"'.join([*said, b""]), dtype=np.uint8)
    ends = np.cumsum([len(text) + 1 for text in said])
    escapes = np.flatnonzero(data == _BACKSLASH)
    odd = escapes[_SPELLINGS[data[escapes + 1]]]
    if len(odd):
        said = list(said)
        for place in np.unique(np.searchsorted(ends, odd, side="right")).tolist():
            said[place], _ = respell(said[place])
        return said, [len(unescaped(text)) for text in said]
    offsets = pa.py_buffer(np.append(0, ends))
    texts = pa.Array.from_buffers(pa.large_string(), len(said), [None, offsets, pa.py_buffer(data)])
    characters = compute.utf8_length(texts).to_numpy() - 1
    return said, (characters - _escape_counts(escapes, ends)).tolist()


def _escape_counts(backslashes: Any, ends: Any) -> Any:
    """Escapes of each text: of a run of backslashes every other one begins one."""
    first = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
    in_run = np.diff(first, append=len(backslashes))
    before = np.append(0, np.cumsum((in_run + 1) // 2))
    return np.diff(before[np.searchsorted(backslashes[first], ends)], prepend=0)
