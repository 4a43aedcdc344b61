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


def group_statistics(
    rows: ByTask,
    fields: Mapping[str, str],
    order: Ints | None,
    starts: Ints,
    look: Callable[[str, Floats], None] | None = None,
    shelf: Shelf | None = None,
) -> dict[str, Floats]:
    """One array per `statistic/field`, one value per group, NaN for what is undefined.

    Args:
        fields: column → name, as `profile_fields` gives them.
        order: places of the rollouts (which come by task) sorted by group; None when tasks are the groups.
        starts: where each group begins.
        look: is shown every field's values, sorted by group, as they pass by.
        shelf: takes the arrays that are made, when there may be many groups.
    """
    sizes = np.diff(np.append(starts, len(rows)))
    columns: dict[str, Floats] = {}
    is_whole: dict[str, Bools] = {}
    has_spread = np.zeros(len(starts), dtype=np.bool_)
    for column, values in rows.floats(list(fields)):
        name = fields[column]
        ordered = values if order is None else values[order]
        if look is not None:
            look(name, ordered)
        found = stats.summarize_groups(ordered, starts)
        is_whole[name] = found.n == sizes
        has_spread |= ~np.isnan(found.std)
        for statistic in STATISTICS:
            values = getattr(found, statistic)
            columns[f"{statistic}/{name}"] = values if shelf is None else shelf.put(values)
        if shelf is not None:
            shelf.settle()
    for name in fields.values():
        columns[f"std/{name}"][~has_spread & is_whole[name]] = 0.0
        if shelf is not None:
            shelf.rest()
    return columns


def profile_fields(rows: ByTask) -> dict[str, str]:
    """The number columns, each with what the rows call it; `_ng_attempt_index` is among them when a rollout was retried."""
    names = rows.index.name_by_column
    fields = {"reward": "reward"} | {column: names[column] for column in rows.index.numbers}
    if not np.isnan(rows.one("attempt")).all():
        fields["attempt"] = ATTEMPT_KEY
    return fields
