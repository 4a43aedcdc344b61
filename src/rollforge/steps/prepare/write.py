"""This module writes rows into files of one folder, streaming, and starts over when a row shows that the form must change.

Files here are not yet a data set: they get their final place only after they have been read back (`recheck`). Starting over happens
when a message needs a key no earlier row has, when the loader would damage the chosen form, or when a column's first value
comes too late in the file, or only in another split, for the loader to learn its type; each can happen a few times at most.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np

from rollforge.exporters.base import Exporter, FormChanged, KeysGrew
from rollforge.exporters.examples import Example
from rollforge.exporters.guard import SURE_BYTES
from rollforge.exporters.messages import Inexpressible
from rollforge.exporters.template import Prover
from rollforge.exporters.texts import on_one_line
from rollforge.recipes.base import Ints
from rollforge.records import JsonObject
from rollforge.steps.prepare.copying import copy_rows
from rollforge.steps.prepare.examples import TOGETHER, Converter, Tally

Progress = Callable[[str, int, int], None]
"""Told (phase, done, total) now and then."""

REPORT_EVERY = 512
PARQUET_ROWS = 1024


@dataclass
class WrittenFile:
    """One file of the data set."""

    name: str
    split: str
    examples: array[int] = field(default_factory=lambda: array("q"))
    """Example numbers in the order of the lines."""


@dataclass
class Written:
    """All files, and what it took to write them."""

    files: list[WrittenFile]
    changes: list[str]
    """Why the form is not the one that was meant first."""
    lost: dict[int, str]
    """Number of each example that was not written → why."""

    @property
    def dropped(self) -> Counter[str]:
        """Why examples were not written, and how many for each reason."""
        return Counter(self.lost.values())

    @property
    def rows(self) -> int:
        return sum(len(file.examples) for file in self.files)


class _Late(Exception):
    """A column gets its first value too late in the first file."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def write_dataset(
    converter: Converter, folder: Path, container: str, shards: int, progress: Progress
) -> Written:
    """All examples of the plan as files in `folder`."""
    changes: list[str] = []
    front: list[int] = []
    exporter = converter.exporter
    while True:
        exporter.start_over()
        converter.tally = Tally()
        try:
            files = list(_write_splits(converter, folder, container, shards, front, progress))
            return Written(files, changes, converter.tally.lost)
        except KeysGrew as grown:
            exporter.keys = grown.keys
        except FormChanged as changed:
            exporter.shape_as = msgspec.structs.replace(exporter.shape_as, **changed.form)
            if exporter.shape_as.arguments == "text":
                exporter.shape_as = msgspec.structs.replace(exporter.shape_as, tools="system")
            changes += [f"{name} are written as {value}: {changed}" for name, value in changed.form.items()]
        except _Late as late:
            if converter.plan.split[late.number] != 0:
                converter.plan.swap_into_first(late.number, front, converter.pool.prompt)
                changes.append(
                    f"the prompt of example {late.number} was moved to {converter.plan.splits[0]}, the only one of its kind:"
                    " the loader learns all columns there"
                )
            front.insert(0, late.number)
            changes.append(
                f"example {late.number} was moved to the front, so that the loader learns its columns"
            )


class _Learning:
    """Watches that whatever a column may hold shows itself where the loader learns its types: early in the first file."""

    def __init__(self, front: list[int]) -> None:
        self._front = front
        self._seen: set[str] = set()
        self.is_first_file = True

    def watch(self, kinds: set[str], number: int, start: int) -> None:
        """Raise `_Late` when example `number`, at byte `start` of its file, is the first to have one of these and comes too late.

        A later split is always too late: its types are those of the first.
        """
        if kinds <= self._seen:
            return
        if (start > SURE_BYTES or not self.is_first_file) and number not in self._front:
            raise _Late(number)
        self._seen |= kinds


