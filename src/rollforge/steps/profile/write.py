"""Writes a profile: `rollouts_reward_profiling.jsonl` and `rollouts_agent_metrics.json`, as NeMo Gym names them.

Tasks are written a slice at a time. An undefined value is left out of its line, as NeMo Gym's readers expect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollforge.index import ByTask, Index, top_level_numbers
from rollforge.records import ROLLOUT_KEY, TASK_KEY, JsonFields, JsonObject
from rollforge.steps.profile.run import Profile
from rollforge.steps.profile.samples import TaskHistograms, TaskSamples
from rollforge.store import RunFiles, replacing

SLICE = 512
"""Tasks at a time: the rows that their samples come from are held that long."""

REST = 32
"""Slices after which columns that lie in a file are paged out: a hundred columns of so many tasks take 13 MB."""

_RENAMED = {"task": TASK_KEY}
_LEFT_OUT = ("agent", "pass_rate_low", "pass_rate_high")
_encoder = msgspec.json.Encoder()


def write_profile(
    profile: Profile,
    index: Index,
    *,
    out: Path | None = None,
    rollout_infos: bool = False,
    parquet: bool = False,
    where: str | None = None,
) -> dict[str, str]:
    """Write the profile beside the run, or into the folder `out`; the names of the files written."""
    files = index.runs[0]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        files = RunFiles(out / f"{files.stem}.jsonl")
    infos = _rollout_infos(index, where) if rollout_infos else None
    samples, histograms = TaskSamples(index, where), TaskHistograms(profile.rows or ByTask(index, where))
    with replacing(files.reward_profiling) as file:
        for number, rows in enumerate(_slices(profile.tasks, samples, histograms, infos)):
            file.write(_encoder.encode_lines(rows))
            if profile.shelf is not None and number % REST == 0:
                profile.shelf.rest()
    with replacing(files.agent_metrics) as file:
        file.write(msgspec.json.format(_encoder.encode(agent_entries(profile.agents)), indent=2) + b"\n")
    written = {"tasks": str(files.reward_profiling), "agents": str(files.agent_metrics)}
    if parquet:
        table = files.reward_profiling.with_suffix(".parquet")
        with replacing(table) as file:
            pq.write_table(profile.tasks, file, compression="zstd")
        written["parquet"] = str(table)
    return written


def agent_entries(agents: pa.Table) -> list[JsonFields]:
    """One entry per agent, without undefined values."""
    entries = []
    for row in agents.to_pylist():
        agent = row.pop("agent")
        entry = {name: value for name, value in row.items() if value is not None}
        entries.append(entry | {"agent_ref": {"name": agent}})
    return entries


def _slices(
    table: pa.Table,
    samples: TaskSamples,
    histograms: TaskHistograms,
    infos: dict[int, list[JsonObject]] | None,
) -> Iterator[list[JsonObject]]:
    """The lines of the profile as objects, a slice at a time."""
    whole = {name: _one_array(table.column(name)) for name in table.column_names}
    names = [_RENAMED.get(name, name) for name in whole if name not in _LEFT_OUT]
    for first in range(0, table.num_rows, SLICE):
        part = {name: _values(column.slice(first, SLICE)) for name, column in whole.items()}
        tasks = whole["task"].slice(first, SLICE).to_numpy()
        columns = [values for name, values in part.items() if name not in _LEFT_OUT]
        rows: list[JsonObject] = [
            dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)
        ]
        for name, values in zip(names, columns, strict=True):
            if None in values:
                for row in rows:
                    if row[name] is None:
                        del row[name]
        beside = zip(
            part["pass_rate_low"],
            part["pass_rate_high"],
            histograms.get(tasks),
            samples.get(tasks),
            strict=True,
        )
        for row, (low, high, histogram, sample) in zip(rows, beside, strict=True):
            if low is not None:
                row["pass_rate_ci"] = [low, high]
            if histogram is not None:
                row["histogram/reward"] = histogram
            if sample is not None:
                row["sample"] = sample
            if infos is not None:
                row["rollout_infos"] = infos.get(row[TASK_KEY], [])
        yield rows


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; None where they are null or not finite."""
    if not pa.types.is_floating(column.type):
        found: list[Any] = column.to_pylist()
        return found
    numbers = column.to_numpy(zero_copy_only=False)
    values: list[Any] = numbers.tolist()
    for place in np.flatnonzero(~np.isfinite(numbers)).tolist():
        values[place] = None
    return values


def _rollout_infos(index: Index, where: str | None) -> dict[int, list[JsonFields]]:
    """Every rollout's own numbers, by task."""
    names = {column: index.name_by_column[column] for column in top_level_numbers(index)}
    table = index.table(["task", "rollout", *names], where, order_by="task, rollout")
    infos: dict[int, list[JsonFields]] = {}
    for row in table.to_pylist():
        task, rollout = row.pop("task"), row.pop("rollout")
        numbers = {names[column]: value for column, value in row.items() if value is not None}
        info = {"rollout_id": f"{task}:{rollout}", TASK_KEY: task, ROLLOUT_KEY: rollout, **numbers}
        infos.setdefault(task, []).append(info)
    return infos
