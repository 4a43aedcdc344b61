"""This module reads columns straight from the parts, for what needs no SQL: a database costs more to start than most profiles take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rollforge.index.kinds import ARROW_TYPES, COLUMNS, Kind
from rollforge.index.tables import Source, column_name


def stored_names(
    kind: Kind, numbers: Sequence[str], texts: Sequence[str]
) -> dict[str, tuple[str, pa.DataType]]:
    """The columns that can be read so: name → name and type in the parts."""
    fixed = {"offset": "int", "length": "int", **COLUMNS[kind]}
    known = {name: (name, ARROW_TYPES[column]) for name, column in fixed.items()}
    known |= {column_name(name): (f"t:{name}", pa.string()) for name in texts if name not in numbers}
    known |= {column_name(name): (f"n:{name}", pa.float64()) for name in numbers}
    return {"reward": ("n:reward", pa.float64()), **known} if kind == "rollouts" else known


def read_columns(sources: Sequence[Source], columns: dict[str, tuple[str, pa.DataType]]) -> pa.Table:
    """These columns of all rows, in the order of the files; missing where a part does not have them."""
    schema = pa.schema([(name, kind) for name, (_, kind) in columns.items()])
    tables = []
    for source in sources:
        for part in source.state.all_parts():
            tables.append(_read_part(str(source.folder / part), columns))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _read_part(path: str, columns: dict[str, tuple[str, pa.DataType]]) -> pa.Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        present = set(file.schema_arrow.names)
        stored = [name for name, _ in columns.values() if name in present]
        table = file.read(columns=stored, use_threads=False)
        rows = file.metadata.num_rows
    arrays = [
        table.column(name) if name in present else pa.chunked_array([pa.nulls(rows, kind)])
        for name, kind in columns.values()
    ]
    return pa.table(arrays, names=list(columns))


def spans(sources: Sequence[Source]) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins in its file, and how long it is."""
    found = read_columns(sources, {name: (name, pa.int64()) for name in ("offset", "length")})
    return (
        np.asarray(found.column("offset").to_numpy(), dtype=np.int64),
        np.asarray(found.column("length").to_numpy(), dtype=np.int64),
    )


def keys(sources: Sequence[Source]) -> pa.Table:
    """What `keys.resolve` needs of all rows."""
    names = ("task", "rollout", "prompt_hash")
    found = read_columns(sources, {name: (name, pa.int64()) for name in names})
    files = [np.full(source.state.counts("rows"), source.file_no, dtype=np.int64) for source in sources]
    found = found.append_column("row", pa.array(np.arange(found.num_rows, dtype=np.int64)))
    numbers = np.concatenate(files) if files else np.zeros(0, dtype=np.int64)
    return found.append_column("file_no", pa.array(numbers))
