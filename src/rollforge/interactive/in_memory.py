"""Tasks from memory: lists, iterators, DataFrames, Arrow tables and datasets become a task file beside the run.

The file is written once, row by row: iterators may be long, the run can be resumed by the content of its tasks, and the command
line can continue it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from datetime import date, datetime
from filecmp import cmp
from itertools import islice
from pathlib import Path
from typing import Any

from rollforge.errors import DataError, UsageError
from rollforge.records import JsonFields, to_json
from rollforge.store import RunFiles
from rollforge.store.atomic import replacing
from rollforge.tasks.containers import without_nulls

BATCH_ROWS = 1024


def task_source(tasks: object, out: str | Path, *, limit: int | None = None) -> str:
    """The path of a task file: the given one, or one written beside the run from in-memory tasks, of which `limit` are needed."""
    if isinstance(tasks, str | os.PathLike):
        return os.fspath(tasks) if not isinstance(tasks, Path) else str(tasks)
    files = RunFiles(out)
    return str(write_tasks(tasks, files.rollouts.with_name(f"{files.stem}_input.jsonl"), limit=limit))


class _SameContent(Exception):
    """The file has these tasks already."""


def write_tasks(tasks: object, target: Path, *, limit: int | None = None) -> Path:
    """Write in-memory tasks as JSONL; a file with the same content is left unchanged.

    Args:
        limit: Tasks that are needed. Of a stream no more are read, since it may have no end.
    """
    rows = task_rows(tasks)
    if limit is not None and not isinstance(tasks, Sized):
        rows = islice(rows, limit)
    with contextlib.suppress(_SameContent), replacing(target, syncs=False) as file:
        for number, row in enumerate(rows):
            file.write(_line(row, number))
        file.flush()
        if target.exists() and cmp(file.name, target, shallow=False):
            raise _SameContent
    return target


def task_rows(tasks: object) -> Iterator[Mapping[str, Any]]:
    """The rows of in-memory tasks, one at a time."""
    kind = f"{type(tasks).__module__.partition('.')[0]}.{type(tasks).__name__}"
    match kind:
        case "pandas.DataFrame":
            return _pandas_rows(tasks)
        case "polars.DataFrame":
            return map(_dense, tasks.iter_rows(named=True))  # type: ignore[attr-defined]
        case "polars.LazyFrame":
            return task_rows(tasks.collect())  # type: ignore[attr-defined]
        case "pyarrow.Table" | "pyarrow.RecordBatch" | "pyarrow.RecordBatchReader":
            return _arrow_rows(tasks)
        case "datasets.DatasetDict" | "datasets.IterableDatasetDict":
            splits = ", ".join(map(repr, tasks))  # type: ignore[call-overload]
            raise UsageError(f"a {kind} has several splits", hint=f"choose one: tasks[NAME], of {splits}")
        case "datasets.Dataset" | "datasets.IterableDataset":
            return map(_dense, tasks)  # type: ignore[call-overload,no-any-return]
    if isinstance(tasks, Mapping | bytes) or not isinstance(tasks, Iterable):
        raise UsageError(
            f"tasks are a {type(tasks).__name__}",
            hint="give a path, a list of dicts, an iterator, a DataFrame, an Arrow table or a datasets.Dataset",
        )
    return iter(tasks)


def _dense(row: Mapping[str, Any]) -> JsonFields:
    """A table row without keys that are missing in this row."""
    return without_nulls(dict(row))  # type: ignore[return-value]


def _arrow_rows(tasks: Any) -> Iterator[JsonFields]:
    import pyarrow as pa

    batches = [tasks] if isinstance(tasks, pa.RecordBatch) else tasks
    batches = batches.to_batches(max_chunksize=BATCH_ROWS) if isinstance(batches, pa.Table) else batches
    for batch in batches:
        yield from map(_dense, batch.to_pylist())


def _pandas_rows(tasks: Any) -> Iterator[JsonFields]:
    names = [str(name) for name in tasks.columns]
    for values in tasks.itertuples(index=False, name=None):
        yield {name: value for name, value in zip(names, values, strict=True) if not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or pandas' missing value."""
    return value is None or value is getattr(type(value), "NA", None) or _differs_from_itself(value)


def _differs_from_itself(value: Any) -> bool:
    """Whether a value is NaN, NaT or similar. Arrays are not; comparing pandas.NA returns neither true nor false."""
    if isinstance(value, list | tuple | dict | str | bytes) or hasattr(value, "__len__"):
        return False
    try:
        return bool(value != value)
    except (TypeError, ValueError):
        return True


def _line(row: object, number: int) -> bytes:
    if not isinstance(row, Mapping):
        raise DataError(
            f"task {number} is a {type(row).__name__}, not a dict",
            hint='a task is a dict such as {"prompt": "2+2?", "expected_answer": "4"}',
        )
    try:
        return to_json(_plain(row)) + b"\n"
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"task {number} cannot be written as JSON: {error}",
            hint="tasks hold texts, numbers, booleans, lists and dictionaries",
        ) from error


def _plain(value: Any) -> Any:
    """The value as plain JSON data: converts numpy numbers and arrays, dates, paths and more."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return value.item() if hasattr(value, "item") else value  # numpy's float is a float too
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch: numbers, arrays, tensors
        return _plain(value.tolist())
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value
