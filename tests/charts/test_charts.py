"""Charts: marks where the numbers say, round ticks, and text that cannot become markup."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from rollforge.charts import (
    Bar,
    Cell,
    Dot,
    Interval,
    Line,
    MarkedStretch,
    Path,
    Point,
    Rect,
    Scene,
    Series,
    TextMark,
    bar_chart,
    column_chart,
    heat_map,
    interval_chart,
    line_chart,
    sample_strip,
    to_svg,
)
from rollforge.charts.scales import Scale, clock, clock_ticks, levels_from_zero, short, ticks

WORDS = {"title": "t", "description": "d"}


def rects(scene: Scene, css: str) -> list[Rect]:
    return [mark for mark in scene.marks if isinstance(mark, Rect) and mark.css == css]


@given(st.floats(-1e6, 1e6), st.floats(1e-2, 1e9), st.integers(2, 8))
def test_ticks_lie_inside_and_are_evenly_spaced_round_numbers(low: float, span: float, most: int) -> None:
    high = low + span
    shown = ticks(low, high, most)
    assert len(shown) <= most + 1
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in shown)
    gaps = {round((b - a) / span, 6) for a, b in pairwise(shown)}
    assert len(gaps) <= 2  # one distance, up to rounding


@given(st.floats(1e-6, 1e12))
def test_an_axis_from_zero_ends_at_a_labelled_line_above_the_value(value: float) -> None:
    levels = levels_from_zero(value)
    assert levels[0] == 0
    assert levels[-1] >= value * (1 - 1e-9)
    assert levels[-2] < value


def test_ticks_are_written_as_people_write_them() -> None:
    assert [short(value) for value in (0, 0.25, 1200, 15_000, 2_500_000)] == [
        "0",
        "0.25",
        "1,200",
        "15k",
        "2.5M",
    ]
    assert [clock(value) for value in (0.5, 45, 300, 5400, 172_800)] == [
        "0.5 s",
        "45 s",
        "5 min",
        "1.5 h",
        "2 d",
    ]
    assert clock_ticks(100) == [0, 30, 60, 90]
    assert clock_ticks(0) == [0.0]


def test_columns_are_as_high_as_their_counts_and_missing_is_a_column_of_its_own() -> None:
    bars = [Bar(label="low", count=10), Bar(label="high", count=40)]
    missing = Bar(label="unjudged", count=20, css="unjudged")
    scene = column_chart([0, 0.5, 1], bars, missing=missing, x_title="reward", **WORDS)
    first, second = rects(scene, "fill-1")
    apart = rects(scene, "unjudged")[0]
    assert round(second.height / first.height, 2) == 4.0
    assert round(apart.height / first.height, 2) == 2.0
    assert apart.x > second.x + second.width, "unjudged rollouts are never drawn at a reward"


def test_an_empty_bin_has_no_mark_and_one_rollout_still_has_one() -> None:
    scene = column_chart([0, 1, 2], [Bar(label="a", count=0), Bar(label="b", count=1)], x_title="x", **WORDS)
    assert len(rects(scene, "fill-1")) == 1


def test_bars_carry_the_condition_that_selects_their_rollouts() -> None:
    scene = bar_chart([Bar(label="a", count=2, where="reward IS NULL")], **WORDS)
    assert rects(scene, "fill-1")[0].where == "reward IS NULL"


def test_a_line_breaks_where_there_is_no_measurement() -> None:
    points = [Point(0, 0.1), Point(1, 0.2), Point(2, None), Point(3, 0.4), Point(4, 0.5)]
    scene = line_chart([Series(name="s", points=points)], x_title="x", y_title="y", **WORDS)
    lines = [mark for mark in scene.marks if isinstance(mark, Path) and mark.css == "line-1"]
    assert len(lines) == 2
    assert len([mark for mark in scene.marks if isinstance(mark, Dot)]) == 4


def test_a_band_surrounds_its_line_and_stays_inside_the_axes() -> None:
    points = [Point(0, 0.5, [0.4, 0.6]), Point(1, 0.9, [0.8, 1.4])]
    scene = line_chart([Series(name="s", points=points)], x_title="x", y_title="y", y_range=(0, 1), **WORDS)
    band = next(mark for mark in scene.marks if isinstance(mark, Path) and mark.css == "band-1")
    heights = [float(y) for _, y in re.findall(r"([\d.]+),([\d.]+)", band.d)]
    grid = sorted(mark.y1 for mark in scene.marks if isinstance(mark, Line) and mark.css == "grid")
    assert min(heights) >= grid[0] - 0.1
    assert max(heights) <= grid[-1] + 0.1


def test_stretches_are_drawn_below_the_lines() -> None:
    scene = line_chart(
        [Series(name="s", points=[Point(0, 1.0), Point(10, 1.0)])],
        x_title="x", y_title="y", stretches=[MarkedStretch(2, 5, "stuck-rewards")], **WORDS,
    )  # fmt: skip
    assert isinstance(scene.marks[0], Rect)
    assert scene.marks[0].title == "stuck-rewards"


def test_a_strip_shows_unjudged_samples_as_such() -> None:
    scene = sample_strip([[0.0, None], [1.0, 1.0]], samples=2, legend={"shade-0": "0"}, **WORDS)
    shades = {mark.css: mark.d.count("M") for mark in scene.marks if isinstance(mark, Path)}
    assert shades == {"shade-0": 1, "shade-7": 2, "unjudged": 1}


def test_heat_map_cells_lie_between_their_edges() -> None:
    cell = Cell(column=1, row=0, count=3, shade=0.5)
    scene = heat_map([cell], [0, 10, 20], [0, 0.5, 1], x_title="x", y_title="y", **WORDS)
    drawn = rects(scene, "shade-4")[0]
    axis = next(mark for mark in scene.marks if isinstance(mark, Line) and mark.css == "axis")
    assert drawn.x >= (axis.x1 + axis.x2) / 2
    assert drawn.y + drawn.height <= axis.y1


def test_an_estimate_that_is_missing_is_said_in_words() -> None:
    scene = interval_chart(
        [Interval(label="a", value=None), Interval(label="b", value=0.5, low=0.4, high=0.6)], x_title="x", reference=0.0, **WORDS
    )  # fmt: skip
    assert "no estimate" in [mark.text for mark in scene.marks if isinstance(mark, TextMark)]
    assert len([mark for mark in scene.marks if isinstance(mark, Dot)]) == 1


def test_scales_of_no_width_put_everything_in_the_middle() -> None:
    assert Scale(3, 3, 0, 100)(3) == 50


@given(st.text(max_size=200))
def test_no_text_becomes_markup(text: str) -> None:
    scene = bar_chart([Bar(label=text, count=1, note=text)], title=text, description=text)
    root = ElementTree.fromstring(to_svg(scene, "x"))
    assert {element.tag for element in root.iter()} <= {"svg", "title", "desc", "rect", "text", "line"}


def test_the_same_scene_gives_the_same_bytes() -> None:
    scene = bar_chart([Bar(label="a", count=1 / 3)], **WORDS)  # type: ignore[arg-type]
    assert to_svg(scene, "x") == to_svg(scene, "x")


def tick_texts(scene: Scene) -> list[TextMark]:
    return [mark for mark in scene.marks if isinstance(mark, TextMark) and mark.css == "tick"]


def test_counts_have_whole_ticks() -> None:
    scene = line_chart(
        [Series(name="in flight", points=[Point(0, 0), Point(1, 1)])],
        x_title="x",
        y_title="y",
        is_count=True,
        **WORDS,
    )
    assert [mark.text for mark in tick_texts(scene) if mark.anchor == "end"] == ["0", "1"]
    assert levels_from_zero(3, is_count=True) == [0, 1, 2, 3]
    columns = column_chart([0, 1], [Bar(label="a", count=1)], x_title="x", **WORDS)
    assert [mark.text for mark in tick_texts(columns) if mark.anchor == "end"] == ["0", "1"]


def test_every_tick_and_its_label_lie_inside_the_picture() -> None:
    points = [Point(0.3, 1.0), Point(1.7, 2.0)]
    scene = line_chart(
        [Series(name="speed", points=points)], x_title="x", y_title="y", x_ticks=[0, 1, 2],
        write_x=lambda value: f"{value:g} milliseconds", **WORDS
    )  # fmt: skip
    axis = next(mark for mark in scene.marks if isinstance(mark, Line) and mark.css == "axis")
    downs = [
        mark.x1
        for mark in scene.marks
        if isinstance(mark, Line) and mark.css == "axis" and mark.x1 == mark.x2
    ]
    assert axis.x1 <= min(downs) and max(downs) <= axis.x2
    last = tick_texts(scene)[-1]
    assert last.text == "2 milliseconds" and last.anchor == "end" and last.x <= scene.width


def test_a_sample_that_is_not_there_is_a_mark_of_its_own() -> None:
    scene = sample_strip(
        [[1.0, 0.0], [None]], samples=2, legend={"unjudged": "unjudged", "absent": "no rollout"}, **WORDS
    )
    paths = {mark.css: mark.d.count("M") for mark in scene.marks if isinstance(mark, Path)}
    assert paths == {"absent": 1, "shade-0": 1, "shade-7": 1, "unjudged": 1}
    assert "no rollout" in [mark.text for mark in scene.marks if isinstance(mark, TextMark)]