def _write_splits(
    converter: Converter, folder: Path, container: str, shards: int, front: list[int], progress: Progress
) -> Iterator[WrittenFile]:
    plan = converter.plan
    learning = _Learning(front)
    is_watched = container == "jsonl" and converter.exporter.is_inferred(plan.selection.kind)
    done = 0
    for split, name in enumerate(plan.splits):
        numbers = np.flatnonzero(plan.split == split)
        if split == 0 and front:
            numbers = np.concatenate([np.array(front), numbers[~np.isin(numbers, front)]])
        for shard, part in enumerate(np.array_split(numbers, shards)):
            ending = f"-{shard:05d}-of-{shards:05d}.{container}" if shards > 1 else f".{container}"
            file = WrittenFile(name + ending, name)
            watched = learning if is_watched else None
            converter.exporter.is_first_file = learning.is_first_file
            for count in _write_file(converter, folder / file.name, file, part, watched):
                progress("write", done + count, len(plan.split))
            learning.is_first_file = False
            done += len(part)
            yield file


def _write_file(
    converter: Converter, path: Path, file: WrittenFile, numbers: Ints, learning: _Learning | None
) -> Iterator[int]:
    """Write the examples; yields now and then how many have been dealt with."""
    if converter.is_copy:
        yield from copy_rows(converter.pool, converter.plan.selection, converter.exporter, numbers, path)
        file.examples.frombytes(numbers.astype(np.int64).tobytes())
        return
    with _open(path, converter) as sink:
        for count in _write_rows(converter, sink, file, numbers, learning):
            if count % REPORT_EVERY == 0:
                yield count


def _open(path: Path, converter: Converter) -> _Sink:
    return (
        _Lines(path, converter.prover)
        if path.suffix == ".jsonl"
        else _Columns(path, converter.exporter, converter)
    )


def _write_rows(
    converter: Converter, sink: _Sink, file: WrittenFile, numbers: Ints, learning: _Learning | None
) -> Iterator[int]:
    """Write the examples; yields how many have been dealt with."""
    exporter, tally = converter.exporter, converter.tally
    examples = converter.examples(numbers)
    done = 0
    while some := list(islice(examples, TOGETHER)):
        yield done
        done += len(some)
        for number, example in some:
            if isinstance(example, Inexpressible):
                tally.lost[number] = str(example)
                continue
            try:
                start = sink.add(exporter, example)
            except Inexpressible as error:
                tally.lost[number] = str(error)
                continue
            file.examples.append(number)
            if learning is not None and exporter.kinds:
                learning.watch(exporter.kinds, number, start)


class _Sink(Protocol):
    """Where rows go."""

    def __enter__(self) -> Any: ...
    def __exit__(self, kind: object, *_: object) -> None: ...
    def add(self, exporter: Exporter, example: Example) -> int:
        """Take one example; the bytes written before it."""


class _Lines:
    """A JSONL file."""

    def __init__(self, path: Path, prover: Prover | None) -> None:
        self._prover = prover
        self._file = path.open("wb", buffering=1 << 20)
        self._size = 0

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()

    def add(self, exporter: Exporter, example: Example) -> int:
        line = on_one_line(exporter.line(example))
        if self._prover is not None:
            self._prover.prove(msgspec.json.decode(line))
        self._file.write(line)
        self._file.write(b"\n")
        start = self._size
        self._size += len(line) + 1
        return start


class _Columns:
    """A Parquet file."""

    def __init__(self, path: Path, exporter: Exporter, converter: Converter) -> None:
        self._path = path
        self._exporter = exporter
        exporter.is_columnar = True
        self._kind = converter.plan.selection.kind
        self._prover = converter.prover
        self._rows: list[JsonObject] = []
        self._writer: Any = None

    def __enter__(self) -> _Columns:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()

    def add(self, exporter: Exporter, example: Example) -> int:
        row = _without_raw(exporter.row(example))
        if self._prover is not None:
            self._prover.prove(row)
        self._rows.append(row)
        if len(self._rows) >= PARQUET_ROWS:
            self._flush()
        return 0

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = self._exporter.arrow_schema("", self._kind)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, schema)
        self._writer.write_table(pa.Table.from_pylist(self._rows, schema=schema))
        self._rows = []


def _without_raw(row: JsonObject) -> JsonObject:
    """Token arrays are carried as their JSON text; Parquet wants the numbers."""
    for name, value in row.items():
        if isinstance(value, list) and value and isinstance(value[0], msgspec.Raw):
            row[name] = [msgspec.json.decode(item) for item in value]
    return row
