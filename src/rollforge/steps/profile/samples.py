"""Additional contents of a task's profile line: the task as sent, and its reward histogram."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import numpy as np
from msgspec import Raw

from rollforge.index import ByTask, Index
from rollforge.records import ROLLOUT_KEY, TASK_KEY
from rollforge.statistics import stats
from rollforge.statistics.stats import Ints
from rollforge.store import UNREADABLE

_split = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


class TaskHistogram(msgspec.Struct):
    """The histogram of one task's rewards."""

    edges: Raw
    """Bin edges, encoded once for all tasks."""
    counts: list[int]


class TaskHistograms:
    """Reward histogram of each task, with common edges."""

    def __init__(self, rows: ByTask) -> None:
        reward = rows.one("reward")
        edges = stats.histogram(reward).edges
        self._edges = Raw(_encode(edges))
        self._tasks = rows.tasks
        bins = max(len(edges) - 1, 1)
        self._counts = np.zeros((len(rows.tasks), bins), dtype=np.min_scalar_type(rows.sizes.max(initial=0)))
        has_reward = ~np.isnan(reward)
        if edges and has_reward.any():
            bin_of_row = np.clip(np.searchsorted(edges, reward, side="right") - 1, 0, bins - 1)
            for number in range(bins):
                is_here = has_reward & (bin_of_row == number)
                self._counts[:, number] = np.add.reduceat(is_here, rows.starts, dtype=self._counts.dtype)

    def get(self, tasks: Ints) -> list[TaskHistogram | None]:
        """Histograms of some tasks; None for a task without judged rollouts."""
        if not len(self._tasks):
            return [None] * len(tasks)
        position = np.minimum(np.searchsorted(self._tasks, tasks), len(self._tasks) - 1)
        counts = self._counts[position]
        is_judged = (self._tasks[position] == tasks) & counts.any(axis=1)
        return [
            TaskHistogram(self._edges, each) if judged else None
            for each, judged in zip(counts.tolist(), is_judged.tolist(), strict=True)
        ]


class TaskSamples:
    """Each task's row as sent, without indices; from its first rollout if no tasks file contains it."""

    def __init__(self, index: Index, where: str | None = None) -> None:
        self._index = index
        self._where = where

    def get(self, tasks: Ints) -> list[Raw | None]:
        """Rows of some tasks."""
        wanted: list[int] = tasks.tolist()
        line_by_task = {task: _without_indices(line) for task, line in self._index.raw_task_rows(wanted)}
        line_by_task |= self._from_rollouts([task for task in wanted if task not in line_by_task])
        return [line_by_task.get(task) for task in wanted]

    def _from_rollouts(self, tasks: list[int]) -> dict[int, Raw]:
        """Prompt and agent of each task's first rollout, the only task fields of rollout rows."""
        if not tasks:
            return {}
        first = self._index.first_rows(tasks, self._where)
        lines = self._index.read(first.column("row").to_pylist())
        samples = {}
        for task, line in zip(first.column("task").to_pylist(), lines, strict=True):
            with suppress(*UNREADABLE):
                samples[task] = Raw(_encode(_decode_sample(line)))
        return samples


def _without_indices(line: bytes) -> Raw:
    try:
        row = _split(line)
    except UNREADABLE:
        return _odd_without_indices(line)
    row.pop(TASK_KEY, None)
    row.pop(ROLLOUT_KEY, None)
    return Raw(_encode(row))


def _odd_without_indices(line: bytes) -> Raw:
    """A row with NaN (which becomes null) or half a surrogate pair (which stays escaped), without indices."""
    row = json.loads(line, parse_constant=lambda _: None)
    fields = {key: value for key, value in row.items() if key not in (TASK_KEY, ROLLOUT_KEY)}
    return Raw(json.dumps(fields).encode())


class _Sample(msgspec.Struct, omit_defaults=True):
    """The task fields of a rollout row, not decoded."""

    responses_create_params: Raw | msgspec.UnsetType = msgspec.UNSET
    messages: Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: Raw | msgspec.UnsetType = msgspec.UNSET
    agent_ref: Raw | msgspec.UnsetType = msgspec.UNSET


_decode_sample = msgspec.json.Decoder(_Sample).decode
