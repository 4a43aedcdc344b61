"""Writes a profile: `rollouts_reward_profiling.jsonl` and `rollouts_agent_metrics.json`, as NeMo Gym names them.

Tasks are written a slice at a time. Undefined values are omitted, as NeMo Gym's readers expect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollforge.index import ByTask, Index, array_floats, top_level_numbers
from rollforge.records import ROLLOUT_KEY, TASK_KEY, JsonFields
from rollforge.steps.profile.profile_tables import Profile
from rollforge.steps.profile.samples import TaskHistograms, TaskSamples
from rollforge.store import RunFiles, replacing

SLICE = 512
"""Tasks per slice; the rows of their samples are in memory meanwhile."""

REST = 32
"""Slices after which file-backed columns are paged out: a hundred columns of that many tasks take 13 MB."""

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
    """Write the profile beside the run, or into the folder `out`; returns the names of the files."""
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
    infos: dict[int, list[JsonFields]] | None,
) -> Iterator[list[object]]:
    """The lines of the profile, one slice at a time."""
    whole = {name: _one_array(table.column(name)) for name in table.column_names}
    line = _line_maker([_RENAMED.get(name, name) for name in whole if name not in _LEFT_OUT])
    for first in range(0, table.num_rows, SLICE):
        part = {name: _values(column.slice(first, SLICE)) for name, column in whole.items()}
        tasks = np.array(part["task"], dtype=np.int64)
        columns = [values for name, values in part.items() if name not in _LEFT_OUT]
        beside = (
            _intervals(part["pass_rate_low"], part["pass_rate_high"]),
            histograms.get(tasks),
            samples.get(tasks),
            [None if infos is None else infos.get(task, []) for task in part["task"]],
        )
        yield [line(*values) for values in zip(*columns, *beside, strict=True)]


def _line_maker(names: list[str]) -> Callable[..., object]:
    """A function that makes a line from these columns and additional values; None values are omitted.

    Lines are records, which encode twice as fast as dictionaries of a hundred numbers. msgspec refuses field names that JSON
    would escape; then lines are dictionaries.
    """
    keys = [*names, "pass_rate_ci", "histogram/reward", "sample", "rollout_infos"]
    if any(len(_encoder.encode(key)) != len(key.encode()) + 2 for key in keys):
        return lambda *values: {
            key: value for key, value in zip(keys, values, strict=True) if value is not None
        }
    fields = [f"column_{number}" for number in range(len(keys))]
    return msgspec.defstruct(
        "ProfileLine",
        [(field, Any, None) for field in fields],
        rename=dict(zip(fields, keys, strict=True)),
        omit_defaults=True,
        gc=False,
    )


def _intervals(lows: list[Any], highs: list[Any]) -> list[list[float] | None]:
    return [None if low is None else [low, high] for low, high in zip(lows, highs, strict=True)]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; None for null and non-finite ones."""
    values: list[Any]
    if not pa.types.is_floating(column.type):
        values = column.to_pylist()
        return values
    numbers = array_floats(column)
    values = numbers.tolist()
    for position in np.flatnonzero(~np.isfinite(numbers)).tolist():
        values[position] = None
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
