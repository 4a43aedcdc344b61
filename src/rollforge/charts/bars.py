"""Bar charts: columns over numeric bins, and horizontal bars with their labels."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rollforge.charts.frame import WIDTH, Frame, frame, x_axis, y_axis
from rollforge.charts.scales import Scale, levels_from_zero, percent, short, ticks, widest
from rollforge.charts.scene import Mark, Rect, Scene, TextMark

ROW = 26.0
"""Height of one horizontal bar with its gap."""

MISSING_GAP = 16.0


class Bar(Struct, frozen=True, kw_only=True):
    """One bar of a chart: a name, a count and, if it stands for rollouts, the condition that selects them."""

    label: str
    count: int
    css: str = "fill-1"
    where: str = ""
    note: str = ""
    """Text after the number, such as the meaning of a band."""


def column_chart(
    edges: Sequence[float],
    bars: Sequence[Bar],
    *,
    title: str,
    description: str,
    x_title: str,
    y_title: str = "rollouts",
    missing: Bar | None = None,
    height: float = 230,
) -> Scene:
    """A histogram: one column per bin between `edges`; `missing` is a separate column at the right, never part of zero."""
    levels = levels_from_zero(
        max([bar.count for bar in bars] + ([missing.count] if missing else []), default=0), 4, is_count=True
    )
    highest = levels[-1]
    area = frame(height, [short(level) for level in levels])
    if missing:
        area = Frame(area.left, area.right - 70 - MISSING_GAP, area.top, area.bottom)
    x, y = Scale(edges[0], edges[-1], area.left, area.right), Scale(0, highest, area.bottom, area.top)
    marks = y_axis(Frame(area.left, WIDTH - 14, area.top, area.bottom), y, levels, short, y_title)
    total = sum(bar.count for bar in bars) + (missing.count if missing else 0)
    for bar, low, high in zip(bars, edges, edges[1:], strict=False):
        marks += _column(bar, x(low), x(high), y, total)
    marks += x_axis(area, x, ticks(edges[0], edges[-1], 5), short, x_title)
    if missing:
        start = area.right + MISSING_GAP + 14
        marks += _column(missing, start, start + 42, y, total)
        marks.append(
            TextMark(x=start + 21, y=area.bottom + 16, text=missing.label, css="tick", anchor="middle")
        )
    return Scene(width=WIDTH, height=height, title=title, description=description, marks=tuple(marks))


def _column(bar: Bar, left: float, right: float, y: Scale, total: int) -> list[Mark]:
    if not bar.count:
        return []
    top = min(y(bar.count), y.start - 1)  # one rollout among a million is still a line
    words = f"{bar.label}: {bar.count:,} ({percent(round(bar.count / total, 4))})"
    gap = min(1.0, (right - left) / 8)
    return [
        Rect(
            x=left + gap,
            y=top,
            width=max(1.0, right - left - 2 * gap),
            height=y.start - top,
            css=bar.css,
            title=words,
            where=bar.where,
        )
    ]


def bar_chart(bars: Sequence[Bar], *, title: str, description: str, unit: str = "tasks") -> Scene:
    """Horizontal bars, one per line, each with its label on the left and its number on the right."""
    total = sum(bar.count for bar in bars)
    left = widest([bar.label for bar in bars]) + 12
    numbers = [f"{bar.count:,} ({percent(round(bar.count / total, 3)) if total else '–'})" for bar in bars]
    notes = [f"{number}  {bar.note}".rstrip() for number, bar in zip(numbers, bars, strict=True)]
    right = max(left + 60, WIDTH - widest(notes) - 12)
    scale = Scale(0, max([bar.count for bar in bars], default=0) or 1, left, right)
    marks: list[Mark] = []
    for row, (bar, words) in enumerate(zip(bars, notes, strict=True)):
        y = 8 + row * ROW
        end = scale(bar.count)
        marks.append(TextMark(x=left - 8, y=y + 14, text=bar.label, css="tick", anchor="end"))
        marks.append(
            Rect(
                x=left,
                y=y,
                width=max(end - left, 1.0 if bar.count else 0.0),
                height=ROW - 7,
                css=bar.css,
                title=f"{bar.label}: {bar.count:,} {unit}",
                where=bar.where,
            )
        )
        marks.append(TextMark(x=end + 6, y=y + 14, text=words, css="value"))
    height = 8 + len(bars) * ROW + 2
    return Scene(width=WIDTH, height=height, title=title, description=description, marks=tuple(marks))
