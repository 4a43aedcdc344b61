"""The (task, rollout) key of every row, and which row counts if two share a key.

Rows with indices keep them. Rows without are grouped by prompt, never by line number: they get the prompt's number in the tasks
file, else a new one. In a run of several files, a task number with two prompts means two tasks. Rollouts of one task in two runs
are different: those of the later run are numbered after those of the earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollforge.index.arrow import ints, is_known
from rollforge.index.state import KeySpan

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class RowKeys(NamedTuple):
    """The identity of all rows, in the order of `row`."""

    row: Ints
    file: Ints
    local_task: Ints
    """The task's number inside its own file, which that file's verdicts use."""
    local_rollout: Ints
    task: Ints
    rollout: Ints
    overruled_by: Ints
    """The row that counts instead of this one, or -1."""
    is_plain: bool
    """Whether every row counts and keeps its own numbers."""
    renamed: dict[int, dict[int, int]]
    """Per file: numbers of tasks that conflict with an earlier file → their number in the whole run."""
    joins_tasks: bool
    """Whether task numbers of rollouts match those of the tasks files."""
    shifts: dict[int, int]
    """Per file: offset added to its rollout numbers, if not 0."""


def packed_keys(task: Ints, rollout: Ints) -> Ints | None:
    """One integer per (task, rollout) with the same sort order; None if they do not fit in 64 bits."""
    width = int(rollout.max()) + 1
    if min(int(task.min()), int(rollout.min())) < 0 or (int(task.max()) + 1) * width >= 2**63:
        return None
    key: Ints = task * width
    key += rollout
    return key


def key_span(task: pa.ChunkedArray, rollout: pa.ChunkedArray) -> KeySpan | None:
    """The range of the rows' keys; None if a row has no key, or two rows share one."""
    if task.null_count or rollout.null_count or not len(task):
        return None
    rollouts = ints(rollout)
    key = packed_keys(ints(task), rollouts)
    if key is None:
        return None
    key.sort()
    if bool((key[1:] == key[:-1]).any()):
        return None
    least, largest = int(rollouts.min()), int(rollouts.max())
    return KeySpan(divmod(int(key[0]), largest + 1), divmod(int(key[-1]), largest + 1), least, largest)


def have_own_keys(paths: Sequence[Path]) -> bool:
    """Whether every row of these parts has a unique key."""
    tables = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            tables.append(file.read(columns=["task", "rollout"], use_threads=False))
    table = pa.concat_tables(tables, promote_options="default")
    return key_span(table.column("task"), table.column("rollout")) is not None


def resolve(table: pa.Table, tasks: pa.Table | None = None, runs: Sequence[int] = ()) -> RowKeys:
    """Keys for a table of row, file_no, task, rollout, prompt_hash.

    Args:
        tasks: file_no, task, prompt_hash of the tasks files, which may contain tasks without rollouts.
        runs: run number of each file; empty means a single run.
    """
    order = np.argsort(_ints(table, "row"), kind="stable")
    row, file = _ints(table, "row")[order], _ints(table, "file_no")[order]
    prompt, has_prompt = _ints(table, "prompt_hash")[order], _known(table, "prompt_hash")[order]
    task, has_task = _ints(table, "task")[order], _known(table, "task")[order]
    rollout, has_rollout = _ints(table, "rollout")[order], _known(table, "rollout")[order]
    files = int(file.max()) + 1 if len(file) else 0
    prompt = np.where(has_prompt, prompt, -1 - row)  # a row without a prompt shares its task with no other
    local_task, local_rollout = task.copy(), rollout.copy()
    if not (has_task.all() and has_rollout.all()):
        for number in range(files):
            mine = file == number
            task_numbers = _tasks_by_prompt(tasks, number)
            local_task[mine] = _fill_tasks(task[mine], has_task[mine], prompt[mine], task_numbers)
            local_rollout[mine] = _fill_rollouts(local_task[mine], rollout[mine], has_rollout[mine])
    merged_task, merged_rollout = local_task, local_rollout
    joins_tasks = files == 1 or bool(has_task.all())
    renamed: dict[int, dict[int, int]] = {}
    if files > 1:
        rows = _Rows(file, local_task, has_task, prompt, has_prompt)
        rows = rows.followed_by(tasks) if tasks is not None and joins_tasks else rows
        merged = _merge_tasks(rows)
        renamed = _renamed(rows, merged)
        merged_task = merged[: len(row)]
        merged_rollout = _fill_rollouts(merged_task, local_rollout, has_rollout)
    shifts = _shifts(file, merged_task, merged_rollout, runs)
    for number, shift in shifts.items():
        merged_rollout = np.where(file == number, merged_rollout + shift, merged_rollout)
    overruled_by = _overruled(merged_task, merged_rollout, row)
    is_plain = bool(
        has_task.all()
        and has_rollout.all()
        and (overruled_by == -1).all()
        and (merged_task is local_task or (merged_task == task).all())
        and not shifts
    )
    return RowKeys(
        row, file, local_task, local_rollout, merged_task, merged_rollout, overruled_by, is_plain, renamed, joins_tasks,
        shifts,
    )  # fmt: skip


