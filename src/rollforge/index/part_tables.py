"""This module makes the tables that parts hold, of columns that were read by whatever reader, and writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rollforge.index import fast_columns
from rollforge.index.arrays import ARROW_TYPES, arrow_array, arrow_floats
from rollforge.index.facts import NOT_WHOLE, TOO_LARGE
from rollforge.index.fast import FastRollouts
from rollforge.index.key_spans import KeySpan
from rollforge.index.keys import key_span
from rollforge.index.kinds import COLUMNS, PIECES, PLACES, Kind, stored_name
from rollforge.records import ATTEMPT_KEY, FAILURE_KEY, ROLLOUT_KEY, TASK_KEY

SKIPPED = "verification_skipped"
"""NeMo Gym's word that the reward beside it stands for none."""

_KEY_COLUMNS = {TASK_KEY: "task", ROLLOUT_KEY: "rollout", ATTEMPT_KEY: "attempt"}
_WRITING: dict[str, Any] = {
    "compression": "lz4",
    "use_dictionary": ["agent", "model", "finish_reason", "verifier", "fingerprint", "mode"],
    # A query may skip parts by the tasks they hold, hardly by anything else.
    "write_statistics": ["task", "rollout"],
    # Without Arrow's own schema, words are read as texts again, however they were written.
    "store_schema": False,
}


def fast_table(rows: FastRollouts, kind: Kind) -> tuple[pa.Table, dict[tuple[int, int], list[str]]]:
    """The ordinary rollouts, or the ordinary tasks, which have fewer columns; and what is odd about some, by line and offset."""
    notes: dict[tuple[int, int], list[str]] = {}

    def note(line: int, offset: int, text: str) -> None:
        notes.setdefault((line, offset), []).append(text)

    count = len(rows)
    made, numbers, texts = fast_columns.columns_of(rows, note, has_usage=kind == "rollouts")
    for row, text in without_keys(numbers):
        note(made["line"][row].as_py(), made["offset"][row].as_py(), text)
    columns = {name: pa.nulls(count, ARROW_TYPES[column]) for name, column in COLUMNS[kind].items()}
    wanted = {*columns, *PLACES, *(PIECES if kind == "rollouts" else ())}
    known = {name: values for name, values in made.items() if name in wanted}
    return named(columns | known, numbers, texts), notes


def named(
    columns: dict[str, pa.Array], numbers: Mapping[str, NDArray[np.float64]], texts: Mapping[str, pa.Array]
) -> pa.Table:
    """A table of the fixed columns and the discovered ones; the keys of a row are fixed columns, where a kind has them."""
    named = dict(columns)
    numbers = {**numbers, "reward": _given(numbers, texts)} if "reward" in numbers else numbers
    for name, values in numbers.items():
        key = _KEY_COLUMNS.get(name)
        if key in named:
            named[key] = _whole_numbers(values)
        elif key is None:
            named[stored_name("n", name)] = arrow_floats(values)
    named |= {stored_name("t", name): words for name, words in texts.items() if name not in _KEY_COLUMNS}
    return pa.table(named)


def _given(numbers: Mapping[str, NDArray[np.float64]], texts: Mapping[str, pa.Array]) -> NDArray[np.float64]:
    """The rewards that a verifier gave; NeMo Gym writes one beside the word that nothing was verified, or that verifying failed."""
    reward = numbers["reward"]
    if SKIPPED in numbers:
        reward = np.where(numbers[SKIPPED] == 1, np.nan, reward)
    if FAILURE_KEY in texts:
        known = np.asarray(texts[FAILURE_KEY].is_valid(), dtype=np.bool_)
        reward = np.where(known, np.nan, reward)
    return reward


def without_keys(numbers: Mapping[str, NDArray[np.float64]]) -> list[tuple[int, str]]:
    """Rows with a key that is no whole number, and what to say of them; the key is missing there."""
    found = [(name, numbers[name]) for name in _KEY_COLUMNS if name in numbers]
    return [
        (row, text.format(name=name, value=values[row]))
        for name, values in found
        for is_none, text in ((values % 1 > 0, NOT_WHOLE), (np.abs(values) >= 2**53, TOO_LARGE))
        for row in np.flatnonzero(is_none).tolist()
    ]


def _whole_numbers(found: NDArray[np.float64]) -> pa.Array:
    missing = np.isnan(found) | (np.abs(found) >= 2**53) | (found % 1 > 0)
    return arrow_array(np.where(missing, 0, found).astype(np.int64), missing)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables that different readers made, in the order of the file."""
    if len(tables) == 1:
        return tables[0]
    spelled = [_spelled_out(table) for table in tables]
    return pa.concat_tables(spelled, promote_options="default").sort_by("line")


def _spelled_out(table: pa.Table) -> pa.Table:
    """Words as texts instead of numbers and a dictionary, so that tables that number them differently can be joined."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    return table


def write(table: pa.Table, path: str) -> None:
    """Write a part; a column that every row has is stored as such, which spares writers and readers to say and see so row by row."""
    fields = [
        pa.field(one.name, one.type, nullable=table.column(one.name).null_count > 0) for one in table.schema
    ]
    pq.write_table(pa.Table.from_arrays(table.columns, schema=pa.schema(fields)), path, **_WRITING)


def span_of(table: pa.Table) -> KeySpan | None:
    """Between which keys those of a table of rollouts lie."""
    return key_span(table.column("task"), table.column("rollout"))
