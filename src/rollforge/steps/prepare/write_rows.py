"""Writes the rows of a dataset into the files of one folder, in the form that the survey decided.

The files are moved into place only after they were read back (`read_back`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

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
from rollforge.steps.prepare.dataset_plan import DatasetPlan
from rollforge.steps.prepare.example_messages import ExampleSource
from rollforge.steps.prepare.rollout_pool import Pool

Progress = Callable[[str, int, int], None]
"""Callback for (phase, done, total)."""

REPORT_EVERY = 512
PARQUET_ROWS = 1024


class ContractBroken(RollforgeError):
    """The written files violate the contract of the trainer's loader; nothing was left behind."""


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
    """Unwritten example number → reason."""

    @property
    def dropped(self) -> Counter[str]:
        """Reason → number of unwritten examples."""
        return Counter(self.lost.values())

    @property
    def rows(self) -> int:
        return sum(len(file.examples) for file in self.files)

    @property
    def numbers(self) -> np.ndarray:
        """Numbers of all written examples, in file order."""
        return np.concatenate([file.numbers for file in self.files])


def write_dataset(
    source: ExampleSource,
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
    for file, numbers in dataset_files(plan, form, shards):
        with closing(open_row_file(folder / file.name, exporter, plan.selection.kind, form)) as rows:
            for number, example in source.examples(numbers[~np.isin(numbers, skipped)]):
                if isinstance(example, Inexpressible):
                    raise ContractBroken(f"example {number} was surveyed, but cannot be expressed: {example}")
                rows.add(example)
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
    """Write rollout lines unchanged; every example can be written."""
    files = []
    done = 0
    for file, numbers in dataset_files(plan, form, shards):
        for count in copy_rows(pool, plan.selection, exporter, numbers, folder / file.name):
            progress("write", done + count, len(plan.split))
        file.examples.frombytes(numbers.astype(np.int64).tobytes())
        done += len(numbers)
        files.append(file)
    return Written(files, {})


def dataset_files(plan: DatasetPlan, form: Form, shards: int) -> list[tuple[WrittenFile, np.ndarray]]:
    """The files of the dataset, each with its example numbers in order."""
    written = []
    for split, shard, numbers in plan.files(shards, form.front):
        ending = f"-{shard:05d}-of-{shards:05d}" if shards > 1 else ""
        written.append((WrittenFile(f"{split}{ending}.{form.container}", split), numbers))
    return written


def open_row_file(path: Path, exporter: Exporter, kind: Kind, form: Form) -> RowFile:
    """Open a new file for rows of this form."""
    return (_ParquetFile if form.is_columnar else _JsonlFile)(path, exporter, kind, form)


class RowFile(Protocol):
    """A file to which examples are written."""

    def add(self, example: Example) -> None:
        """Write one example."""

    def close(self) -> None:
        """Flush and close the file."""


class _JsonlFile:
    def __init__(self, path: Path, exporter: Exporter, kind: Kind, form: Form) -> None:
        self._exporter, self._kind, self._write = exporter, kind, RowWriter(form)
        self._file = path.open("wb", buffering=1 << 20)

    def add(self, example: Example) -> None:
        self._file.write(on_one_line(self._exporter.line(example, self._kind, self._write)))
        self._file.write(b"\n")

    def close(self) -> None:
        self._file.close()


class _ParquetFile:
    def __init__(self, path: Path, exporter: Exporter, kind: Kind, form: Form) -> None:
        import pyarrow.parquet as pq

        from rollforge.exporters.arrow_types import arrow_schema

        self._exporter, self._kind, self._write = exporter, kind, RowWriter(form)
        self._schema = arrow_schema(exporter.table(kind, form), form.keys)
        self._rows: list[JsonFields] = []
        self._writer = pq.ParquetWriter(path, self._schema)

    def add(self, example: Example) -> None:
        self._rows.append(_without_raw(self._exporter.row(example, self._kind, self._write)))
        if len(self._rows) >= PARQUET_ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []


def _without_raw(row: JsonFields) -> JsonFields:
    """Decode token arrays from JSON text to numbers, as Parquet requires."""
    for name, value in row.items():
        if isinstance(value, list) and value and isinstance(value[0], msgspec.Raw):
            row[name] = [msgspec.json.decode(item) for item in value]
    return row
