"""Verdicts of other verifiers on disk, which do not count for the run."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from rollforge.index import codes, ints
from rollforge.statistics.stats import Floats
from rollforge.store.reading import UNREADABLE, bounded_lines

MOST = 8
"""Most verifiers that are read."""


class _Line(msgspec.Struct):
    """The fields of a verdict line that are needed here."""

    task: int = msgspec.field(name="_ng_task_index")
    rollout: int = msgspec.field(name="_ng_rollout_index")
    verifier: str
    reward: float | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Line).decode


def other_rewards(path: Path, table: pa.Table) -> dict[str, Floats]:
    """Verifier → its newest reward for each row of `table` (task, rollout, verifier), NaN for none.

    A verifier's verdicts are omitted for rows where they count. Invalid lines are skipped, because another tool may write a file
    of that name.
    """
    newest = _newest(path)
    if not newest:
        return {}
    tasks, rollouts = ints(table["task"]).tolist(), ints(table["rollout"]).tolist()
    code, names = codes(table["verifier"])
    rewards_by_verifier: dict[str, Floats] = {}
    for name, rewards in list(newest.items())[:MOST]:
        values = np.array([rewards.get(key, math.nan) for key in zip(tasks, rollouts, strict=True)])
        if name in names:
            values[code == names.index(name)] = math.nan
        if not np.isnan(values).all():
            rewards_by_verifier[name] = values
    return rewards_by_verifier


def _newest(path: Path) -> dict[str, dict[tuple[int, int], float]]:
    """Verifier → (task, rollout) → reward; a later line replaces an earlier one."""
    newest: dict[str, dict[tuple[int, int], float]] = {}
    if not path.is_file():
        return newest
    with path.open("rb") as file:
        for line in bounded_lines(file):
            try:
                verdict = _decode(line)
            except UNREADABLE:
                continue
            rewards = newest.setdefault(verdict.verifier, {})
            key = (verdict.task, verdict.rollout)
            if verdict.error is not None or verdict.reward is None or not math.isfinite(verdict.reward):
                rewards.pop(key, None)
            else:
                rewards[key] = verdict.reward
    return {name: rewards for name, rewards in newest.items() if rewards}
