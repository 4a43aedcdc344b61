"""Vectorised fold: many steps of many tasks of many runs, in a few numpy passes per metric.

It gives the same doubles as `StepFold` at a fraction of the cost. Rows may be in any order; it is faster if each task's runs are
adjacent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollforge.metrics.moments import FloatArray, exact_row_sums, exact_sum
from rollforge.metrics.names import build_name, shown_metric, split_suffix

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_WIDE = 256
"""Groups larger than this are summed one by one; smaller ones together, rank by rank."""


class StepTable(msgspec.Struct, frozen=True):
    """Step-level metrics of many steps: one array per name, one entry per step; NaN where a step lacks the
    metric."""

    steps: NDArray[Any]
    values: dict[str, FloatArray]

    def rows(self) -> Iterator[tuple[int, dict[str, float]]]:
        """The metrics of each step, without missing ones."""
        names = list(self.values)
        columns = [self.values[name].tolist() for name in names]
        for position, step in enumerate(self.steps.tolist()):
            cells = ((name, column[position]) for name, column in zip(names, columns, strict=True))
            yield step, {name: value for name, value in cells if value == value}


class RowGroups:
    """Rows grouped by key: a row order, and the start of each group in it."""

    def __init__(self, *keys: NDArray[Any]) -> None:
        """Group by all `keys`, the first one being most significant."""
        rows = len(keys[0])
        change = _changes(keys)
        self.order: IntArray | None = None
        if not _is_sorted(keys, change):
            self.order = np.lexsort(keys[::-1])
            change = _changes([key[self.order] for key in keys])
        self.starts: IntArray = np.flatnonzero(change) if rows else np.zeros(0, dtype=np.int64)
        self.sizes: IntArray = np.diff(self.starts, append=rows)

    def __len__(self) -> int:
        return len(self.starts)

    def arrange(self, column: NDArray[Any]) -> NDArray[Any]:
        """`column` reordered so that the rows of each group are adjacent."""
        return column if self.order is None else column[self.order]

    def sums(self, arranged: FloatArray) -> FloatArray:
        """Sum per group, exact as in `math.fsum`."""
        result = np.empty(len(self))
        if not len(self):
            return result
        largest = int(self.sizes.max())
        if largest == int(self.sizes.min()) <= _WIDE:
            matrix = arranged.reshape(-1, largest)
            return exact_row_sums([matrix[:, rank] for rank in range(largest)])
        for size in np.unique(self.sizes):
            which = np.flatnonzero(self.sizes == size)
            starts = self.starts[which]
            if size <= _WIDE:
                result[which] = exact_row_sums([arranged[starts + rank] for rank in range(size)])
            else:
                result[which] = [
                    exact_sum(arranged[start : start + size].tolist()) for start in starts.tolist()
                ]
        return result

    def counts(self, arranged: BoolArray) -> FloatArray:
        """Number of true values per group."""
        if not len(self):
            return np.zeros(0)
        return np.add.reduceat(arranged, self.starts, dtype=np.float64)

    def largest(self, arranged: FloatArray) -> FloatArray:
        return np.maximum.reduceat(arranged, self.starts) if len(self) else np.zeros(0)

    def smallest(self, arranged: FloatArray) -> FloatArray:
        return np.minimum.reduceat(arranged, self.starts) if len(self) else np.zeros(0)


def _changes(keys: Sequence[NDArray[Any]]) -> BoolArray:
    change = np.zeros(len(keys[0]), dtype=np.bool_)
    change[:1] = True
    for key in keys:
        change[1:] |= key[1:] != key[:-1]
    return change


def _is_sorted(keys: Sequence[NDArray[Any]], change: BoolArray) -> bool:
    """Whether rows are already sorted by the first key, then the second."""
    where = np.flatnonzero(change)
    heads = [key[where] for key in keys]
    tied = np.ones(max(len(where) - 1, 0), dtype=np.bool_)
    for head in heads:
        if np.any(tied & (head[1:] < head[:-1])):
            return False
        tied &= head[1:] == head[:-1]
    return True


def fold_steps(
    step: ArrayLike,
    task: ArrayLike,
    values: Mapping[str, ArrayLike],
    *,
    present: Mapping[str, ArrayLike] | None = None,
    category: str = "rollout",
    counts: bool = True,
) -> StepTable:
    """Step-level metrics of all steps at once, with the default policy (skip and count missing and non-finite values).

    Args:
        step: the step of each run.
        task: the task of each run.
        values: per metric one number per run; suffixes (`:sum` …) work as in `StepFold`.
        present: per metric, a mask of the runs that have it; by default all. NaN in `values` counts as a NaN value, not as
            missing.
    """
    step_column, task_column = np.asarray(step), np.asarray(task)
    by_task = RowGroups(step_column, task_column)
    task_step = by_task.arrange(step_column)[by_task.starts]
    by_step = RowGroups(task_step)
    numbers: dict[str, FloatArray] = {}
    for metric in sorted(values):
        column = by_task.arrange(np.asarray(values[metric], dtype=np.float64))
        carried = present.get(metric) if present else None
        mask = None if carried is None else by_task.arrange(np.asarray(carried, dtype=np.bool_))
        for statistic, array in _fold_metric(metric, column, mask, by_task, by_step, counts=counts).items():
            numbers[build_name(category, shown_metric(metric, values), statistic)] = array
    return StepTable(task_step[by_step.starts], numbers)


def _fold_metric(
    metric: str,
    column: FloatArray,
    mask: BoolArray | None,
    by_task: RowGroups,
    by_step: RowGroups,
    *,
    counts: bool,
) -> dict[str, FloatArray]:
    finite = np.isfinite(column)
    usable = finite if mask is None else finite & mask
    is_whole = bool(usable.all())
    runs = by_task.sizes.astype(np.float64) if is_whole else by_task.counts(usable)
    suffix = split_suffix(metric)[1] or "mean"
    task_value = _task_level(
        suffix, column if is_whole else np.where(usable, column, 0.0), usable, runs, by_task
    )
    has_value = runs > 0
    tasks = by_step.counts(has_value)
    numbers = _step_level(suffix, np.where(has_value, task_value, 0.0), has_value, tasks, by_step)
    if counts and suffix == "mean":
        nothing = np.zeros(len(by_step))
        numbers["count"] = tasks
        numbers["runs"] = np.add.reduceat(runs, by_step.starts) if len(by_step) else nothing
        numbers["missing"], numbers["nan"] = nothing, nothing
        if not is_whole:
            carried = by_task.sizes if mask is None else by_task.counts(mask)
            odd = by_task.counts(~finite if mask is None else mask & ~finite)
            numbers["missing"] = np.add.reduceat(by_task.sizes - carried, by_step.starts).astype(np.float64)
            numbers["nan"] = np.add.reduceat(odd, by_step.starts)
    return numbers


def _task_level(
    suffix: str, column: FloatArray, usable: BoolArray, runs: FloatArray, by_task: RowGroups
) -> FloatArray:
    match suffix:
        case "mean":
            return by_task.sums(column) / np.maximum(runs, 1)
        case "sum":
            return by_task.sums(column)
        case "max":
            return by_task.largest(np.where(usable, column, -np.inf))
        case "min":
            return by_task.smallest(np.where(usable, column, np.inf))
        case _:
            position = np.maximum.reduceat(np.where(usable, np.arange(len(column)), -1), by_task.starts)
            return column[position]


def _step_level(
    suffix: str, task_value: FloatArray, has_value: BoolArray, tasks: FloatArray, by_step: RowGroups
) -> dict[str, FloatArray]:
    some = np.maximum(tasks, 1)
    absent = np.where(tasks > 0, 0.0, np.nan)
    total = by_step.sums(task_value) if suffix in ("mean", "sum") else task_value[:0]
    if suffix == "sum":
        return {"sum": total + absent}
    if suffix == "last":
        position = np.maximum.reduceat(np.where(has_value, np.arange(len(task_value)), -1), by_step.starts)
        return {"last": task_value[position] + absent}
    largest = by_step.largest(np.where(has_value, task_value, -np.inf)) + absent
    smallest = by_step.smallest(np.where(has_value, task_value, np.inf)) + absent
    if suffix != "mean":
        return {suffix: largest if suffix == "max" else smallest}
    return {"mean": total / some + absent, "max": largest, "min": smallest}
