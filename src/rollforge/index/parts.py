"""Write and read the Parquet parts of an index.

Columns that need no SQL are read directly, because starting DuckDB takes longer than most profiles.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollforge.errors import DataError
from rollforge.index.arrow import ARROW_TYPES, arrow_array, arrow_floats, flags, floats, ints, is_known
from rollforge.index.schema import COLUMNS, LINE_COLUMNS, ColumnType, Kind, literal, quoted, stored_name
from rollforge.index.state import IndexedFile, IndexedFiles, PartFile, checksum
from rollforge.records import ATTEMPT_KEY, FAILURE_KEY, ROLLOUT_KEY, TASK_KEY
from rollforge.statistics.stats import Floats, Ints, distinct
from rollforge.store.atomic import sync_file

SKIPPED = "verification_skipped"
MASKED = "mask_sample"
UNMEASURED = (SKIPPED, MASKED)
"""Fields with which NeMo Gym marks (by a 1) that the reward in the row is not a measurement."""
MARK_VALUES = {"true": 1.0, "1": 1.0, "false": 0.0, "0": 0.0}
"""Text values of such marks, as some tools write them."""

KEY_COLUMNS = {TASK_KEY: "task", ROLLOUT_KEY: "rollout", ATTEMPT_KEY: "attempt"}
NOT_WHOLE = "{name}: expected a whole number, got {value:g}"
TOO_LARGE = "{name}: {value:g} is too large to differ from its neighbours"

NotedLines = dict[tuple[int, int], list[str]]
"""Notes by (line, offset)."""

CODED = pa.dictionary(pa.int32(), pa.string())
"""Type of a dictionary-encoded text column: most texts of a run repeat."""

_SQL_TYPES: dict[ColumnType, str] = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}
_NAME = re.compile(r"(\d+)-(\d+)-\w+\.parquet")
_WRITING: dict[str, object] = {
    "compression": "lz4",
    "use_dictionary": ["agent", "model", "finish_reason", "verifier", "fingerprint", "mode"],
    "write_statistics": ["task", "rollout"],  # queries may skip parts by task, hardly by anything else
    "store_schema": False,  # without Arrow's schema, dictionaries are read as plain texts
}


# Rows → the table of a part


def too_large(number: float) -> bool:
    """Whether a float is so large that adjacent floats differ by more than 1."""
    return abs(number) >= 2**53


def part_table(
    columns: Mapping[str, pa.Array], numbers: Mapping[str, Floats], texts: Mapping[str, pa.Array]
) -> pa.Table:
    """Table of one part: fixed columns, discovered numbers (NaN for missing), discovered texts."""
    numbers, texts = _marks_as_numbers(numbers, texts)
    named = dict(columns)
    for name, values in numbers.items():
        if name not in KEY_COLUMNS:
            measured = _measured(values, numbers, texts) if name == "reward" else values
            named[stored_name("n", name)] = arrow_floats(measured)
    named |= {stored_name("t", name): words for name, words in texts.items() if name not in KEY_COLUMNS}
    return pa.table(named)


def _marks_as_numbers(
    numbers: Mapping[str, Floats], texts: Mapping[str, pa.Array]
) -> tuple[Mapping[str, Floats], Mapping[str, pa.Array]]:
    """Convert marks that a tool wrote as text ("true") to numbers, since readers look for them there."""
    written = [name for name in UNMEASURED if name in texts]
    if not written:
        return numbers, texts
    merged = dict(numbers)
    for name in written:
        marks = [MARK_VALUES.get(str(word).strip().lower(), np.nan) for word in texts[name].to_pylist()]
        merged[name] = np.where(np.isnan(marks), merged.get(name, np.nan), marks)
    return merged, {name: words for name, words in texts.items() if name not in written}


def _measured(reward: Floats, numbers: Mapping[str, Floats], texts: Mapping[str, pa.Array]) -> Floats:
    """Rewards that are measurements; NaN if the row marks its reward as none."""
    for name in UNMEASURED:
        if name in numbers:
            reward = np.where(numbers[name] == 1, np.nan, reward)
    if FAILURE_KEY in texts:
        has_failed = is_known(pa.chunked_array([texts[FAILURE_KEY]]))
        reward = np.where(has_failed, np.nan, reward)
    return reward


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows from tables of different readers, merged in file order."""
    if len(tables) == 1:
        return tables[0]
    plain = [_without_dictionaries(table) for table in tables]
    return pa.concat_tables(plain, promote_options="default").sort_by("line")


