"""The mergeable state of one metric: counts, exact sums, extremes and the last value.

Sums are exact integer multiples of the smallest double, so adding never rounds: merging in any order and partition gives the same
state, and streamed, resumed and offline means are the same double. This is the arithmetic of `math.fsum` in a mergeable,
serialisable form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_FINEST = 1074
"""Every double is an integer multiple of 2**-1074."""


def plain_number(value: object) -> float | None:
    """A float for bool, int, float and numpy or torch scalars; None for other values."""
    if isinstance(value, bool | int | float):
        return float(value)
    item = getattr(value, "item", None)
    if callable(item) and math.prod(getattr(value, "shape", (2,))) == 1:
        plain = item()
        return float(plain) if isinstance(plain, bool | int | float) else None
    return None


class MomentsJson(TypedDict):
    """The complete, exact state; sums are hexadecimal because JSON readers round large integers."""

    count: int
    odd: list[int]
    """Counts of NaN, infinity and negative infinity."""
    sum: str
    squares: str
    range: list[float | None]
    last: list[float] | None


class Moments:
    """Count, sum, sum of squares, extremes and last of the finite values, and the number of non-finite ones."""

    __slots__ = (
        "_order",
        "_squares",
        "_total",
        "count",
        "infinite",
        "last",
        "max",
        "min",
        "nan",
        "negative_infinite",
    )

    def __init__(self) -> None:
        self.count = 0
        self.nan = 0
        self.infinite = 0
        self.negative_infinite = 0
        self.min: float | None = None
        self.max: float | None = None
        self.last: float | None = None
        self._order: tuple[float, float] | None = None
        self._total = 0
        self._squares = 0

    @classmethod
    def of(cls, values: Iterable[float]) -> Moments:
        """The state of `values`, added in order."""
        moments = cls()
        for order, value in enumerate(values):
            moments.add(value, order=order)
        return moments

    def add(self, value: float, *, order: float = 0.0) -> None:
        """Add one value; `order` decides which value is the last one, independently of the order of calls."""
        if not math.isfinite(value):
            self._count_odd(value)
            return
        self.count += 1
        numerator, denominator = value.as_integer_ratio()
        shift = _FINEST - denominator.bit_length() + 1
        self._total += numerator << shift
        self._squares += (numerator * numerator) << (2 * shift)
        if self.min is None or value < self.min:
            self.min = value
        if self.max is None or value > self.max:
            self.max = value
        self._offer_last(value, (order, value))

    def _count_odd(self, value: float) -> None:
        if math.isnan(value):
            self.nan += 1
        elif value > 0:
            self.infinite += 1
        else:
            self.negative_infinite += 1

    def _offer_last(self, value: float | None, order: tuple[float, float] | None) -> None:
        if order is not None and (self._order is None or order > self._order):
            self._order, self.last = order, value

    def merge(self, other: Moments) -> None:
        """Add everything that `other` contains; commutative and associative to the last bit."""
        self.count += other.count
        self.nan += other.nan
        self.infinite += other.infinite
        self.negative_infinite += other.negative_infinite
        self._total += other._total
        self._squares += other._squares
        self.min = min((x for x in (self.min, other.min) if x is not None), default=None)
        self.max = max((x for x in (self.max, other.max) if x is not None), default=None)
        self._offer_last(other.last, other._order)

    @property
    def non_finite(self) -> int:
        """Number of NaN and infinite values, which all other statistics exclude."""
        return self.nan + self.infinite + self.negative_infinite

    @property
    def sum(self) -> float:
        """The sum, rounded once."""
        return _to_float(self._total, _FINEST)

    @property
    def mean(self) -> float | None:
        """The sum divided by the count; None without values."""
        return self.sum / self.count if self.count else None

    def std(self, ddof: int = 0) -> float | None:
        """The standard deviation, of the population by default; None if undefined."""
        if self.count - ddof <= 0:
            return None
        spread = self.count * self._squares - self._total * self._total
        return math.sqrt(_to_float(spread, 2 * _FINEST, self.count * (self.count - ddof)))

    def to_json(self) -> MomentsJson:
        """The complete, exact state as JSON."""
        return {
            "count": self.count,
            "odd": [self.nan, self.infinite, self.negative_infinite],
            "sum": hex(self._total),
            "squares": hex(self._squares),
            "range": [self.min, self.max],
            "last": [*self._order] if self._order else None,
        }

    @classmethod
    def from_json(cls, state: MomentsJson) -> Moments:
        """Restore a state written by `to_json`."""
        moments = cls()
        moments.count = state["count"]
        moments.nan, moments.infinite, moments.negative_infinite = state["odd"]
        moments._total, moments._squares = int(state["sum"], 16), int(state["squares"], 16)
        moments.min, moments.max = state["range"]
        if state["last"]:
            moments._order = (state["last"][0], state["last"][1])
            moments.last = state["last"][1]
        return moments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moments) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ("count", "mean", "min", "max", "non_finite")
        return f"Moments({', '.join(f'{name}={getattr(self, name)}' for name in shown)})"


def _to_float(units: int, fineness: int, divisor: int = 1) -> float:
    """`units / (divisor * 2**fineness)`, rounded once, because Python divides integers of any size with correct rounding."""
    try:
        return units / (divisor << fineness)
    except OverflowError:
        return math.inf if units > 0 else -math.inf


_BLOCK = 16_384
"""Rows summed at a time, so that a block's arrays fit into the processor's cache."""


def exact_row_sums(columns: Sequence[FloatArray]) -> FloatArray:
    """For each row the sum across `columns`, equal to `math.fsum` of that row whatever the order of the columns.

    Rounding errors are collected in a second array, and the errors of that one in a third. A row whose third value is not zero
    (values more than a hundred bits apart) is summed again with `fsum`.
    """
    result = np.array(columns[0], dtype=np.float64)
    if len(columns) == 1:
        return result
    for start in range(0, len(result), _BLOCK):
        block = slice(start, start + _BLOCK)
        _sum_block([column[block] for column in columns], result[block])
    return result


def _sum_block(columns: list[FloatArray], result: FloatArray) -> None:
    """Write the sums of a block's rows into `result`, which initially holds the first column."""
    error, rest = np.zeros_like(result), np.zeros_like(result)
    total, lost, shadow = result.copy(), np.empty_like(result), np.empty_like(result)
    spare, column = np.empty_like(result), np.empty_like(result)
    with np.errstate(over="ignore", invalid="ignore"):  # rows that overflow are summed again below
        for strided in columns[1:]:
            np.copyto(column, strided)
            total, spare = _two_sum(total, column, spare, lost, shadow)
            np.copyto(column, lost)
            error, spare = _two_sum(error, column, spare, lost, shadow)
            np.abs(lost, out=lost)
            rest += lost
        np.add(total, error, out=result)
    for row in np.flatnonzero((rest != 0) | ~np.isfinite(result)):
        result[row] = exact_sum([float(column[row]) for column in columns])


def _two_sum(
    a: FloatArray, b: FloatArray, total: FloatArray, lost: FloatArray, shadow: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The rounded sum of two arrays; the exact rounding error (Knuth) is left in `lost`. The memory of `a` is reused."""
    np.add(a, b, out=total)
    np.subtract(total, a, out=shadow)
    np.subtract(total, shadow, out=lost)
    np.subtract(a, lost, out=lost)
    np.subtract(b, shadow, out=shadow)
    lost += shadow
    return total, a


def exact_sum(values: list[float]) -> float:
    """`math.fsum`, with NaN for inf − inf and infinity on overflow instead of an exception."""
    try:
        return math.fsum(values)
    except ValueError:
        return math.nan
    except OverflowError:
        return Moments.of(values).sum
