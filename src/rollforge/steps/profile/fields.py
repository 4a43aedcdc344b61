"""This module computes `mean/x`, `max/x`, `min/x`, `median/x`, `std/x` for every field and every group at once.

Sample std. A group in which no field has a spread (one rollout) gets std 0 for the fields none of its rollouts misses; in any
other group a field with a single value has no std at all. These are NeMo Gym's rules, so that its readers see what they expect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rollforge import stats
from rollforge.index.grouped import ByTask, Floats, Ints
from rollforge.steps.profile.shelf import Shelf

Bools = NDArray[np.bool_]

STATISTICS = ("mean", "max", "min", "median", "std")


def group_statistics(
    rows: ByTask,
    names: Sequence[str],
    order: Ints | None,
    starts: Ints,
    look: Callable[[str, Floats], None] | None = None,
    shelf: Shelf | None = None,
) -> dict[str, Floats]:
    """One array per `statistic/field`, one value per group, NaN for what is undefined.

    Args:
        order: places of the rollouts (which come by task) sorted by group; None when tasks are the groups.
        starts: where each group begins.
        look: is shown every field's values, sorted by group, as they pass by.
        shelf: takes the arrays that are made, when there may be many groups.
    """
    sizes = np.diff(np.append(starts, len(rows)))
    columns: dict[str, Floats] = {}
    is_whole: dict[str, Bools] = {}
    has_spread = np.zeros(len(starts), dtype=np.bool_)
    for name, values in rows.floats(names):
        ordered = values if order is None else values[order]
        if look is not None:
            look(name, ordered)
        found = stats.summarize_groups(ordered, starts)
        is_whole[name] = found.n == sizes
        has_spread |= ~np.isnan(found.std)
        for statistic in STATISTICS:
            values = getattr(found, statistic)
            columns[f"{statistic}/{name}"] = values if shelf is None else shelf.put(values)
    for name in names:
        columns[f"std/{name}"][~has_spread & is_whole[name]] = 0.0
    return columns


def profile_fields(rows: ByTask) -> list[str]:
    """The number fields, and `_ng_attempt_index` under NeMo Gym's name when some rollout was retried (added by the caller)."""
    return rows.index.numbers
