"""This module computes `mean/x`, `max/x`, `min/x`, `median/x`, `std/x` for every field and every group at once.

Sample std. A group in which no field has a spread (one rollout) gets std 0 for the fields none of its rollouts misses; in any
other group a field with a single value has no std at all. These are NeMo Gym's rules, so that its readers see what they expect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rollforge import stats
from rollforge.index.grouped import ByTask, Floats, Ints

STATISTICS = ("mean", "max", "min", "median", "std")


def group_statistics(
    rows: ByTask,
    names: Sequence[str],
    order: Ints | None,
    starts: Ints,
    look: Callable[[str, Floats], None] | None = None,
) -> dict[str, Floats]:
    """One array per `statistic/field`, one value per group, NaN for what is undefined.

    Args:
        order: places of the rollouts (which come by task) sorted by group; None when tasks are the groups.
        starts: where each group begins.
        look: is shown every field's values, sorted by group, as they pass by.
    """
    sizes = np.diff(np.append(starts, len(rows)))
    columns: dict[str, Floats] = {}
    counts: dict[str, Ints] = {}
    has_spread = np.zeros(len(starts), dtype=np.bool_)
    for name, values in rows.floats(names):
        ordered = values if order is None else values[order]
        if look is not None:
            look(name, ordered)
        found = stats.summarize_groups(ordered, starts)
        counts[name] = found.n
        for statistic in STATISTICS:
            columns[f"{statistic}/{name}"] = getattr(found, statistic)
        has_spread |= ~np.isnan(found.std)
    for name in names:
        is_zero = ~has_spread & (counts[name] == sizes)
        if is_zero.any():
            columns[f"std/{name}"] = np.where(is_zero, 0.0, columns[f"std/{name}"])
    return columns


def profile_fields(rows: ByTask) -> list[str]:
    """The number fields, and `_ng_attempt_index` under NeMo Gym's name when some rollout was retried (added by the caller)."""
    return rows.index.numbers
