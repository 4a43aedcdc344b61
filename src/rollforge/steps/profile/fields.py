"""`mean/x`, `max/x`, `min/x`, `median/x`, `std/x` of every field x, for every group at once.

NeMo Gym's rules for `std`, the sample standard deviation: in a group of one rollout, it is 0 for every field that is present. In
larger groups, a field with a single value has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from rollforge.index import ByTask
from rollforge.records import ATTEMPT_KEY
from rollforge.statistics import stats
from rollforge.statistics.stats import Floats, Ints
from rollforge.steps.profile.shelf import Shelf

Bools = NDArray[np.bool_]

STATISTICS = ("mean", "max", "min", "median", "std")


class GroupStatistics:
    """One array per `statistic/field`, one value per group, NaN for undefined."""

    def __init__(
        self,
        sizes: Ints,
        *,
        order: Ints | None = None,
        has_histograms: bool = False,
        shelf: Shelf | None = None,
    ) -> None:
        """Groups of these sizes, stored consecutively.

        Args:
            order: positions that sort the rollouts (ordered by task) by group; None if they are already sorted.
            has_histograms: also make a histogram per group and field.
            shelf: storage for the arrays, if there may be many groups.
        """
        self._sizes = sizes
        self._starts = np.cumsum(sizes) - sizes
        self._order, self._shelf, self._has_histograms = order, shelf, has_histograms
        self.histograms: dict[str, list[stats.Histogram]] = {}
        """The histograms of each field, one per group."""
        self._columns: dict[str, Floats] = {}
        self._is_whole: dict[str, Bools] = {}
        self._has_spread = np.zeros(len(sizes), dtype=np.bool_)

    @np.errstate(over="ignore", invalid="ignore")  # values near the largest float have no mean
    def add(self, name: str, values: Floats) -> None:
        """Add statistics of one more field; `values` are ordered by task."""
        if self._order is not None:
            values = values[self._order]
        groups = stats.summarize_groups(values, self._starts)
        self._is_whole[name] = groups.n == self._sizes
        self._has_spread |= ~np.isnan(groups.std)
        for statistic in STATISTICS:
            made: Floats = getattr(groups, statistic)
            self._columns[f"{statistic}/{name}"] = made if self._shelf is None else self._shelf.put(made)
        if self._has_histograms:
            self.histograms[name] = self._draw(values, groups)
        if self._shelf is not None:
            self._shelf.settle()

    def _draw(self, values: Floats, groups: stats.GroupSummaries) -> list[stats.Histogram]:
        parts = np.split(values, self._starts[1:]) if len(self._starts) else []
        return [
            stats.histogram_between(low, high, part)
            if math.isfinite(low) and math.isfinite(high)
            else stats.histogram(part)
            for low, high, part in zip(groups.min.tolist(), groups.max.tolist(), parts, strict=True)
        ]

    def finish(self) -> dict[str, Floats]:
        """All statistics."""
        for name, is_whole in self._is_whole.items():
            self._columns[f"std/{name}"][~self._has_spread & is_whole] = 0.0
            if self._shelf is not None:
                self._shelf.rest()
        return self._columns


def describe_fields(rows: ByTask, fields: Mapping[str, str], *kinds: GroupStatistics) -> None:
    """Add every field to each kind of groups, reading each column once.

    `fields` are columns and their names, as `profile_fields` returns them.
    """
    for column, values in rows.floats(list(fields)):
        for groups in kinds:
            groups.add(fields[column], values)


def profile_fields(rows: ByTask) -> dict[str, str]:
    """The number columns with their names in the rows; `_ng_attempt_index` is included if a rollout was retried."""
    names = rows.index.name_by_column
    fields = {"reward": "reward"} | {column: names[column] for column in rows.index.numbers}
    if not np.isnan(rows.one("attempt")).all():
        fields["attempt"] = ATTEMPT_KEY
    return fields
