"""This module writes a profile: `rollouts_reward_profiling.jsonl` and `rollouts_agent_metrics.json`, as NeMo Gym names them.

Rows are made and written a slice at a time; what is undefined is left out of a row, as NeMo Gym's readers expect.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollforge.errors import DataError
from rollforge.index import Index
from rollforge.index.ahead import mapped
from rollforge.index.grouped import ByTask
from rollforge.index.top_level import top_level_numbers
from rollforge.records import ROLLOUT_KEY, TASK_KEY, JsonObject
from rollforge.steps.profile.run import Profile
from rollforge.steps.profile.samples import Histograms, Samples
from rollforge.steps.profile.shelf import Shelf
from rollforge.steps.profile.weave import Column, Values, column, weave
from rollforge.store import RunFiles

SLICE = 512
"""Tasks at a time: the rollouts that their samples come from are held that long."""

REST = 32
"""Slices after which columns that lie in a file are let go of: a hundred columns of so many take 13 MB."""

_sync_file_range: Callable[..., int] | None = getattr(ctypes.CDLL(None), "sync_file_range", None)
_WRITE = 2
"""The system's number for beginning with what is not on its way yet, and not waiting."""

_encode = msgspec.json.Encoder().encode


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
    try:
        with _replacing(files.reward_profiling) as file, Samples(index, where) as samples:
            histograms = Histograms(profile.rows or ByTask(index, where))
            slices = _slices(profile.tasks, samples, histograms, infos)
            _write_lines(file, slices, profile.shelf, index.readers)
    except EOFError as error:
        where_told = ", ".join(str(run.rollouts) for run in index.runs)
        raise DataError(f"{where_told}: {error} while it was read", hint="run the command again") from None
    with _replacing(files.agent_metrics) as file:
        file.write(msgspec.json.format(_encode(agent_entries(profile.agents)), indent=2) + b"\n")
    written = {"tasks": str(files.reward_profiling), "agents": str(files.agent_metrics)}
    if parquet:
        table = files.reward_profiling.with_suffix(".parquet")
        pq.write_table(profile.tasks, table, compression="zstd")
        written["parquet"] = str(table)
    return written


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of another once it is whole; two may profile one run at once."""
    _sweep(path)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        with _held(partial) as file:
            yield file
            file.flush()
            partial.replace(path)  # while it is held: a file that nobody holds is swept
    finally:
        partial.unlink(missing_ok=True)


def _held(path: Path) -> IO[bytes]:
    """A new file that no other command sweeps."""
    while True:
        file = path.open("wb")
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return file
        file.close()  # swept before it was held


def _sweep(path: Path) -> None:
    """Remove what commands that were killed left behind: files that nobody holds."""
    for partial in path.parent.glob(f"{glob.escape(path.stem)}.*.partial"):
        with suppress(OSError), partial.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()


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


class _Slice(NamedTuple):
    """Some tasks, as columns of their lines."""

    tasks: int
    columns: list[Column]


def _slices(
    table: pa.Table, samples: Samples, histograms: Histograms, infos: dict[int, list[JsonObject]] | None
) -> Iterator[_Slice]:
    """The table a slice at a time, with what stands beside it in the lines."""
    whole = {name: _whole(table.column(name)) for name in table.column_names}
    for first in range(0, table.num_rows, SLICE):
        part = {name: values.slice(first, SLICE) for name, values in whole.items()}
        tasks = _numbers(part["task"])
        columns = [*_statistics(part), *histograms.columns(tasks), samples.column(tasks)]
        if infos is not None:
            told = [infos.get(task, []) for task in tasks.tolist()]
            columns.append(column("rollout_infos", _encode(told)))
        yield _Slice(len(tasks), columns)


def _write_lines(file: IO[bytes], slices: Iterator[_Slice], shelf: Shelf | None, threads: int) -> None:
    """Write slices as JSON lines that leave out what is undefined, with so many threads at work on the next ones."""
    blocks: SimpleQueue[bytearray] = SimpleQueue()

    def woven(part: _Slice) -> tuple[bytearray, int]:
        try:
            block = blocks.get_nowait()
        except Empty:
            block = bytearray()
        return block, weave(part.tasks, part.columns, block)

    written = 0
    for number, (block, size) in enumerate(mapped(woven, slices, threads)):
        with memoryview(block) as lines:
            file.write(lines[:size])
        blocks.put(block)
        _begin_writeback(file, written, size)
        written += size
        if shelf is not None and number % REST == 0:
            shelf.rest()


def _begin_writeback(file: IO[bytes], start: int, size: int) -> None:
    """Have the system bring these bytes to disk now; else renaming the file over another would wait until it has begun to."""
    if _sync_file_range is not None:
        _sync_file_range(file.fileno(), ctypes.c_int64(start), ctypes.c_int64(size), _WRITE)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _statistics(part: Mapping[str, pa.Array]) -> Iterator[Column]:
    """A slice of the table, without what stands beside it in another shape."""
    for name, values in part.items():
        if name not in _LEFT_OUT:
            yield column(_RENAMED.get(name, name), _values(values))
    yield Column(b'"pass_rate_ci":[', _numbers(part["pass_rate_low"]))
    yield Column(b"", _numbers(part["pass_rate_high"]), b"]")


def _values(values: pa.Array) -> Values:
    is_number = pa.types.is_floating(values.type) or (
        pa.types.is_integer(values.type) and not values.null_count
    )
    return _numbers(values) if is_number else _encode(values.to_pylist())


def _numbers(values: pa.Array) -> NDArray[Any]:
    numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers


def _rollout_infos(index: Index, where: str | None) -> dict[int, list[JsonObject]]:
    """Every rollout's own numbers, by task."""
    names = {column: index.name_by_column[column] for column in top_level_numbers(index)}
    table = index.table(["task", "rollout", *names], where, order_by="task, rollout")
    infos: dict[int, list[JsonObject]] = {}
    for row in table.to_pylist():
        task, rollout = row.pop("task"), row.pop("rollout")
        numbers = {names[column]: value for column, value in row.items() if value is not None}
        info = {"rollout_id": f"{task}:{rollout}", TASK_KEY: task, ROLLOUT_KEY: rollout, **numbers}
        infos.setdefault(task, []).append(info)
    return infos
