"""This module turns numpy arrays into Arrow arrays that share their memory.

`pa.array` does so too, but first loads numpy's masked arrays to see whether it was given one: a noticeable part of a short command.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


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
