"""Reads `lineage.parquet` and `fates.parquet` of a dataset: known columns only, each with the type it must have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rollforge.store.reading import parquet_file

if TYPE_CHECKING:
    import pyarrow as pa

ROLLOUT_TYPES = {
    "source_line": "int64",
    "run": "string",
    "task": "int64",
    "rollout": "int64",
    "reward": "float64",
    "verifier": "string",
}
"""Column → Arrow type of what identifies a rollout; a pair has each once more, named `rejected_…`."""

TYPES = {
    "file": "string",
    "line": "int64",
    "fate": "string",
    **ROLLOUT_TYPES,
    **{f"rejected_{name}": kind for name, kind in ROLLOUT_TYPES.items()},
}
COMPLETE = ("file", "line", "fate")
"""Columns without missing values."""
BATCH_ROWS = 65_536


def lineage_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows in file order, some at a time.

    Args:
        columns: required columns.

    Raises:
        DataError: the file is damaged, or a column is missing or has values of another type.
    """
    import pyarrow as pa

    with parquet_file(path, columns=tuple(columns), hint="prepare the dataset again") as file:
        yield _typed(file.schema_arrow.empty_table())
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            yield _typed(pa.Table.from_batches([batch]))


def _typed(table: pa.Table) -> pa.Table:
    import pyarrow as pa

    names = [name for name in table.column_names if name in TYPES]
    typed = {}
    for name in names:
        if names.count(name) > 1:
            raise pa.ArrowInvalid(f"two columns are named {name!r}")
        typed[name] = table.column(name).cast(pa.type_for_alias(TYPES[name]))
        if name in COMPLETE and typed[name].null_count:
            raise pa.ArrowInvalid(f"the column {name!r} has missing values")
    return pa.table(typed)
