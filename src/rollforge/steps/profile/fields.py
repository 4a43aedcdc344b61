"""This module computes `mean/x`, `max/x`, `min/x`, `median/x`, `std/x` for every field and every group at once.

Sample std. A group in which no field has a spread (one rollout) gets std 0 for the fields none of its rollouts misses; in any
other group a field with a single value has no std at all. These are NeMo Gym's rules, so that its readers see what they expect.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollforge import stats
from rollforge.index.grouped import ByTask, Floats, Ints
from rollforge.records import ATTEMPT_KEY

STATISTICS = ("mean", "max", "min", "median", "std")


def group_statistics(
    rows: ByTask, fields: Mapping[str, str], order: Ints | None, starts: Ints
) -> dict[str, Floats]:
    """One array per `statistic/field`, one value per group, NaN for what is undefined.

    Args:
        fields: column → name, as `profile_fields` gives them.
        order: places of the rollouts (which come by task) sorted by group; None when tasks are the groups.
        starts: where each group begins.
    """
    sizes = np.diff(np.append(starts, len(rows)))
    columns: dict[str, Floats] = {}
    counts: dict[str, Ints] = {}
    has_spread = np.zeros(len(starts), dtype=np.bool_)
    for column, values in rows.floats(list(fields)):
        name = fields[column]
        found = stats.summarize_groups(values if order is None else values[order], starts)
        counts[name] = found.n
        for statistic in STATISTICS:
            columns[f"{statistic}/{name}"] = getattr(found, statistic)
        has_spread |= ~np.isnan(found.std)
    for name in fields.values():
        is_zero = ~has_spread & (counts[name] == sizes)
        if is_zero.any():
            columns[f"std/{name}"] = np.where(is_zero, 0.0, columns[f"std/{name}"])
    return columns


def profile_fields(rows: ByTask) -> dict[str, str]:
    """The number columns, each with what the rows call it; `_ng_attempt_index` is among them when a rollout was retried."""
    names = rows.index.name_by_column
    fields = {"reward": "reward"} | {column: names[column] for column in rows.index.numbers}
    if not np.isnan(rows.one("attempt")).all():
        fields["attempt"] = ATTEMPT_KEY
    return fields