class _Rows(NamedTuple):
    """Evidence for matching tasks across files: one row per rollout, then one per row of a tasks file."""

    file: Ints
    task: Ints
    has_task: Bools
    prompt: Ints
    has_prompt: Bools

    def followed_by(self, tasks: pa.Table) -> _Rows:
        more = (
            _ints(tasks, "file_no"), _ints(tasks, "task"), _known(tasks, "task"),
            _ints(tasks, "prompt_hash"), _known(tasks, "prompt_hash"),
        )  # fmt: skip
        return _Rows(*(np.concatenate(both) for both in zip(self, more, strict=True)))


def _renamed(rows: _Rows, merged: Ints) -> dict[int, dict[int, int]]:
    task_by_file: dict[int, dict[int, int]] = {}
    for position in np.flatnonzero((merged != rows.task) & rows.has_task).tolist():
        task_by_file.setdefault(int(rows.file[position]), {})[int(rows.task[position])] = int(
            merged[position]
        )
    return task_by_file


def _ints(table: pa.Table, name: str) -> Ints:
    return ints(table.column(name), missing=-1)


def _known(table: pa.Table, name: str) -> Bools:
    return is_known(table.column(name))


class _TaskNumbers(NamedTuple):
    """Task numbering of a tasks file."""

    by_prompt: dict[int, int]
    """Task number of each prompt that occurs in only one task."""
    first_free: int
    """First number that the file does not use."""


def _tasks_by_prompt(tasks: pa.Table | None, file: int) -> _TaskNumbers:
    if tasks is None or not tasks.num_rows:
        return _TaskNumbers({}, 0)
    mine = _ints(tasks, "file_no") == file
    numbers, prompts = _ints(tasks, "task")[mine], _ints(tasks, "prompt_hash")[mine]
    numbers_by_prompt: dict[int, set[int]] = {}
    for prompt, number in zip(prompts.tolist(), numbers.tolist(), strict=True):
        if prompt >= 0:
            numbers_by_prompt.setdefault(prompt, set()).add(number)
    unique = {prompt: next(iter(own)) for prompt, own in numbers_by_prompt.items() if len(own) == 1}
    return _TaskNumbers(unique, int(numbers.max(initial=-1)) + 1)


def _fill_tasks(task: Ints, has_task: Bools, prompt: Ints, task_numbers: _TaskNumbers) -> Ints:
    """Number rows without a task: by the tasks file's number of their prompt, else by prompt after all used numbers."""
    missing = ~has_task
    if not missing.any():
        return task
    first_free = max(int(task[has_task].max(initial=-1)) + 1, task_numbers.first_free)
    filled = task.copy()
    filled[missing] = first_free + _by_appearance(prompt[missing])
    if task_numbers.by_prompt:
        for position in np.flatnonzero(missing).tolist():
            filled[position] = task_numbers.by_prompt.get(int(prompt[position]), filled[position])
    return filled


