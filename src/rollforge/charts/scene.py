"""The marks a chart is made of.

A mark carries geometry, a CSS class, a tooltip and, where it stands for rollouts, the `--where` condition that selects them.
Marks hold no colours and no fonts.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Rect(Struct, frozen=True, kw_only=True, tag="rect"):
    """A rectangle: a bar, a cell, a marked stretch."""

    x: float
    y: float
    width: float
    height: float
    css: str = ""
    title: str = ""
    where: str = ""
    """The condition over `rollouts` that selects what the mark counts; empty when it stands for no rollouts."""


class Line(Struct, frozen=True, kw_only=True, tag="line"):
    """A straight line: an axis, a grid line, an interval."""

    x1: float
    y1: float
    x2: float
    y2: float
    css: str = ""
    title: str = ""


class Path(Struct, frozen=True, kw_only=True, tag="path"):
    """A path in SVG's own notation: a curve, a band, many cells of one shade."""

    d: str
    css: str = ""
    title: str = ""


class Dot(Struct, frozen=True, kw_only=True, tag="dot"):
    """A filled circle."""

    x: float
    y: float
    radius: float = 3
    css: str = ""
    title: str = ""
    where: str = ""


class TextMark(Struct, frozen=True, kw_only=True, tag="label"):
    """A short text; `y` is its baseline."""

    x: float
    y: float
    text: str
    css: str = ""
    anchor: Literal["start", "middle", "end"] = "start"


Mark = Rect | Line | Path | Dot | TextMark


class Scene(Struct, frozen=True, kw_only=True):
    """One chart: its size in user units, its text alternative, and its marks in drawing order."""

    width: float
    height: float
    title: str
    description: str
    """What the chart shows, in one or two sentences with its main numbers, for readers who cannot see it."""
    marks: tuple[Mark, ...]
