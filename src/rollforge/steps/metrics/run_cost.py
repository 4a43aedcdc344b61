"""Cost of a run, from its rows and failures."""

from __future__ import annotations

import msgspec
import numpy as np

from rollforge.errors import DataError
from rollforge.index import ByTask, Index
from rollforge.statistics.stats import Floats, Ints
from rollforge.steps.metrics.metric_records import RunCost
from rollforge.store import read_manifest
from rollforge.store.costs import recounted


def run_cost(index: Index, rows: ByTask, reward: Floats) -> RunCost | None:
    """Cost of a run that was collected with a price; None for other files."""
    if len(index.runs) != 1:
        return None
    try:
        manifest = read_manifest(index.runs[0])
    except DataError:
        return None  # another tool's
    if manifest is None or manifest.cost is None:
        return None
    cost = recounted(index.runs[0], manifest.cost, manifest.config.get("price_per_hour"))
    usable = usable_groups(reward, rows.starts)
    total = cost.total if not (cost.unknown_rollouts or cost.unknown_judges) else None
    return RunCost(
        **msgspec.structs.asdict(cost),
        per_rollout=total / len(rows) if total is not None and len(rows) else None,
        per_usable_group=total / usable if total is not None and usable else None,
        usable_groups=usable,
    )


def usable_groups(reward: Floats, starts: Ints) -> int:
    """Number of tasks whose judged rollouts have different rewards."""
    if not len(reward):
        return 0
    low = np.minimum.reduceat(np.where(np.isnan(reward), np.inf, reward), starts)
    high = np.maximum.reduceat(np.where(np.isnan(reward), -np.inf, reward), starts)
    return int((high > low).sum())