def _by_appearance(values: Ints) -> Ints:
    """Codes by first appearance: 0 for the first distinct value, 1 for the second, …"""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    return rank[inverse]


def _fill_rollouts(task: Ints, rollout: Ints, has_rollout: Bools) -> Ints:
    """Number rows without a rollout number within their task, after the used numbers."""
    missing = ~has_rollout
    if not missing.any():
        return rollout
    tasks, inverse = np.unique(task, return_inverse=True)
    first_free = np.zeros(len(tasks), dtype=np.int64)
    np.maximum.at(first_free, inverse[has_rollout], rollout[has_rollout] + 1)
    filled = rollout.copy()
    where = np.flatnonzero(missing)
    group = inverse[where]
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    within = np.arange(len(ordered)) - np.repeat(starts, np.diff(np.r_[starts, len(ordered)]))
    filled[where[order]] = first_free[ordered] + within
    return filled


def _merge_tasks(rows: _Rows) -> Ints:
    """Merge the numbering of several files: a number stands for one prompt, and rows without a number are grouped by prompt.

    A number without a known prompt in one file means the same as in the other files.
    """
    file, task, has_task, prompt, has_prompt = rows
    merged = task.copy()
    next_free = int(task[has_task].max()) + 1 if has_task.any() else 0
    prompt_by_task: dict[int, int] = {}
    number_by_pair: dict[tuple[int, int], int] = {}
    for number in range(int(file.max()) + 1):
        mine = np.flatnonzero((file == number) & has_task)
        tasks, first, inverse = np.unique(task[mine], return_index=True, return_inverse=True)
        renamed = tasks.copy()
        for position, (one, where) in enumerate(zip(tasks.tolist(), first.tolist(), strict=True)):
            row_prompt = int(prompt[mine[where]])
            if not has_prompt[mine[where]]:
                continue
            if prompt_by_task.setdefault(one, row_prompt) != row_prompt:
                if (one, row_prompt) not in number_by_pair:
                    number_by_pair[one, row_prompt] = next_free
                    next_free += 1
                renamed[position] = number_by_pair[one, row_prompt]
        merged[mine] = renamed[inverse]
    without = ~has_task
    if without.any():
        merged[without] = next_free + _by_appearance(prompt[without])
    return merged


def _shifts(file: Ints, task: Ints, rollout: Ints, runs: Sequence[int]) -> dict[int, int]:
    """Offset for the rollout numbers of each file, so that no two runs share a rollout of a task."""
    shifts: dict[int, int] = {}
    if len(set(runs)) < 2:
        return shifts
    run = np.asarray(runs, dtype=np.int64)[file]
    tasks, first_free = task[run == runs[0]], int(rollout[run == runs[0]].max(initial=-1)) + 1
    for number in list(dict.fromkeys(runs))[1:]:
        mine = run == number
        least, most = int(rollout[mine].min(initial=first_free)), int(rollout[mine].max(initial=-1))
        if least < first_free and len(np.intersect1d(task[mine], tasks)):
            shift = first_free - least
            shifts |= {position: shift for position, one in enumerate(runs) if one == number}
            most += shift
        tasks, first_free = np.union1d(tasks, task[mine]), max(first_free, most + 1)
    return shifts


def _overruled(task: Ints, rollout: Ints, row: Ints) -> Ints:
    """For each row, the last row with the same key; -1 if that is the row itself."""
    overruled_by = np.full(len(row), -1, dtype=np.int64)
    if not len(row):
        return overruled_by
    order = np.lexsort((row, rollout, task))
    same = (task[order][1:] == task[order][:-1]) & (rollout[order][1:] == rollout[order][:-1])
    if not same.any():
        return overruled_by
    ends = np.flatnonzero(np.r_[~same, True])
    last = ends[np.searchsorted(ends, np.arange(len(order)))]
    is_last = last == np.arange(len(order))
    overruled_by[order] = np.where(is_last, -1, row[order][last])
    return overruled_by