def _without_dictionaries(table: pa.Table) -> pa.Table:
    for position, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(position, field.name, table.column(position).cast(pa.string()))
    return table


def make_folder(folder: Path) -> None:
    """Make a folder that others cannot write; raise if a link or a file has the name."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o775)
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise DataError(f"{folder}: not a folder", hint="remove it; the index is made there")


def write_part(table: pa.Table, path: Path) -> PartFile:
    """Write a part durably. A column without nulls is stored as such, which makes it cheaper to write and read."""
    fields = [
        pa.field(one.name, one.type, nullable=table.column(one.name).null_count > 0) for one in table.schema
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(table.columns, schema=pa.schema(fields)), sink, **_WRITING)
    data = memoryview(sink.getvalue())
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        sync_file(file.fileno())
    return PartFile(path.name, table.num_rows, len(data), checksum(data))


def is_intact(folder: Path, part: PartFile) -> bool:
    """Whether a part exists and its bytes are unchanged."""
    try:
        handle = os.open(folder / part.name, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            if os.fstat(handle).st_size != part.size:
                return False
            return checksum(file.read()) == part.checksum
    except OSError:
        return False


def part_name(row: int, line: int, build: str) -> str:
    """Name of a part: the number of its first row in the file, and how many lines precede its own."""
    return f"{row}-{line}-{build}.parquet"


def part_start(name: str) -> tuple[int, int]:
    """The first row of a part and the number of lines before it, from its name."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    return int(match[1]), int(match[2])


# Parts → columns

SPAN = ("offset", "length")

StoredColumns = Mapping[str, tuple[str, pa.DataType]]
"""Requested columns, each with its name and type in the parts."""


def stored_columns(fields: Mapping[str, str], numbers: Container[str]) -> dict[str, tuple[str, pa.DataType]]:
    """All rollout columns that can be read without SQL → name and type in the parts."""
    fixed = {"row": "int", **LINE_COLUMNS, **COLUMNS["rollouts"]}
    column_by_name = {name: (name, ARROW_TYPES[column]) for name, column in fixed.items()}
    for name, column in fields.items():
        is_number = name in numbers or name == "reward"
        column_by_name[column] = (
            (stored_name("n", name), pa.float64()) if is_number else (stored_name("t", name), pa.string())
        )
    return column_by_name


def read_columns(files: Sequence[IndexedFile], columns: StoredColumns) -> pa.Table:
    """Columns of all rows, in file order; null if a part lacks them."""
    tables = []
    for part in _parts(files):
        table = part.read(columns)
        tables.append(
            pa.table([part.column(table, *stored) for stored in columns.values()], names=list(columns))
        )
    schema = pa.schema([(name, kind) for name, (_, kind) in columns.items()])
    return pa.concat_tables(tables) if tables else schema.empty_table()


def read_ints(files: Sequence[IndexedFile], *names: str) -> pa.Table:
    """Fixed integer columns."""
    return read_columns(files, {name: (name, pa.int64()) for name in names})


