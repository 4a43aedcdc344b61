"""Columns of a run as arrays: text columns as codes, the reward range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rollforge.index import codes
from rollforge.statistics.stats import Floats

Bools = NDArray[np.bool_]

LARGE = 10.0
"""Rewards beyond this magnitude are extreme."""

STRAY = 0.02
"""Strays outside the range may be at most this share of values; if more, they extend the range."""


class TextCodes:
    """A text column as codes: -1 where it is missing."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self.codes, self.names = codes(column)

    def counts(self, among: Bools | None = None) -> dict[str, int]:
        """Number of rows per name, largest first."""
        codes = self.codes if among is None else self.codes[among]
        counts = np.bincount(codes[codes >= 0], minlength=len(self.names))
        order = np.argsort(-counts, kind="stable")
        return {self.names[code]: int(counts[code]) for code in order.tolist() if counts[code]}


def has_one_each(names: TextCodes, values: TextCodes, among: Bools) -> bool:
    """Whether there are several names and each occurs with one value only, such as one model per agent."""
    if len(names.names) < 2:
        return False
    width = len(values.names) + 1
    pairs = np.bincount((names.codes[among] + 1) * width + values.codes[among] + 1)
    present = np.flatnonzero(pairs) // width
    return bool((np.diff(present) > 0).all())


@dataclass(frozen=True)
class Range:
    """The range that rewards are scaled from."""

    low: float
    high: float
    is_declared: bool = False

    @property
    def is_unit(self) -> bool:
        """Whether the range is [0, 1]."""
        return self.low == 0 and self.high == 1

    @property
    def note(self) -> str:
        """A clause for findings that use scaled rewards; empty when the range is [0, 1] anyway."""
        kind = "declared" if self.is_declared else "observed"
        return (
            "" if self.is_unit else f" (rewards scaled from the {kind} range [{self.low:g}, {self.high:g}])"
        )


def ends_of(values: Floats) -> tuple[float, float]:
    """The lowest and the highest value, ignoring a few outliers that would compress the scale."""
    for limit in (LARGE, 1.0):
        inside = np.abs(values) <= limit
        few = len(values) - int(inside.sum())
        # If no reward reaches 1, a rare larger value may be the success of a hard run.
        is_full = limit == LARGE or (
            few and float((values[inside] >= 0.9).mean() if inside.any() else 0.0) > STRAY
        )
        if 0 < few <= STRAY * len(values) and is_full:
            values = values[inside]
    return float(values.min()), float(values.max())


def about_text(counts: Mapping[str, int], *, most: int = 3) -> str:
    """`a (12), b (3)`: names with their counts."""
    shown = [f"{name} ({count:,})" for name, count in list(counts.items())[:most]]
    return ", ".join(shown) + (", …" if len(counts) > most else "")
