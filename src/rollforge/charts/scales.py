"""Scales and ticks: data values to coordinates, and the round numbers an axis shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""Tick distances that count as round, per power of ten."""

CLOCK_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Round tick distances in seconds."""

TEXT_WIDTH = 6.2
"""Average width of a character in the charts' 11-pixel font, to size margins for labels."""


class Scale(Struct, frozen=True):
    """A linear map from data [low, high] to pixels [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of a value."""
        span = self.high - self.low
        if math.isinf(span):
            return Scale(self.low / 2, self.high / 2, self.start, self.end)(value / 2)
        share = (value - self.low) / span if span else 0.5
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` + 1 round numbers between low and high, evenly spaced; just `low` when there is no span."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    raw = high / max(1, most) - low / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(one * power for one in STEPS if one * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [_clean(number * step) for number in range(first, last + 1)]


def _clean(value: float) -> float:
    """The value without binary rounding noise, so that 0.30000000000000004 is printed as 0.3."""
    return float(f"{value:.12g}")


def clock_ticks(high: float, most: int = 6) -> list[float]:
    """Round durations from 0 up to `high` seconds."""
    if high <= 0:
        return [0.0]
    step = next((one for one in CLOCK_STEPS if high / one <= most), None)
    if step is None or high < CLOCK_STEPS[0]:
        return (
            ticks(0, high, most)
            if step is not None
            else [86400.0 * day for day in ticks(0, high / 86400, most)]
        )
    return [float(number * step) for number in range(int(high // step) + 1)]


def levels_from_zero(value: float, most: int = 5, *, is_count: bool = False) -> list[float]:
    """Ticks of an axis from 0 whose last one is at or above `value`, so that every mark lies below a labelled line."""
    if value <= 0 or not math.isfinite(value):
        return [0.0, 1.0]
    shown = ticks(0, value, most)
    step = shown[1] if len(shown) > 1 else value
    if is_count:
        step = math.ceil(step)
    return [_clean(number * step) for number in range(math.ceil(value / step - 1e-9) + 1)]


def rounded_up(value: float, most: int = 5) -> float:
    """A round end of an axis from 0 that has room for `value`."""
    return levels_from_zero(value, most)[-1]


def short(value: float) -> str:
    """A number for an axis: 1,200 · 15k · 2.5M · 0.25 · −3."""
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            unit = 1e3 if letter == "k" else limit
            return f"{value / unit:.4g}{letter}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(share: float) -> str:
    """A share for an axis: 5 %."""
    return f"{share * 100:.4g} %"


def clock(seconds: float) -> str:
    """A duration for an axis: 45 s · 5 min · 1.5 h · 2 d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def widest(texts: Sequence[str]) -> float:
    """Width of the longest label."""
    return max((len(text) for text in texts), default=0) * TEXT_WIDTH


Format = Callable[[float], str]
