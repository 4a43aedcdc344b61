"""Heat maps: a grid of cells shaded by value, and the strip of tasks × samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from rollforge.charts.frame import TITLE_ROOM, WIDTH, frame, x_axis, y_axis
from rollforge.charts.scales import Format, Scale, short, ticks
from rollforge.charts.scene import Mark, Path, Rect, Scene, TextMark

SHADES = 8
"""Steps of the sequential scale, `shade-0` (least) to `shade-7` (most)."""

DOT = 1.6
"""Side of the dot for a sample that is not there."""


class Cell(Struct, frozen=True, kw_only=True):
    """One cell: its bin on both axes, how many rollouts it holds, and its shade from 0 to 1."""

    column: int
    row: int
    count: int
    shade: float
    title: str = ""
    where: str = ""


def shade_class(share: float) -> str:
    """The CSS class of a value between 0 and 1."""
    return f"shade-{min(SHADES - 1, max(0, int(share * SHADES)))}"


def heat_map(
    cells: Sequence[Cell],
    x_edges: Sequence[float],
    y_edges: Sequence[float],
    *,
    title: str,
    description: str,
    x_title: str,
    y_title: str,
    write_x: Format = short,
    write_y: Format = short,
    height: float = 230,
) -> Scene:
    """Cells over two numeric axes; a bin without rollouts is left blank."""
    levels = ticks(y_edges[0], y_edges[-1], 5)
    area = frame(height, [write_y(level) for level in levels])
    x = Scale(x_edges[0], x_edges[-1], area.left, area.right)
    y = Scale(y_edges[0], y_edges[-1], area.bottom, area.top)
    marks = y_axis(area, y, levels, write_y, y_title)
    for cell in cells:
        left, right = x(x_edges[cell.column]), x(x_edges[cell.column + 1])
        top, bottom = y(y_edges[cell.row + 1]), y(y_edges[cell.row])
        marks.append(
            Rect(
                x=left + 0.4,
                y=top + 0.4,
                width=right - left - 0.8,
                height=bottom - top - 0.8,
                css=shade_class(cell.shade),
                title=cell.title,
                where=cell.where,
            )
        )
    marks += x_axis(area, x, ticks(x_edges[0], x_edges[-1], 6), write_x, x_title)
    return Scene(width=WIDTH, height=height, title=title, description=description, marks=tuple(marks))


def sample_strip(
    tasks: Sequence[Sequence[float | None]],
    *,
    samples: int,
    title: str,
    description: str,
    legend: Mapping[str, str],
    tooltips: Sequence[str] = (),
    conditions: Sequence[str] = (),
) -> Scene:
    """One column per task, one cell per sample, shaded by reward between 0 and 1; None is an unjudged sample.

    Where a task has fewer samples than `samples`, a dot says that there is none.

    Cells of one shade are one path, so that a strip of thousands of cells stays small. `legend` maps CSS classes to words;
    `conditions` select the rollouts of each column.
    """
    left, top = 6.0, 8.0
    width = (WIDTH - 2 * left) / max(1, len(tasks))
    size = min(14.0, max(2.0, 150 / max(1, samples)))
    by_shade: dict[str, list[str]] = {}
    for column, rewards in enumerate(tasks):
        for row, reward in enumerate(rewards[:samples]):
            css = "unjudged" if reward is None else shade_class(reward)
            x, y = left + column * width, top + row * size
            gap = min(0.6, width / 6)
            by_shade.setdefault(css, []).append(
                f"M{x + gap / 2:.1f},{y:.1f}h{max(width - gap, 0.4):.1f}v{size - 0.6:.1f}h-{max(width - gap, 0.4):.1f}z"
            )
        for row in range(len(rewards), samples):
            x, y = left + (column + 0.5) * width - DOT / 2, top + (row + 0.5) * size - DOT / 2
            by_shade.setdefault("absent", []).append(f"M{x:.1f},{y:.1f}h{DOT}v{DOT}h-{DOT}z")
    marks: list[Mark] = [Path(d="".join(cells), css=css) for css, cells in sorted(by_shade.items())]
    bottom = top + samples * size
    for column, words in enumerate(tooltips):
        where = conditions[column] if conditions else ""
        marks.append(
            Rect(
                x=left + column * width,
                y=top,
                width=width,
                height=samples * size,
                css="hover",
                title=words,
                where=where,
            )
        )
    marks.append(TextMark(x=left, y=bottom + 16, text="hardest task", css="tick"))
    marks.append(TextMark(x=WIDTH - left, y=bottom + 16, text="easiest task", css="tick", anchor="end"))
    x = left
    for css, words in legend.items():
        side = DOT if css == "absent" else 11.0
        inset = (11 - side) / 2
        y = bottom + TITLE_ROOM + 12 + inset
        marks.append(Rect(x=x + inset, y=y, width=side, height=side, css=css))
        marks.append(TextMark(x=x + 16, y=bottom + TITLE_ROOM + 21, text=words, css="tick"))
        x += 16 + len(words) * 6.2 + 18
    return Scene(width=WIDTH, height=bottom + 46, title=title, description=description, marks=tuple(marks))