def spans_of(files: Sequence[IndexedFile], rows: Ints) -> tuple[Ints, Ints]:
    """Offsets and lengths of a few rows in their files; only the parts that contain them are read."""
    parts = list(_parts(files))
    starts = np.array([part.file.first_row + part_start(part.name)[0] for part in parts], dtype=np.int64)
    owner = np.searchsorted(starts, rows, side="right") - 1
    spans = np.empty((2, len(rows)), dtype=np.int64)
    for number in np.unique(owner).tolist():
        table = parts[number].read({name: (name, pa.int64()) for name in SPAN})
        mine = owner == number
        for position, name in enumerate(SPAN):
            spans[position, mine] = ints(table.column(name))[rows[mine] - starts[number]]
    return spans[0], spans[1]


def read_floats(files: Sequence[IndexedFile], columns: StoredColumns) -> dict[str, Floats]:
    """Number columns as floats, NaN for missing; read-only. Holds one part at a time."""
    count = sum(file.state.count("rows") for file in files)
    made = {name: _FloatColumn(count) for name in columns}
    for part in _parts(files):
        table = part.read(columns)
        for name, column in made.items():
            column.add(floats(part.column(table, *columns[name])))
    return {name: column.finish() for name, column in made.items()}


class _FloatColumn:
    """A column built from pieces; while all its values are equal, it takes no memory."""

    def __init__(self, count: int) -> None:
        self._values = np.empty(count)  # the system provides memory where it is written
        self._done = 0
        self._only: np.float64 | None = None

    def add(self, piece: Floats) -> None:
        """Append values."""
        first, self._done = self._done, self._done + len(piece)
        if not len(piece):
            return
        if not first:
            self._only = piece[0]
        if self._only is not None:
            if (np.isnan(piece) if np.isnan(self._only) else piece == self._only).all():
                return
            self._values[:first] = self._only
            self._only = None
        self._values[first : self._done] = piece

    def finish(self) -> Floats:
        """The complete column."""
        return self._values if self._only is None else np.broadcast_to(self._only, len(self._values))


def _parts(files: Sequence[IndexedFile]) -> Iterator[_Part]:
    return (_Part(file, part.name) for file in files for part in file.state.parts())


class _Part(NamedTuple):
    file: IndexedFile
    name: str

    def read(self, columns: StoredColumns) -> pa.Table:
        """Read those of the columns that the part contains."""
        coded = [name for name, kind in columns.values() if kind == CODED]
        footer = self.file.footers.get(self.name)
        with (
            damage_reported(self.file.folder),
            pa.OSFile(os.fspath(self.file.folder / self.name)) as data,
            pq.ParquetFile(data, read_dictionary=coded, metadata=footer) as file,
        ):
            self.file.footers[self.name] = file.metadata
            present = set(file.metadata.schema.names)
            stored = [name for name, _ in columns.values() if name in present]
            return file.read(columns=stored, use_threads=False)

    def column(self, table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """One column; row and line numbers are stored relative to the numbers in the part's name."""
        if name not in ("row", "line"):
            is_there = table.schema.get_field_index(name) >= 0
            return table.column(name) if is_there else pa.chunked_array([pa.nulls(table.num_rows, kind)])
        first_row, first_line = part_start(self.name)
        if name == "row":
            numbers = np.arange(table.num_rows, dtype=np.int64) + (self.file.first_row + first_row)
        else:
            numbers = ints(table.column(name)) + first_line
        return pa.chunked_array([arrow_array(numbers)])


@contextmanager
def damage_reported(folder: Path) -> Iterator[None]:
    """Report damage that occurs after opening; parts are checked when an index is opened."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(
            f"{folder}: the index was removed while it was read", hint="run the command again"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{folder}: the index was damaged while it was read: {error}", hint="run the command again"
        ) from error


class TaskLocations(NamedTuple):
    """Task numbers of a tasks file, ascending, and the location of each."""

    tasks: NDArray[np.int64]
    first_row: NDArray[np.int64]
    named: NDArray[np.int64]
    """How many rows have this task number: in NeMo Gym's inputs, one per rollout. 0 for a row without a number."""

    def rows(self, tasks: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those of these tasks that the file contains, with their rows, in file order."""
        wanted = distinct(np.asarray(tasks, dtype=np.int64))
        position = np.searchsorted(self.tasks, wanted)
        is_there = position < len(self.tasks)
        is_there[is_there] = self.tasks[position[is_there]] == wanted[is_there]
        position = position[is_there]
        position = position[np.argsort(self.first_row[position])]
        return self.tasks[position], self.first_row[position]


def task_locations(files: Sequence[IndexedFile], renamed: Mapping[int, Mapping[int, int]]) -> TaskLocations:
    """Location of each task; in a run of several files some tasks are renumbered."""
    keys = task_keys(files)
    values = ints(keys.column("task"))
    numbers = ints(keys.column("file_no"))
    for number, named in renamed.items():
        mine = np.flatnonzero(numbers == number)
        values[mine] = [named.get(task, task) for task in values[mine].tolist()]
    tasks, first, task_number = np.unique(values, return_index=True, return_inverse=True)
    is_named = flags(keys.column("is_named"))
    return TaskLocations(tasks, first, np.bincount(task_number[is_named], minlength=len(tasks)))


def task_keys(files: Sequence[IndexedFile]) -> pa.Table:
    """Identifying columns of tasks rows: file_no, task (the row's position if it has no number), prompt_hash."""
    stored = read_ints(files, "task", "prompt_hash")
    sizes = [file.state.count("rows") for file in files]
    positions = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(size) for size in sizes)])
    is_named = is_known(stored.column("task"))
    tasks = np.where(is_named, ints(stored.column("task"), -1), positions)
    numbers = np.repeat(np.array([file.file_no for file in files], dtype=np.int64), sizes)
    columns = {"file_no": arrow_array(numbers), "task": arrow_array(tasks), "is_named": arrow_array(is_named)}
    return pa.table(columns | {"prompt_hash": stored.column("prompt_hash")})


