"""Groups of a run as a few small arrays: rows of each task, difficulty, and consistency of verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from rollforge.index import ByTask, Index, ints, is_known

Ints = NDArray[np.int32]


class TaskGroups(Struct, frozen=True, kw_only=True):
    """Arrays with one entry per task, ascending by task number."""

    task: NDArray[np.int64]
    mean: NDArray[np.float64]
    """Mean of the known rewards; NaN if none is judged."""
    contradictions: Ints
    """Number of the task's answers with different rewards."""
    rows: Ints
    """Rows of all tasks, task after task, each ordered by sample."""
    twins: Ints
    """Rows of judged samples whose answer got a different reward elsewhere in the task, ascending."""
    starts: Ints
    """Start of each task in `rows`, with one additional final entry."""

    def __len__(self) -> int:
        return len(self.task)

    def rows_of(self, chosen: NDArray[Any]) -> Ints:
        """Rows of tasks given by position."""
        parts = [self.rows[self.starts[position] : self.starts[position + 1]] for position in chosen.tolist()]
        return np.concatenate(parts) if parts else self.rows[:0]

    def rows_of_task(self, task: int) -> Ints:
        """Rows of a task given by number."""
        position = int(np.searchsorted(self.task, task))
        is_there = position < len(self.task) and int(self.task[position]) == task
        return self.rows_of(np.array([position])) if is_there else self.rows[:0]

    def sorted_by(self, name: str) -> NDArray[np.int64]:
        """Positions of the tasks in one of the page's orders; unjudged tasks last, ties by task number."""
        judged_means = self.mean[~np.isnan(self.mean)]
        middle = (judged_means.min() + judged_means.max()) / 2 if len(judged_means) else 0.0
        keys: dict[str, NDArray[Any]] = {
            "hardest": self.mean,
            "easiest": -self.mean,
            "mixed": np.abs(self.mean - middle),
            "contradictions": -self.contradictions,
        }
        return np.argsort(keys[name], kind="stable") if name in keys else np.arange(len(self))


def read_groups(index: Index) -> TaskGroups:
    """Compute the groups of a run; large columns are released as soon as possible."""
    rows = ints(index.table(["row"]).column(0)).astype(np.int32)
    by_task = ByTask(index)
    pa.default_memory_pool().release_unused()
    rows = rows[by_task.order]
    reward = by_task.one("reward")
    sums, judged = by_task.sums(reward)
    with np.errstate(invalid="ignore"):
        mean = sums / np.where(judged > 0, judged, np.nan)
    tasks, starts, sizes = by_task.tasks, by_task.starts, by_task.sizes
    order = by_task.order.astype(np.int32)
    del by_task
    hashes = index.table(["answer_hash"]).column(0)
    reward = np.where(is_known(hashes)[order], reward, np.nan)  # no answer is not one answer
    answer = ints(hashes)[order]
    del order, hashes
    pa.default_memory_pool().release_unused()
    contradictions, is_twin = _contradictions(answer, reward, sizes)
    pa.default_memory_pool().release_unused()
    return TaskGroups(
        task=tasks,
        mean=mean,
        contradictions=contradictions,
        rows=rows,
        twins=np.sort(rows[is_twin]),
        starts=np.append(starts, len(rows)).astype(np.int32),
    )


def _contradictions(
    answer: NDArray[np.int64], reward: NDArray[np.float64], sizes: NDArray[Any]
) -> tuple[Ints, NDArray[np.int32]]:
    """Per task, the number of answers with different rewards; and the positions of samples with such answers."""
    if not len(answer):
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32)
    task_number = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    order = np.lexsort((answer, task_number)).astype(np.int32)
    answer = answer[order]
    is_new = np.append(True, answer[1:] != answer[:-1])
    del answer
    is_new[1:] |= task_number[1:] != task_number[:-1]  # sorting moves rollouts within their task only
    starts = np.flatnonzero(is_new)
    reward = reward[order]
    differs = np.fmax.reduceat(reward, starts) > np.fmin.reduceat(reward, starts)  # NaN is unjudged
    counts = np.bincount(task_number[starts], differs, minlength=len(sizes)).astype(np.int32)
    is_twin = np.repeat(differs, np.diff(starts, append=len(reward))) & ~np.isnan(reward)
    return counts, order[is_twin]
