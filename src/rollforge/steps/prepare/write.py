"""Writes the rows of a dataset into the files of one folder, in the form that the survey decided.

The files get their final place only after they have been read back (`read_back`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from rollforge.conversations.messages import Inexpressible
from rollforge.conversations.texts import on_one_line
from rollforge.errors import RollforgeError
from rollforge.exporters.base import Exporter
from rollforge.exporters.examples import Example, Kind
from rollforge.exporters.form import Form
from rollforge.exporters.writer import RowWriter
from rollforge.records import JsonFields
from rollforge.steps.prepare.copying import copy_rows
from rollforge.steps.prepare.plan import DatasetPlan
from rollforge.steps.prepare.pool import Pool
from rollforge.steps.prepare.survey import ReadExamples

Progress = Callable[[str, int, int], None]
"""Callback for (phase, done, total)."""

REPORT_EVERY = 512
PARQUET_ROWS = 1024


class ContractBroken(RollforgeError):
    """The files just written are not what the trainer's loader takes; nothing was left behind."""


@dataclass
class WrittenFile:
    """One file of the dataset."""

    name: str
    split: str
    examples: array[int] = field(default_factory=lambda: array("q"))
    """Example numbers in the order of the lines."""

    @property
    def numbers(self) -> np.ndarray:
        return np.frombuffer(self.examples, dtype=np.int64)


@dataclass
class Written:
    """All files of a dataset."""

    files: list[WrittenFile]
    lost: Mapping[int, str]
    """Number of each example that was not written → why."""

    @property
    def dropped(self) -> Counter[str]:
        """Reason → examples not written."""
        return Counter(self.lost.values())

    @property
    def rows(self) -> int:
        return sum(len(file.examples) for file in self.files)

    @property
    def numbers(self) -> np.ndarray:
        """Numbers of all written examples, file after file."""
        return np.concatenate([file.numbers for file in self.files])


def write_dataset(
    read: ReadExamples,
    plan: DatasetPlan,
    exporter: Exporter,
    form: Form,
    lost: Mapping[int, str],
    folder: Path,
    shards: int,
    progress: Progress,
) -> Written:
    """Write all examples of the plan that are not lost."""
    files = []
    done = 0
    skipped = np.array(list(lost), dtype=np.int64)
    for file, numbers in _files(plan, form, shards):
        with _open(folder / file.name, exporter, plan.selection.kind, form) as sink:
            for number, example in read(numbers[~np.isin(numbers, skipped)]):
                if isinstance(example, Inexpressible):
                    raise ContractBroken(f"example {number} was surveyed, but cannot be expressed: {example}")
                sink.add(example)
                file.examples.append(number)
                done += 1
                if done % REPORT_EVERY == 0:
                    progress("write", done, len(plan.split))
        files.append(file)
    return Written(files, lost)


def copy_dataset(
    pool: Pool,
    plan: DatasetPlan,
    exporter: Exporter,
    form: Form,
    folder: Path,
    shards: int,
    progress: Progress,
) -> Written:
    """Write rollout lines as they are; every example can be written."""
    files = []
    done = 0
    for file, numbers in _files(plan, form, shards):
        for count in copy_rows(pool, plan.selection, exporter, numbers, folder / file.name):
            progress("write", done + count, len(plan.split))
        file.examples.frombytes(numbers.astype(np.int64).tobytes())
        done += len(numbers)
        files.append(file)
    return Written(files, {})


def _files(plan: DatasetPlan, form: Form, shards: int) -> list[tuple[WrittenFile, np.ndarray]]:
    found = []
    for split, shard, numbers in plan.files(shards, form.front):
        ending = f"-{shard:05d}-of-{shards:05d}" if shards > 1 else ""
        found.append((WrittenFile(f"{split}{ending}.{form.container}", split), numbers))
    return found


def _open(path: Path, exporter: Exporter, kind: Kind, form: Form) -> _Sink:
    return (
        _ParquetSink(path, exporter, kind, form)
        if form.is_columnar
        else _JsonlSink(path, exporter, kind, form)
    )


class _Sink(Protocol):
    """A file that takes examples."""

    def __enter__(self) -> Any: ...
    def __exit__(self, kind: object, *_: object) -> None: ...
    def add(self, example: Example) -> None:
        """Write one example."""


class _JsonlSink:
    def __init__(self, path: Path, exporter: Exporter, kind: Kind, form: Form) -> None:
        self._exporter, self._kind, self._write = exporter, kind, RowWriter(form)
        self._file = path.open("wb", buffering=1 << 20)

    def __enter__(self) -> _JsonlSink:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()

    def add(self, example: Example) -> None:
        self._file.write(on_one_line(self._exporter.line(example, self._kind, self._write)))
        self._file.write(b"\n")


class _ParquetSink:
    def __init__(self, path: Path, exporter: Exporter, kind: Kind, form: Form) -> None:
        from rollforge.exporters.arrow import arrow_schema

        self._path, self._exporter, self._kind, self._write = path, exporter, kind, RowWriter(form)
        self._schema = arrow_schema(exporter.table(kind, form), form.keys)
        self._rows: list[JsonFields] = []
        self._writer: Any = None

    def __enter__(self) -> _ParquetSink:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def add(self, example: Example) -> None:
        self._rows.append(_without_raw(self._exporter.row(example, self._kind, self._write)))
        if len(self._rows) >= PARQUET_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, self._schema)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def _without_raw(row: JsonFields) -> JsonFields:
    """Decode token arrays, which are JSON text until here; Parquet takes numbers."""
    for name, value in row.items():
        if isinstance(value, list) and value and isinstance(value[0], msgspec.Raw):
            row[name] = [msgspec.json.decode(item) for item in value]
    return row
