"""This module computes `mean/x`, `max/x`, `min/x`, `median/x`, `std/x` for every field and every group at once.

Sample std. A group in which no field has a spread (one rollout) gets std 0 for the fields none of its rollouts misses; in any
other group a field with a single value has no std at all. These are NeMo Gym's rules, so that its readers see what they expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollforge import stats
from rollforge.index.ahead import mapped
from rollforge.index.grouped import ByTask, Floats, Ints
from rollforge.records import ATTEMPT_KEY
from rollforge.steps.profile.shelf import Shelf

Bools = NDArray[np.bool_]

WORTH_A_THREAD = 300_000
"""Rollouts; of fewer, a column is done before a thread has handed over the interpreter to another."""

MOST_THREADS = 2
"""Each needs several times the memory of a column."""

STATISTICS = ("mean", "max", "min", "median", "std")


class Described(NamedTuple):
    """What one field is like in every group."""

    groups: stats.GroupSummaries
    drawn: list[stats.Histogram] | None


class GroupStatistics:
    """One array per `statistic/field`, one value per group, NaN for what is undefined."""

    def __init__(
        self,
        sizes: Ints,
        *,
        order: Ints | None = None,
        draw: Callable[[Floats, stats.GroupSummaries], list[stats.Histogram]] | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """Groups of these sizes, one after another.

        Args:
            order: places of the rollouts (which come by task) sorted by group; None when they are.
            draw: makes a histogram per group of a field's values, which are sorted by group, and of what is known of them.
            shelf: takes the arrays that are made, when there may be many groups.
        """
        self._sizes = sizes
        self._starts = np.cumsum(sizes) - sizes
        self._order, self._draw, self._shelf = order, draw, shelf
        self.drawn: dict[str, list[stats.Histogram]] = {}
        """The histograms of each field."""
        self._columns: dict[str, Floats] = {}
        self._is_whole: dict[str, Bools] = {}
        self._has_spread = np.zeros(len(sizes), dtype=np.bool_)

    @np.errstate(over="ignore", invalid="ignore")  # values near the greatest number have no mean
    def describe(self, values: Floats) -> Described:
        """The statistics of one more field; several threads may ask at once."""
        if self._order is not None:
            values = values[self._order]
        groups = stats.summarize_groups(values, self._starts)
        return Described(groups, None if self._draw is None else self._draw(values, groups))

    def add(self, name: str, found: Described) -> None:
        """Take in what was described."""
        groups = found.groups
        self._is_whole[name] = groups.n == self._sizes
        self._has_spread |= ~np.isnan(groups.std)
        for statistic in STATISTICS:
            made: Floats = getattr(groups, statistic)
            self._columns[f"{statistic}/{name}"] = made if self._shelf is None else self._shelf.put(made)
        if found.drawn is not None:
            self.drawn[name] = found.drawn
        if self._shelf is not None:
            self._shelf.settle()

    def finish(self) -> dict[str, Floats]:
        """All of them."""
        for name, is_whole in self._is_whole.items():
            self._columns[f"std/{name}"][~self._has_spread & is_whole] = 0.0
            if self._shelf is not None:
                self._shelf.rest()
        return self._columns


def describe_fields(rows: ByTask, fields: Mapping[str, str], *kinds: GroupStatistics) -> None:
    """Add every field to each kind of groups; columns are read once, however many kinds there are.

    `fields` are columns and their names, as `profile_fields` gives them.
    """

    def described(column: tuple[str, Floats]) -> tuple[str, list[Described]]:
        name, values = column
        return fields[name], [groups.describe(values) for groups in kinds]

    threads = min(rows.index.readers, MOST_THREADS) if len(rows) >= WORTH_A_THREAD else 1
    for name, found in mapped(described, rows.floats(list(fields)), threads):
        for groups, one in zip(kinds, found, strict=True):
            groups.add(name, one)


def profile_fields(rows: ByTask) -> dict[str, str]:
    """The number columns, each with what the rows call it; `_ng_attempt_index` is among them when a rollout was retried."""
    names = rows.index.name_by_column
    fields = {"reward": "reward"} | {column: names[column] for column in rows.index.numbers}
    if not np.isnan(rows.one("attempt")).all():
        fields["attempt"] = ATTEMPT_KEY
    return fields
