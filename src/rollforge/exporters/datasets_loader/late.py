"""Columns whose first value comes too late for the loader to infer their type."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from rollforge.exporters.datasets_loader.call_arguments import SURE_BYTES

Ints = NDArray[np.int64]


def first_late(
    files: Sequence[Ints],
    codes: Ints,
    uses: Sequence[frozenset[str]],
    sizes: Ints,
    front: Collection[int],
    sure_bytes: int = SURE_BYTES,
) -> int | None:
    """The first example that introduces an optional value after the part of the file from which the loader infers types.

    Args:
        files: the examples of each file, in order.
        codes: per example, its index in `uses`, which lists the optional values of its row.
        sizes: bytes of each row; 0 if unknown, which counts as the mean.
        front: examples that are already at the front.
    """
    present_sizes = sizes[sizes > 0]
    sizes = np.where(sizes > 0, sizes, round(float(present_sizes.mean())) if len(present_sizes) else 0)
    seen: set[str] = set()
    for number, file in enumerate(files):
        starts = np.cumsum(sizes[file]) - sizes[file]
        _, firsts = np.unique(codes[file], return_index=True)
        for position in np.sort(firsts).tolist():
            example = int(file[position])
            used = uses[codes[example]]
            if used <= seen:
                continue
            if (number > 0 or starts[position] > sure_bytes) and example not in front:
                return example
            seen |= used
    return None
