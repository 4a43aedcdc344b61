"""Statistics that NeMo Gym's collector requests from a resources server at the end: per task, per repeat, and over all rollouts.

Names and rules are NeMo Gym's: `mean/reward`, `std` with n−1 and 0 for a single rollout, usage beside the verifier's numbers.
Only numbers of the verdict count, not those of the task row. A masked row, or a row that declares a failed judge, counts as
unrewarded, whatever number it contains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, NamedTuple, TypedDict, cast

import numpy as np

from rollforge.json_shapes import AgentRefJson, RowJson, Shape
from rollforge.records import FAILURE_KEY, ROLLOUT_KEY, TASK_KEY, finite_number
from rollforge.statistics import stats
from rollforge.statistics.intervals import t_quantile

VERDICT_FIELDS_KEY = "_rf_verdict_fields"
"""Key with the names of the verdict's fields in the row; our `/verify` writes it and their collector passes it on."""
MASK_KEY: Final = "mask_sample"
"""Key that, if true, marks a row's reward as no measurement."""

NumberRow = dict[str, float]


class RolloutInfoJson(TypedDict, total=False):
    """One rollout of a group, without its numbers."""

    rollout_id: str
    _ng_task_index: int
    _ng_rollout_index: int


class GroupSampleJson(TypedDict):
    """The repeated fields of a group's row."""

    agent_ref: AgentRefJson | None


class GroupJson(TypedDict, total=False):
    """Statistics of one task, without the numbers."""

    _ng_task_index: int
    sample: GroupSampleJson
    num_rollouts: int
    expected_num_rollouts: int
    missing_num_rollouts: int
    reward_profile_completion_pct: float
    rollout_infos: list[RolloutInfoJson]


class RepeatJson(TypedDict, total=False):
    """Statistics of one rollout index of an agent, without the numbers."""

    agent_ref: AgentRefJson
    _ng_rollout_index: int
    sample_count: int
    missing_count: int


class AggregateJson(TypedDict):
    """The answer to `/aggregate_metrics`."""

    group_level_metrics: list[GroupJson]
    agent_metrics: NumberRow
    key_metrics: NumberRow
    repeat_level_metrics: list[RepeatJson]


class _JudgedRow(NamedTuple):
    """The facts of one row that the statistics need."""

    task: int
    rollout: int
    agent_ref: AgentRefJson | None
    numbers: NumberRow

    @property
    def agent(self) -> str:
        return str(self.agent_ref.get("name") or "") if isinstance(self.agent_ref, dict) else ""


def aggregate(rows: list[RowJson]) -> AggregateJson:
    """Compute the answer to `/aggregate_metrics`."""
    judged = [_read(row) for row in rows if not row.get(FAILURE_KEY) and not row.get(MASK_KEY)]
    masked = len(rows) - len(judged)
    group_by_task: dict[int, list[_JudgedRow]] = {}
    for row in judged:
        group_by_task.setdefault(row.task, []).append(row)
    metrics = _statistics(judged)
    if masked:
        metrics["coverage/masked_rollouts"] = masked
    return {
        "group_level_metrics": [_group(task, group) for task, group in sorted(group_by_task.items())],
        "agent_metrics": metrics,
        "key_metrics": {name: value for name, value in metrics.items() if name.startswith("mean/")},
        "repeat_level_metrics": _repeats(judged),
    }


def _read(row: RowJson) -> _JudgedRow:
    return _JudgedRow(_index(row, TASK_KEY), _index(row, ROLLOUT_KEY), row.get("agent_ref"), _numbers(row))


def _group(task: int, rows: list[_JudgedRow]) -> GroupJson:
    rows = sorted(rows, key=lambda row: row.rollout)
    infos = [_info(task, row) for row in rows]
    named: GroupJson = {TASK_KEY: task}
    return {
        **_with_numbers(named, _statistics(rows)),
        "sample": {"agent_ref": rows[0].agent_ref},
        "num_rollouts": len(rows),
        "expected_num_rollouts": len(rows),
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": infos,
    }


def _info(task: int, row: _JudgedRow) -> RolloutInfoJson:
    named: RolloutInfoJson = {
        "rollout_id": f"{task}:{row.rollout}",
        TASK_KEY: task,
        ROLLOUT_KEY: row.rollout,
    }
    return _with_numbers(named, row.numbers)


def _with_numbers(fields: Shape, numbers: NumberRow) -> Shape:
    """The fields, extended by one per metric."""
    return cast("Shape", {**fields, **numbers})


def _repeats(rows: list[_JudgedRow]) -> list[RepeatJson]:
    """Statistics over all tasks for each rollout index of an agent, if there are at least two."""
    repeats: list[RepeatJson] = []
    by_agent: dict[str, list[_JudgedRow]] = {}
    for row in rows:
        by_agent.setdefault(row.agent, []).append(row)
    for agent, own in sorted(by_agent.items()):
        indices = sorted({row.rollout for row in own})
        tasks = len({row.task for row in own})
        for index in indices if len(indices) > 1 else []:
            repeat = [row for row in own if row.rollout == index]
            present = len({row.task for row in repeat})
            named: RepeatJson = {
                "agent_ref": {"name": agent},
                ROLLOUT_KEY: index,
                "sample_count": present,
                "missing_count": tasks - present,
            }
            repeats.append(_with_numbers(named, _statistics(repeat, is_repeat=True)))
    return repeats


def _index(row: RowJson, key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else 0


def _numbers(row: RowJson) -> NumberRow:
    """Numbers of verdict and usage. A row without a list of verdict fields counts with all its numbers."""
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    fields = row.get(VERDICT_FIELDS_KEY)
    names = set(fields) if isinstance(fields, list) else row.keys() - {MASK_KEY}
    own = [(key, value) for key, value in row.items() if key in names]
    return _finite([*own, *(usage.items() if isinstance(usage, dict) else ())])


def _finite(items: Iterable[tuple[str, object]]) -> NumberRow:
    return {
        key: number
        for key, value in items
        if not key.startswith("_") and (number := finite_number(value)) is not None
    }


def _statistics(rows: list[_JudgedRow], *, is_repeat: bool = False) -> NumberRow:
    statistics: NumberRow = {}
    for name in dict.fromkeys(name for row in rows for name in row.numbers):
        values = np.array([row.numbers[name] for row in rows if name in row.numbers])
        summary = stats.summarize(values)
        std = 0.0 if summary.n == 1 else summary.std
        labels = [
            ("mean", summary.mean),
            ("max", summary.max),
            ("min", summary.min),
            ("median", summary.median),
            ("std", std),
        ]
        if is_repeat and std is not None and summary.mean is not None:
            error = std / math.sqrt(summary.n)
            labels += [("sem", error), ("p25", float(np.quantile(values, 0.25)))]
            labels += [("p75", float(np.quantile(values, 0.75)))]
            if summary.n > 1:
                half = t_quantile(0.975, summary.n - 1) * error
                labels += [("ci_low_95", summary.mean - half), ("ci_high_95", summary.mean + half)]
        statistics |= {f"{label}/{name}": value for label, value in labels if value is not None}
    return statistics
