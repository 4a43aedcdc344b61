"""The frame that charts share: margins, axes with ticks, grid lines, axis titles."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rollforge.charts.scales import Format, Scale, widest
from rollforge.charts.scene import Line, Mark, TextMark

WIDTH = 560.0
"""Width of a chart in user units; the page scales it."""

TICK_GAP = 6.0
TITLE_ROOM = 18.0
TOP = 12.0
RIGHT = 14.0


class Frame(Struct, frozen=True):
    """The plotting area of a chart."""

    left: float
    right: float
    top: float
    bottom: float


def frame(
    height: float,
    y_labels: Sequence[str],
    *,
    width: float = WIDTH,
    right: float = RIGHT,
    has_x_title: bool = True,
) -> Frame:
    """The plotting area that leaves room for the labels on the left and the ticks below."""
    return Frame(
        left=round(widest(y_labels) + 2 * TICK_GAP, 1),
        right=width - right,
        top=TOP + TITLE_ROOM,
        bottom=height - 20 - (TITLE_ROOM if has_x_title else 0),
    )


def x_axis(area: Frame, scale: Scale, values: Sequence[float], write: Format, title: str = "") -> list[Mark]:
    """The horizontal axis: a base line, ticks, labels, and its title below."""
    marks: list[Mark] = [Line(x1=area.left, y1=area.bottom, x2=area.right, y2=area.bottom, css="axis")]
    for value in values:
        x = scale(value)
        marks.append(Line(x1=x, y1=area.bottom, x2=x, y2=area.bottom + 4, css="axis"))
        marks.append(_tick_label(x, area, write(value)))
    if title:
        middle = (area.left + area.right) / 2
        marks.append(TextMark(x=middle, y=area.bottom + 33, text=title, css="axis-title", anchor="middle"))
    return marks


def _tick_label(x: float, area: Frame, text: str) -> TextMark:
    """Centred below its tick; at the right edge it ends where the picture does."""
    edge = area.right + RIGHT
    if x + widest([text]) / 2 > edge:
        return TextMark(x=edge, y=area.bottom + 16, text=text, css="tick", anchor="end")
    return TextMark(x=x, y=area.bottom + 16, text=text, css="tick", anchor="middle")


def y_axis(area: Frame, scale: Scale, values: Sequence[float], write: Format, title: str = "") -> list[Mark]:
    """The vertical axis: grid lines, labels, and its title in horizontal text above the area."""
    marks: list[Mark] = []
    for value in values:
        y = scale(value)
        marks.append(Line(x1=area.left, y1=y, x2=area.right, y2=y, css="grid"))
        marks.append(TextMark(x=area.left - TICK_GAP, y=y + 4, text=write(value), css="tick", anchor="end"))
    if title:
        marks.append(TextMark(x=0, y=TOP + 2, text=title, css="axis-title"))
    return marks
