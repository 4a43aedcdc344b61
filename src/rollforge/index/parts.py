"""This module reads columns straight from the parts, for what needs no SQL: a database costs more to start than most profiles take."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from rollforge.errors import DataError
from rollforge.index.arrays import ARROW_TYPES, arrow_array, codes, floats, ints, texts
from rollforge.index.kinds import COLUMNS, PIECES, PLACES, stored_name
from rollforge.index.tables import Source
from rollforge.stats import Floats, distinct

if TYPE_CHECKING:
    import pyarrow.parquet as pq


Columns = Mapping[str, tuple[str, pa.DataType]]
"""What is asked for, each with its name and type in the parts."""

CODED = pa.dictionary(pa.int32(), pa.string())
"""The type of a text column that is read as numbers and a dictionary: most texts of a run are the same few."""

MOST_FOOTERS = 64
"""A run of a million rollouts has as many parts; those of a larger one are few beside its rows."""


def stored_names(fields: Mapping[str, str], numbers: Container[str]) -> dict[str, tuple[str, pa.DataType]]:
    """The columns of rollouts that can be read so: name → name and type in the parts."""
    fixed = {"row": "int", **PLACES, **COLUMNS["rollouts"]}
    known = {name: (name, ARROW_TYPES[column]) for name, column in fixed.items()}
    for name, column in fields.items():
        is_number = name in numbers or name == "reward"
        known[column] = (
            (stored_name("n", name), pa.float64()) if is_number else (stored_name("t", name), pa.string())
        )
    return known


def read_columns(sources: Sequence[Source], columns: Columns) -> pa.Table:
    """These columns of all rows, in the order of the files; missing where a part does not have them."""
    tables = []
    for part in _parts(sources):
        found = part.read(columns)
        tables.append(
            pa.table([part.column(found, *stored) for stored in columns.values()], names=list(columns))
        )
    schema = pa.schema([(name, kind) for name, (_, kind) in columns.items()])
    return pa.concat_tables(tables) if tables else schema.empty_table()


def read_floats(sources: Sequence[Source], columns: Columns) -> dict[str, Floats]:
    """These number columns as floats, NaN for missing; a part is let go of before the next one is read."""
    count = sum(source.state.counts("rows") for source in sources)
    made = {name: np.empty(count) for name in columns}
    first = 0
    for part in _parts(sources):
        found = part.read(columns)
        for name, values in made.items():
            values[first : first + found.num_rows] = floats(part.column(found, *columns[name]))
        first += found.num_rows
    return made


def _parts(sources: Sequence[Source]) -> Iterator[_Part]:
    return (_Part(source, part) for source in sources for part in source.state.all_parts())


class _Part(NamedTuple):
    source: Source
    name: str

    def read(self, columns: Columns) -> pa.Table:
        """Of these columns, at least those that the part has."""
        table = self.source.tables.get(self.name)
        return _read_file(self.source, self.name, columns) if table is None else table

    def column(self, found: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """One of them; rows and lines are counted from the start of the range it was read from, which its path tells."""
        if name not in ("row", "line"):
            is_there = found.schema.get_field_index(name) >= 0
            return (
                _spelled(found.column(name), kind)
                if is_there
                else pa.chunked_array([pa.nulls(found.num_rows, kind)])
            )
        row0, line0 = (int(level.partition("=")[2]) for level in self.name.split("/")[:2])
        if name == "row":
            numbers = np.arange(found.num_rows, dtype=np.int64) + (self.source.first_row + row0)
        else:
            numbers = found.column(name).to_numpy() + line0
        return pa.chunked_array([arrow_array(numbers)])


def _read_file(source: Source, part: str, columns: Columns) -> pa.Table:
    """Of these columns, those that a part on disk has."""
    coded = [name for name, kind in columns.values() if kind == CODED]
    with _open_part(source, part, coded) as file:
        present = set(file.metadata.schema.names)
        stored = [name for name, _ in columns.values() if name in present]
        return file.read(columns=stored, use_threads=False)


def _spelled(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Texts of a table that was never written may stand there as numbers and a dictionary, or not, whatever is asked for."""
    is_coded = pa.types.is_dictionary(column.type)
    if is_coded == (kind == CODED):
        return column
    if not is_coded:
        return column.dictionary_encode()
    numbers, words = codes(column)
    return pa.chunked_array([texts(np.where(numbers < 0, len(words), numbers), words)])


