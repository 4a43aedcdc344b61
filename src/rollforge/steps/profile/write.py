"""This module writes a profile: `rollouts_reward_profiling.jsonl` and `rollouts_agent_metrics.json`, as NeMo Gym names them.

Rows are made and written a slice at a time; what is undefined is left out of a row, as NeMo Gym's readers expect.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Raw

from rollforge import stats
from rollforge.index import Index
from rollforge.index.grouped import ByTask
from rollforge.records import ROLLOUT_KEY, TASK_KEY, JsonObject
from rollforge.steps.profile.run import Profile
from rollforge.store import RunFiles

SLICE = 512
"""Tasks at a time: the rollouts that their samples come from are held that long."""

_split = msgspec.json.Decoder(dict[str, Raw]).decode
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
        files = RunFiles(out / files.rollouts.name)
    infos = _rollout_infos(index, where) if rollout_infos else None
    partial = files.reward_profiling.with_suffix(".partial")
    with partial.open("wb") as file:
        for rows in _task_rows(profile, index, infos, where):
            file.write(_encoder.encode_lines(rows))
            if profile.shelf is not None:
                profile.shelf.rest()
    partial.replace(files.reward_profiling)
    files.agent_metrics.write_bytes(
        msgspec.json.format(_encoder.encode(agent_entries(profile.agents)), indent=2) + b"\n"
    )
    written = {"tasks": str(files.reward_profiling), "agents": str(files.agent_metrics)}
    if parquet:
        table = files.reward_profiling.with_suffix(".parquet")
        pq.write_table(profile.tasks, table, compression="zstd")
        written["parquet"] = str(table)
    return written


def agent_entries(agents: pa.Table) -> list[JsonObject]:
    """One entry per agent, without what is undefined."""
    entries = []
    for row in agents.to_pylist():
        agent = row.pop("agent")
        entry = {name: value for name, value in row.items() if value is not None}
        entries.append(entry | {"agent_ref": {"name": agent}})
    return entries


_RENAMED = {"task": TASK_KEY}
_LEFT_OUT = {"agent", "pass_rate_low", "pass_rate_high"}


def _task_rows(
    profile: Profile, index: Index, infos: dict[int, list[JsonObject]] | None, where: str | None
) -> Iterator[Iterable[object]]:
    """The table as records that leave out what is undefined, a slice at a time."""
    names = [name for name in profile.tasks.column_names if name not in _LEFT_OUT]
    extra = ["pass_rate_ci", "histogram/reward", "sample", *(["rollout_infos"] if infos is not None else [])]
    keys = [_RENAMED.get(name, name) for name in names] + extra
    record = _record_type(keys)
    histograms = _Histograms(profile.rows or ByTask(index, where))
    for first in range(0, profile.tasks.num_rows, SLICE):
        part = profile.tasks.slice(first, SLICE)
        tasks: list[int] = part.column("task").to_pylist()
        samples = _samples(index, tasks)
        low, high = part.column("pass_rate_low").to_pylist(), part.column("pass_rate_high").to_pylist()
        columns: list[list[Any]] = [_values(part.column(name)) for name in names]
        columns.append([None if a is None else [a, b] for a, b in zip(low, high, strict=True)])
        columns.append(histograms.get(tasks))
        columns.append([samples.get(task) for task in tasks])
        if infos is not None:
            columns.append([infos.get(task, []) for task in tasks])
        yield itertools.starmap(record, zip(*columns, strict=True))


def _record_type(keys: list[str]) -> Callable[..., object]:
    """What makes a record of one value per key and leaves out what is undefined."""
    try:
        return msgspec.defstruct(
            "TaskProfile",
            [(f"f{place}", Any, None) for place in range(len(keys))],
            rename={f"f{place}": key for place, key in enumerate(keys)},
            omit_defaults=True,
        )
    except ValueError:  # a key with a quote or a line break in it
        return lambda *values: {
            key: value for key, value in zip(keys, values, strict=True) if value is not None
        }


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values, None for missing: what `to_pylist` gives, several times faster for numbers."""
    if not pa.types.is_floating(column.type) and (column.null_count or not pa.types.is_integer(column.type)):
        return column.to_pylist()  # type: ignore[no-any-return]
    numbers = column.to_numpy()
    values: list[Any] = numbers.tolist()
    if column.null_count:
        for place in np.flatnonzero(np.isnan(numbers)).tolist():
            values[place] = None
    return values


