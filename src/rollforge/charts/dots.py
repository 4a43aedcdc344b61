"""Interval charts: one estimate a line, as a dot with its interval, against a reference line."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rollforge.charts.frame import RIGHT, WIDTH, Frame, x_axis
from rollforge.charts.scales import Format, Scale, short, ticks, widest
from rollforge.charts.scene import Dot, Line, Mark, Scene, TextMark

ROW = 26.0


class Interval(Struct, frozen=True, kw_only=True):
    """One estimate with its interval; `value` is None if it could not be estimated."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    css: str = "1"
    words: str = ""
    """The numbers as text, to the right of the interval."""


def interval_chart(
    items: Sequence[Interval],
    *,
    title: str,
    description: str,
    x_title: str,
    reference: float | None = None,
    write: Format = short,
    x_range: tuple[float, float] | None = None,
) -> Scene:
    """Dots with whiskers on one axis, labels on the left, numbers on the right."""
    axis_values = [one for item in items for one in (item.value, item.low, item.high) if one is not None]
    axis_values += [] if reference is None else [reference]
    low, high = x_range or (min(axis_values, default=0.0), max(axis_values, default=1.0))
    if not x_range:
        pad = (high - low) * 0.06 or 0.5
        low, high = low - pad, high + pad
    height = 10 + len(items) * ROW + 42
    area = Frame(
        widest([item.label for item in items]) + 14,
        WIDTH - RIGHT - widest([item.words for item in items]) - 6,
        10,
        height - 40,
    )
    x = Scale(low, high, area.left, area.right)
    marks: list[Mark] = []
    if reference is not None:
        at = x(reference)
        marks.append(Line(x1=at, y1=area.top - 4, x2=at, y2=area.bottom, css="reference"))
    for row, item in enumerate(items):
        y = area.top + (row + 0.5) * ROW
        marks.append(TextMark(x=area.left - 10, y=y + 4, text=item.label, css="tick", anchor="end"))
        if item.value is None:
            marks.append(TextMark(x=area.left, y=y + 4, text="no estimate", css="tick"))
            continue
        if item.low is not None and item.high is not None:
            marks.append(Line(x1=x(item.low), y1=y, x2=x(item.high), y2=y, css=f"whisker-{item.css}"))
        marks.append(Dot(x=x(item.value), y=y, radius=4, css=f"fill-{item.css}", title=item.words))
        marks.append(TextMark(x=area.right + 8, y=y + 4, text=item.words, css="value"))
    marks += x_axis(area, x, ticks(low, high, 6), write, x_title)
    return Scene(width=WIDTH, height=height, title=title, description=description, marks=tuple(marks))