def _open_part(source: Source, part: str, texts: Sequence[str] = ()) -> pq.ParquetFile:
    """A part to be read, these text columns as numbers and a dictionary."""
    import pyarrow.parquet as pq

    footer = source.footers.get(part)
    try:
        file = pq.ParquetFile(str(source.folder / part), metadata=footer, read_dictionary=texts)
    except FileNotFoundError as error:
        raise DataError(
            f"{source.folder}: the index was removed while it was read", hint="run the command again"
        ) from error
    if footer is None and len(source.footers) < MOST_FOOTERS:
        source.footers[part] = file.metadata
    return file


def spans(sources: Sequence[Source]) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins in its file, and how long it is."""
    found = read_columns(sources, {name: (name, pa.int64()) for name in ("offset", "length")})
    return (
        np.asarray(found.column("offset").to_numpy(), dtype=np.int64),
        np.asarray(found.column("length").to_numpy(), dtype=np.int64),
    )


def pieces(sources: Sequence[Source]) -> tuple[np.ndarray, np.ndarray]:
    """Where each rollout's line begins; and, a column per rollout, where its prompt and agent stand in it, or zeros."""
    kinds = {"offset": pa.int64()} | dict.fromkeys(PIECES, pa.int32())
    found = read_columns(sources, {name: (name, kind) for name, kind in kinds.items()})
    places = np.stack([ints(found.column(name)).astype(np.int32) for name in PIECES])
    return ints(found.column("offset")), places


class TaskPlaces(NamedTuple):
    """The tasks of a tasks file, ascending, and where each stands."""

    tasks: np.ndarray
    first_row: np.ndarray
    named: np.ndarray
    """How many rows name the task: NeMo Gym's inputs do so once per rollout. 0 for a row that has no number but its place."""

    def rows(self, tasks: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Those of these tasks that the file has, and the row of each, in the order of the file."""
        wanted = distinct(np.asarray(tasks, dtype=np.int64))
        place = np.searchsorted(self.tasks, wanted)
        is_there = place < len(self.tasks)
        is_there[is_there] = self.tasks[place[is_there]] == wanted[is_there]
        place = place[is_there]
        place = place[np.argsort(self.first_row[place])]
        return self.tasks[place], self.first_row[place]


def task_places(sources: Sequence[Source], renamed: Mapping[int, Mapping[int, int]]) -> TaskPlaces:
    """Where each task stands; a row without a number has that of its place, and of several files some are renumbered."""
    found = task_keys(sources)
    values = np.array(found.column("task").to_numpy())
    files = found.column("file_no").to_numpy()
    for number, named in renamed.items():
        mine = np.flatnonzero(files == number)
        values[mine] = [named.get(task, task) for task in values[mine].tolist()]
    tasks, first, place = np.unique(values, return_index=True, return_inverse=True)
    is_named = found.column("is_named").to_numpy()
    return TaskPlaces(tasks, first, np.bincount(place[is_named], minlength=len(tasks)))


def task_keys(sources: Sequence[Source]) -> pa.Table:
    """What the rows of tasks files are known by: file_no, task (its place in the file, where it has no number), prompt_hash."""
    found = read_columns(sources, {name: (name, pa.int64()) for name in ("task", "prompt_hash")})
    sizes = [source.state.counts("rows") for source in sources]
    empty = np.zeros(0, dtype=np.int64)
    places = np.concatenate([empty, *(np.arange(size) for size in sizes)])
    is_named = found.column("task").is_valid().to_numpy()
    tasks = np.where(is_named, found.column("task").fill_null(-1).to_numpy(), places)
    files = np.repeat(np.array([source.file_no for source in sources], dtype=np.int64), sizes)
    return pa.table(
        {"file_no": files, "task": tasks, "is_named": is_named, "prompt_hash": found.column("prompt_hash")}
    )


def have_plain_keys(sources: Sequence[Source]) -> bool:
    """Whether the rows are one file's, each with a key of its own."""
    return len(sources) == 1 and sources[0].state.has_plain_keys


def keys(sources: Sequence[Source]) -> pa.Table:
    """What `keys.resolve` needs of all rows."""
    names = ("task", "rollout", "prompt_hash")
    found = read_columns(sources, {name: (name, pa.int64()) for name in names})
    files = [np.full(source.state.counts("rows"), source.file_no, dtype=np.int64) for source in sources]
    found = found.append_column("row", arrow_array(np.arange(found.num_rows, dtype=np.int64)))
    numbers = np.concatenate(files) if files else np.zeros(0, dtype=np.int64)
    return found.append_column("file_no", arrow_array(numbers))
