"""This module computes `mean/x`, `max/x`, `min/x`, `median/x`, `std/x` for every field and every group at once.

Sample std. A group in which no field has a spread (one rollout) gets std 0 for the fields none of its rollouts misses; in any
other group a field with a single value has no std at all. These are NeMo Gym's rules, so that its readers see what they expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from rollforge import stats
from rollforge.index.grouped import ByTask, Floats, Ints
from rollforge.records import ATTEMPT_KEY
from rollforge.steps.profile.shelf import Shelf

Bools = NDArray[np.bool_]

STATISTICS = ("mean", "max", "min", "median", "std")


class GroupStatistics:
    """One array per `statistic/field`, one value per group, NaN for what is undefined."""

    def __init__(
        self,
        sizes: Ints,
        *,
        order: Ints | None = None,
        look: Callable[[str, Floats], None] | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """Groups of these sizes, one after another.

        Args:
            order: places of the rollouts (which come by task) sorted by group; None when they are.
            look: is shown every field's values, sorted by group, as they pass by.
            shelf: takes the arrays that are made, when there may be many groups.
        """
        self._sizes = sizes
        self._starts = np.cumsum(sizes) - sizes
        self._order, self._look, self._shelf = order, look, shelf
        self._columns: dict[str, Floats] = {}
        self._is_whole: dict[str, Bools] = {}
        self._has_spread = np.zeros(len(sizes), dtype=np.bool_)

    def add(self, name: str, values: Floats) -> None:
        """The statistics of one more field."""
        if self._order is not None:
            values = values[self._order]
        if self._look is not None:
            self._look(name, values)
        found = stats.summarize_groups(values, self._starts)
        self._is_whole[name] = found.n == self._sizes
        self._has_spread |= ~np.isnan(found.std)
        for statistic in STATISTICS:
            made: Floats = getattr(found, statistic)
            self._columns[f"{statistic}/{name}"] = made if self._shelf is None else self._shelf.put(made)
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
    for column, values in rows.floats(list(fields)):
        for groups in kinds:
            groups.add(fields[column], values)


def profile_fields(rows: ByTask) -> dict[str, str]:
    """The number columns, each with what the rows call it; `_ng_attempt_index` is among them when a rollout was retried."""
    names = rows.index.name_by_column
    fields = {"reward": "reward"} | {column: names[column] for column in rows.index.numbers}
    if not np.isnan(rows.one("attempt")).all():
        fields["attempt"] = ATTEMPT_KEY
    return fields
