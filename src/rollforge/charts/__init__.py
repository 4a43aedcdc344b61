"""Charts as scenes: binned data in, a list of marks out, written as SVG.

A chart function takes numbers that are already binned and returns a `Scene`. The report writes scenes as inline SVG; the
viewer receives the same marks as JSON. Colours are CSS classes, so a page decides how light, dark and print look.
"""

from rollforge.charts.bars import Bar, bar_chart, column_chart
from rollforge.charts.dots import Interval, interval_chart
from rollforge.charts.heat import Cell, heat_map, sample_strip
from rollforge.charts.lines import MarkedStretch, Point, Series, line_chart
from rollforge.charts.scales import clock, clock_ticks, percent, rounded_up, short
from rollforge.charts.scene import Dot, Line, Mark, Path, Rect, Scene, TextMark
from rollforge.charts.svg import chart_style, to_data_uri, to_image, to_svg

__all__ = [
    "Bar",
    "Cell",
    "Dot",
    "Interval",
    "Line",
    "Mark",
    "MarkedStretch",
    "Path",
    "Point",
    "Rect",
    "Scene",
    "Series",
    "TextMark",
    "bar_chart",
    "chart_style",
    "clock",
    "clock_ticks",
    "column_chart",
    "heat_map",
    "interval_chart",
    "line_chart",
    "percent",
    "rounded_up",
    "sample_strip",
    "short",
    "to_data_uri",
    "to_image",
    "to_svg",
]
