"""Numbers for people: short, aligned, and never rounded to a false statement such as 100 % for 99.99 %."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite


def short(value: float | None) -> str:
    """Write a number with few characters; a dash for None."""
    if value is None:
        return "–"
    if not isfinite(value):
        return str(value)
    if abs(value) >= 1e15:
        return f"{value:.3e}"
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.1f}"
    if abs(value) >= 0.0005:
        return f"{value:.3f}"
    return f"{value:.0e}"


def mean_text(value: float | None) -> str:
    """Write a mean with a fixed number of decimals."""
    if value is None:
        return "–"
    if value == 0 or abs(value) >= 100:
        return short(value) if value == 0 or abs(value) >= 1000 else f"{value:.1f}"
    if abs(value) < 0.0005:
        return f"{value:.0e}"
    # Two ways to one number must not differ by how their last bits are rounded.
    return f"{round(value, 12):.3f}"


def interval(ci: Sequence[float] | None) -> str:
    """Write an interval; a dash for None."""
    return "–" if ci is None else f"{mean_text(ci[0])} … {mean_text(ci[1])}"


def percent(share: float | None) -> str:
    """Write a share in per cent; 100 % and 0 % only for exact values."""
    if share is None:
        return "–"
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    text = f"{share * 100:.1f} %"
    if text == "100.0 %":
        return "> 99.9 %"
    return "< 0.1 %" if text == "0.0 %" else text


def percent_interval(ci: Sequence[float] | None) -> str:
    """Write an interval of shares in per cent."""
    return "–" if ci is None else f"{ci[0] * 100:.1f} … {ci[1] * 100:.1f} %"


def bar(part: float, whole: float, width: int = 30) -> str:
    """Draw a bar whose full width is `whole`; a positive value is always visible."""
    if whole <= 0 or part <= 0:
        return ""
    eighths = max(1, round(part / whole * width * 8))
    return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]


def signed(ci: Sequence[float] | None) -> str:
    """Write an interval of differences, with signs."""
    return "–" if ci is None else f"{ci[0]:+.3f} … {ci[1]:+.3f}"


def clipped(name: str, width: int) -> str:
    """Shorten a long name in the middle, since both ends distinguish names."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"
