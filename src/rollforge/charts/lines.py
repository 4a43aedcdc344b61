"""Line charts: one or more series with interval bands, direct labels, and marked stretches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from rollforge.charts.frame import WIDTH, Frame, frame, x_axis, y_axis
from rollforge.charts.scales import Format, Scale, levels_from_zero, short, ticks, widest
from rollforge.charts.scene import Dot, Mark, Path, Rect, Scene, TextMark

LABEL_GAP = 13.0
"""Least distance between the direct labels of two lines."""


class Point(Struct, frozen=True):
    """A value at x, with its interval; `y` is None where there is no measurement, and the line breaks there."""

    x: float
    y: float | None
    ci: Sequence[float] | None = None
    title: str = ""
    where: str = ""
    """The condition over `rollouts` that selects what the point is about."""


class Series(Struct, frozen=True, kw_only=True):
    """One line."""

    name: str
    points: Sequence[Point]
    css: str = "1"
    """Number of its colour in the page's palette."""
    has_dots: bool = True


class MarkedStretch(Struct, frozen=True):
    """A part of the x axis that a finding refers to."""

    start: float
    end: float
    title: str


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    description: str,
    x_title: str,
    y_title: str,
    x_ticks: Sequence[float] | None = None,
    write_x: Format = short,
    write_y: Format = short,
    y_range: tuple[float, float] | None = None,
    is_count: bool = False,
    stretches: Sequence[MarkedStretch] = (),
    height: float = 230,
) -> Scene:
    """Lines over a shared x axis that holds all of its ticks; y starts at 0 unless `y_range` says otherwise.

    With `is_count`, y counts things: its ticks are whole numbers.
    """
    xs = [*(point.x for one in series for point in one.points), *(x_ticks or ())]
    levels = ticks(*y_range, 5) if y_range else levels_from_zero(_highest(series), is_count=is_count)
    low, high = y_range or (levels[0], levels[-1])
    named = [one.name for one in series] if len(series) > 1 else []
    area = frame(height, [write_y(level) for level in levels], right=14 + (widest(named) + 8 if named else 0))
    x = Scale(min(xs, default=0), max(xs, default=1), area.left, area.right)
    y = Scale(low, high, area.bottom, area.top)
    marks: list[Mark] = [_stretch(one, x, area) for one in stretches]
    marks += y_axis(area, y, levels, write_y, y_title)
    for one in series:
        marks += _band(one, x, y)
    for one in series:
        marks += _line(one, x, y)
    for one in series:
        marks += _columns(one, x, area)
    marks += x_axis(area, x, x_ticks if x_ticks is not None else ticks(x.low, x.high), write_x, x_title)
    if named:
        marks += _names(series, x, y)
    return Scene(width=WIDTH, height=height, title=title, description=description, marks=tuple(marks))


def _highest(series: Sequence[Series]) -> float:
    tops = [point.ci[1] if point.ci else point.y for one in series for point in one.points]
    return max((top for top in tops if top is not None), default=1.0)


def _stretch(stretch: MarkedStretch, x: Scale, area: Frame) -> Rect:
    start, end = max(x(stretch.start), area.left), min(x(stretch.end), area.right)
    return Rect(
        x=start,
        y=area.top,
        width=max(end - start, 2),
        height=area.bottom - area.top,
        css="stretch",
        title=stretch.title,
    )


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """The points, split at gaps."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if point.y is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _band(series: Series, x: Scale, y: Scale) -> list[Mark]:
    """The interval around the line; clipped to the axis."""
    marks: list[Mark] = []
    for run in _runs(series.points):
        intervals = [(x(point.x), point.ci[0], point.ci[1]) for point in run if point.ci]
        if len(intervals) < 2:
            continue
        upper = [f"{at:.1f},{y(_clip(high, y)):.1f}" for at, _, high in intervals]
        lower = [f"{at:.1f},{y(_clip(low, y)):.1f}" for at, low, _ in reversed(intervals)]
        marks.append(Path(d=f"M{' L'.join(upper + lower)} Z", css=f"band-{series.css}"))
    return marks


def _clip(value: float | None, scale: Scale) -> float:
    return min(max(value or 0.0, scale.low), scale.high)


def _line(series: Series, x: Scale, y: Scale) -> list[Mark]:
    marks: list[Mark] = []
    for run in _runs(series.points):
        points = [f"{x(point.x):.1f},{y(_clip(point.y, y)):.1f}" for point in run]
        if len(points) > 1:
            marks.append(Path(d=f"M{' L'.join(points)}", css=f"line-{series.css}"))
        if series.has_dots or len(points) == 1:
            marks += [
                Dot(
                    x=x(point.x),
                    y=y(_clip(point.y, y)),
                    css=f"fill-{series.css}",
                    title=point.title,
                    where=point.where,
                )
                for point in run
            ]
    return marks


def _columns(series: Series, x: Scale, area: Frame) -> list[Mark]:
    """Hover areas of a line without dots: a transparent column per point, with the point's tooltip and condition."""
    if series.has_dots or not any(point.where for point in series.points):
        return []
    xs = [x(point.x) for point in series.points]
    edges = [area.left, *((one + two) / 2 for one, two in pairwise(xs)), area.right]
    return [
        Rect(
            x=left,
            y=area.top,
            width=max(right - left, 0.5),
            height=area.bottom - area.top,
            css="hover",
            title=point.title,
            where=point.where,
        )
        for point, (left, right) in zip(series.points, pairwise(edges), strict=True)
        if point.where
    ]


def _names(series: Sequence[Series], x: Scale, y: Scale) -> list[Mark]:
    """Each line's name at its end, moved apart where two ends are close."""
    ends, marks = [], []
    for one in series:
        last = next((point for point in reversed(one.points) if point.y is not None), None)
        if last is None:
            continue
        if x(last.x) < x.end - 30:  # the line ends inside the chart: the name goes below its last point
            mark = TextMark(x=x(last.x) + 6, y=y(_clip(last.y, y)) + 14, text=one.name, css=f"name-{one.css}")
            marks.append(mark)
        else:
            ends.append((y(_clip(last.y, y)) + 4, one))
    lowest = -LABEL_GAP
    for wanted, one in sorted(ends, key=lambda end: end[0]):
        lowest = max(wanted, lowest + LABEL_GAP)
        marks.append(TextMark(x=x.end + 8, y=lowest, text=one.name, css=f"name-{one.css}"))
    return [*marks]
