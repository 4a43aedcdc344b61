"""A figure of a report: a chart, its caption with n, coverage and interval, and its numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from rollforge.charts import (
    Scene,
    percent,
    short,
)
from rollforge.statistics import intervals
from rollforge.statistics.counts import count_of
from rollforge.steps.report.inputs import MetricsFacts

LEFT_OUT = "…"
"""In place of words that a report without texts leaves out."""

MOST_LABEL = 200
"""Longest name in a table; fields, agents and tools may have any."""

MOST_SENTENCE = 500
"""Longest sentence of a finding, and longest setting of a run, such as its instructions."""

MOST_ROWS = 400
"""Most rows of a table without a natural limit."""

BANDS = {
    "never solved": ("band-0", "too hard, or a broken verifier"),
    "hard": ("band-1", "up to ¼ solved"),
    "mixed": ("band-2", "best for GRPO and DPO"),
    "easy": ("band-3", "¾ solved or more"),
    "always solved": ("band-4", "nothing left to learn"),
}


class Figure(Struct, frozen=True, kw_only=True):
    """A chart with its caption and table."""

    name: str
    heading: str
    scene: Scene
    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


def number(value: float | None, digits: int = 3) -> str:
    """Format a number for a table: 0.498 · 27.35 · 121.6 · 1,234; a dash for None."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size < 1e15 and value == int(value):
        return f"{int(value):,}"
    if size < 0.001 or size >= 1e15:
        return f"{value:.2g}"
    return f"{value:,.{max(0, digits - (0 if size < 10 else 1 if size < 100 else 2))}f}"


def between(ci: Sequence[float] | None) -> str:
    """Format an interval in words."""
    return f"{number(ci[0])} … {number(ci[1])}" if ci else "–"


def coverage(metrics: MetricsFacts) -> str:
    """Describe the rollouts behind a run's numbers."""
    counts = metrics.counts
    of = counts.expected or counts.finished + counts.failed
    share = percent(round(metrics.coverage, 4)) if metrics.coverage is not None else "unknown"
    return f"{counts.judged:,} judged of {count_of(of, 'rollout')}, coverage {share}, {count_of(counts.tasks, 'task')}"


def bin_label(edges: Sequence[float], number: int) -> str:
    """A bin of a histogram as an interval: `[0, 0.1)`; the last one includes its upper edge."""
    closing = "]" if number == len(edges) - 2 else ")"
    return f"[{short(edges[number])}, {short(edges[number + 1])}{closing}"


def bin_condition(column: str, edges: Sequence[float], number: int) -> str:
    """The SQL condition for rows in a bin of a histogram."""
    below = "<=" if number == len(edges) - 2 else "<"
    return f"{column} >= {edges[number]!r} AND {column} {below} {edges[number + 1]!r}"


def within(condition: str, stage: str | None) -> str:
    """The SQL condition, limited to the first stage of an adaptive run."""
    return f"({condition}) AND ({stage})" if stage else condition


def share_and_interval(part: int, whole: int) -> tuple[str, str]:
    """A share and its 95 % interval, in per cent."""
    if not whole:
        return "–", "–"
    low, high = intervals.wilson(part / whole, whole, intervals.normal_quantile(0.975))
    return percent(round(part / whole, 3)), f"{percent(round(low, 3))} … {percent(round(high, 3))}"


def cut(text: str, most: int = MOST_LABEL) -> str:
    """A name or value of any length, cut off with a count of what is left out."""
    return text if len(text) <= most else f"{text[:most]}{LEFT_OUT} ({len(text) - most:,} more characters)"


def is_unset(value: object) -> bool:
    """Whether a setting has no value to show; 0 is one."""
    return value is None or value is False or value in ("", [], {})


def title_of(path: str) -> str:
    """A path as a heading: as typed, but the folder's own name for `.` and `..`."""
    return path if Path(path).name not in ("", "..") else Path(path).resolve().name


def slug(text: str) -> str:
    """The text as a part of an HTML id."""
    return "".join(letter if letter.isalnum() else "-" for letter in text)
