"""Result of a query as a table, CSV, JSON or Parquet, on stdout or in a file.

No value stops the output: a value that Python or Arrow cannot express (a date in the year 290000, infinity) is written as
DuckDB's text for it. Column names in machine-readable output are unique.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rollforge.cli.render.console import encode_json, print_json, say
from rollforge.cli.render.escape import in_one_line
from rollforge.cli.render.numbers import short
from rollforge.cli.render.table import GAP, Grid, TableColumn, cells_of, put, terminal_width
from rollforge.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["table", "csv", "json", "parquet"]

_MOMENT = re.compile(r"\b(started|at)\b")
"""Columns with timestamps in seconds since 1970, also inside `min(started)`."""
EARLIEST, LATEST = 1e9, 1e10
"""Range of plausible timestamps, 2001 to 2286; other numbers are no timestamps."""


def print_result(result: pa.Table, chosen: Format, limit: int) -> None:
    """Print the result on stdout."""
    if chosen == "table":
        _print_table(result, limit)
        return
    result = _with_own_names(result)
    if chosen == "json":
        print_json(_as_json(result))
    else:
        _dump(result, sys.stdout.buffer, chosen)
        sys.stdout.buffer.flush()


def write_result(result: pa.Table, path: Path, chosen: Format) -> None:
    """Write the result to a file, creating its folder; a failure keeps the old file."""
    data = _encoded(_with_own_names(result), chosen)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror or error}", hint="write to a folder that exists and is writable: --out"
        ) from error


def _encoded(result: pa.Table, chosen: Format) -> memoryview | bytes:
    import pyarrow as pa

    if chosen in ("json", "table"):
        return encode_json(_as_json(result)) + b"\n"
    file = pa.BufferOutputStream()
    _dump(result, file, chosen)
    return memoryview(file.getvalue())


def _with_own_names(result: pa.Table) -> pa.Table:
    """Rename repeated columns: a second `task` becomes `task_1`, and stderr says so."""
    taken, names = set(result.column_names), []
    for position, name in enumerate(result.column_names):
        number, own = 0, name
        if name in result.column_names[:position]:
            while own in taken:
                number += 1
                own = f"{name}_{number}"
            say(f"note: a second column {name!r} is written as {own!r}")
        taken.add(own)
        names.append(own)
    return result.rename_columns(names)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Convert a column to Python values; a value that Python cannot express becomes text."""
    try:
        return [_plain(value) for value in column.to_pylist()]
    except (OverflowError, ValueError):
        return [_value(value, text) for value, text in zip(column, _texts(column), strict=True)]


def _value(value: pa.Scalar, text: str | None) -> Any:
    try:
        return _plain(value.as_py())
    except (OverflowError, ValueError):
        return text


def _plain(value: Any) -> Any:
    """Write nanoseconds as text: Arrow returns pandas objects for them if pandas is installed, else raises."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return str(value) if type(value).__module__.partition(".")[0] == "pandas" else value


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Convert a column to DuckDB's text form."""
    import duckdb
    import pyarrow as pa

    with duckdb.connect(":memory:") as connection:
        connection.register("result", pa.table({"value": column}))
        return [text for (text,) in connection.execute("SELECT value::VARCHAR FROM result").fetchall()]


def _as_json(result: pa.Table) -> dict[str, object]:
    columns = [_values(column) for column in result.columns]
    return {"columns": result.column_names, "rows": [list(row) for row in zip(*columns, strict=True)]}


def _dump(result: pa.Table, file: object, chosen: Format) -> None:
    if chosen == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            pq.write_table(result, file)
        except pa.ArrowNotImplementedError as error:
            raise UsageError(f"parquet: {error}", hint="cast that column to text in the query") from error
        return
    import pyarrow.csv

    pyarrow.csv.write_csv(_flat(result), file)


def _flat(result: pa.Table) -> pa.Table:
    """Convert columns that CSV cannot hold to text: lists and records as JSON."""
    import pyarrow as pa

    kinds = pa.types
    for position, field in enumerate(result.schema):
        column = result.column(position)
        if kinds.is_nested(field.type) or kinds.is_interval(field.type) or kinds.is_binary(field.type):
            texts = [None if value is None else encode_json(value).decode() for value in _values(column)]
        elif isinstance(field.type, pa.BaseExtensionType) or not _is_in_range(column):
            texts = _texts(column)
        else:
            continue
        result = result.set_column(position, field.name, pa.array(texts, pa.string()))
    return result


def _is_in_range(column: pa.ChunkedArray) -> bool:
    """Whether every date and time is one that Arrow can write."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_temporal(column.type):
        return True
    try:
        pc.min_max(column).as_py()
    except (OverflowError, ValueError):
        return False
    return True


def _print_table(result: pa.Table, limit: int) -> None:
    shown = result.slice(0, limit)
    dated = [bool(_MOMENT.search(name)) for name in result.column_names]
    rows = [
        [_date(cell) if is_date else _cell(cell) for cell, is_date in zip(row, dated, strict=True)]
        for row in zip(*map(_values, shown.columns), strict=True)
    ]
    names = [in_one_line(name) for name in result.column_names]
    columns = [TableColumn(name, _is_number(field)) for name, field in zip(names, result.schema, strict=True)]
    sizes = [max(map(cells_of, texts)) for texts in zip(names, *rows, strict=True)]
    room = terminal_width()
    if room and rows and sum(sizes) + len(GAP) * (len(sizes) - 1) > room:
        _put_records(names, rows)
    else:
        table = Grid(*columns)
        for row in rows:
            table.add(*row)
        table.put()
    if result.num_rows > limit:
        say(f"{result.num_rows - limit:,} more rows; see them with --limit {result.num_rows} or --out FILE")


def _date(value: Any) -> str:
    """Write a timestamp as a date, for people; other numbers stay numbers."""
    if not isinstance(value, float) or not EARLIEST <= value <= LATEST:
        return _cell(value)
    return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _put_records(names: list[str], rows: list[list[str]]) -> None:
    """Print one value per line, for rows wider than the terminal."""
    size = max(map(cells_of, names))
    for number, row in enumerate(rows, 1):
        put(f"row {number}", "dim")
        for name, cell in zip(names, row, strict=True):
            put(f"{GAP}{name}{' ' * (size - cells_of(name))}{GAP}{cell}".rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return short(value)
    return "" if value is None else in_one_line(str(value))


def _is_number(field: pa.Field) -> bool:
    kind = str(field.type)
    return kind in ("int64", "double", "int32", "float", "uint64") or "decimal" in kind