def rollout_keys(files: Sequence[IndexedFile]) -> pa.Table:
    """Identifying columns of rollouts: row, file_no, task, rollout, prompt_hash."""
    keys = read_ints(files, "task", "rollout", "prompt_hash")
    numbers = [np.full(file.state.count("rows"), file.file_no, dtype=np.int64) for file in files]
    keys = keys.append_column("row", arrow_array(np.arange(keys.num_rows, dtype=np.int64)))
    return keys.append_column("file_no", arrow_array(np.concatenate([np.zeros(0, dtype=np.int64), *numbers])))


# Parts → SQL


def base_sql(files: IndexedFiles, kind: Kind) -> str:
    """SQL for all rows of a kind, as stored in the parts."""
    selects = [_select(file) for file in files.by_kind[kind] if file.state.count("rows")]
    if selects:
        return " UNION ALL BY NAME ".join(selects)
    columns = (LINE_COLUMNS | COLUMNS[kind]).items()
    fixed = ", ".join(f"CAST(NULL AS {_SQL_TYPES[column]}) AS {quoted(name)}" for name, column in columns)
    return (
        f"SELECT CAST(NULL AS BIGINT) AS row, 0 AS first_row, 0 AS file_no, '' AS file, {fixed} WHERE false"
    )


def _select(file: IndexedFile) -> str:
    """SQL for the rows of one file; each part's name contains its first row and line."""
    paths = ", ".join(literal(str((file.folder / part.name).resolve())) for part in file.state.parts())
    start = "CAST(regexp_extract(filename, '(\\d+)-(\\d+)-[^/]+$', {}) AS BIGINT)"
    # Not hive_partitioning: a folder `task=math` further up would become a column.
    return (
        f"SELECT {file.first_row} + {start.format(1)} + file_row_number AS row, "
        f"{file.first_row} AS first_row, {file.file_no} AS file_no, "
        f"{literal(str(file.path))} AS file, * EXCLUDE (line, filename, file_row_number), "
        f"{start.format(2)} + line AS line FROM read_parquet([{paths}], "
        "union_by_name = true, file_row_number = true, filename = true, hive_partitioning = false)"
    )