class _Histograms:
    """The reward histogram of each task, over the same edges for all of them."""

    def __init__(self, rows: ByTask) -> None:
        reward = rows.one("reward")
        edges = stats.histogram(reward).edges
        self._edges = Raw(_encoder.encode(edges))
        self._tasks = rows.tasks
        bins = max(len(edges) - 1, 1)
        sizes = np.diff(np.append(rows.starts, len(rows)))
        self._counts = np.zeros((len(rows.tasks), bins), dtype=np.min_scalar_type(sizes.max(initial=0)))
        known = ~np.isnan(reward)
        if edges and known.any():
            group = np.repeat(np.arange(len(rows.tasks)), sizes)[known]
            where_in = np.searchsorted(edges, reward[known], side="right") - 1
            place = group * bins + np.clip(where_in, 0, bins - 1)
            np.add.at(self._counts.reshape(-1), place, 1)

    def get(self, tasks: list[int]) -> list[JsonObject | None]:
        """Those of some tasks; None for one without a judged rollout."""
        if not len(self._tasks):
            return [None] * len(tasks)
        wanted = np.asarray(tasks, dtype=np.int64)
        place = np.minimum(np.searchsorted(self._tasks, wanted), len(self._tasks) - 1)
        counts = np.where((self._tasks[place] == wanted)[:, None], self._counts[place], 0)
        return [{"edges": self._edges, "counts": one} if any(one) else None for one in counts.tolist()]


def _samples(index: Index, tasks: list[int]) -> dict[int, Any]:
    """For each task the row as sent, without its indices; from the first rollout when no tasks file is there."""
    samples: dict[int, Any] = {task: _without_indices(line) for task, line in index.raw_task_rows(tasks)}
    missing = [task for task in tasks if task not in samples]
    if missing:
        samples |= dict(_samples_from_rollouts(index, missing))
    return samples


def _without_indices(line: bytes) -> dict[str, Raw]:
    row = _split(line)
    row.pop(TASK_KEY, None)
    row.pop(ROLLOUT_KEY, None)
    return row


def _samples_from_rollouts(index: Index, tasks: list[int]) -> Iterator[tuple[int, Any]]:
    """The prompt (and agent) of each task's first rollout: all that a rollout row still says of its task."""
    found = index.first_rows(tasks)
    rows = found.column("row").to_pylist()
    lines, pieces = index.read(rows), index.pieces(rows)
    for task, line, (start, size, agent_start, agent_size) in zip(
        found.column("task").to_pylist(), lines, pieces, strict=True
    ):
        if size:
            agent = Raw(line[agent_start : agent_start + agent_size]) if agent_size else msgspec.UNSET
            yield task, _Sample(responses_create_params=Raw(line[start : start + size]), agent_ref=agent)
            continue
        try:
            yield task, _sample(line)
        except msgspec.DecodeError:
            continue


class _Sample(msgspec.Struct, omit_defaults=True):
    """What a rollout row still says of its task, unread."""

    responses_create_params: Raw | msgspec.UnsetType = msgspec.UNSET
    messages: Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: Raw | msgspec.UnsetType = msgspec.UNSET
    agent_ref: Raw | msgspec.UnsetType = msgspec.UNSET


_sample = msgspec.json.Decoder(_Sample).decode


def _rollout_infos(index: Index, where: str | None) -> dict[int, list[JsonObject]]:
    """Every rollout's own numbers, by task."""
    names = {column: index.name_by_column[column] for column in index.numbers}
    table = index.table(["task", "rollout", *names], where, order_by="task, rollout")
    infos: dict[int, list[JsonObject]] = {}
    for row in table.to_pylist():
        task, rollout = row.pop("task"), row.pop("rollout")
        numbers = {
            names[column]: value
            for column, value in row.items()
            if value is not None and "." not in names[column]
        }
        info = {"rollout_id": f"{task}:{rollout}", TASK_KEY: task, ROLLOUT_KEY: rollout, **numbers}
        infos.setdefault(task, []).append(info)
    return infos
