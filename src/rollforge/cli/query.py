"""`rollforge query`: SQL over a run's index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.metrics import Flag, strict_exit
from rollforge.cli.output import encode_json, out, print_json, say
from rollforge.errors import Exit, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

EXAMPLE = 'rollforge query runs/math "select task, avg(reward) as mean from rollouts group by task order by mean limit 10"'

Format = Literal["table", "csv", "json", "parquet"]


def query(
    run: Annotated[list[str], Parameter(name="run")],
    sql: str,
    /,
    *,
    format: Annotated[Format | None, Parameter(name=["--format", "-f"])] = None,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    limit: Annotated[int, Parameter(name=["--limit", "-n"])] = 200,
    verifier: str | None = None,
    strict: Flag = False,
    workers: int | None = None,
    json: Flag = False,
) -> Exit:
    """Ask a question in SQL over the tables `rollouts`, `tasks` and `failures`; nothing else can be read or changed.

    Columns: rollforge query RUN "describe rollouts" names them all. Numbers of the rows stand under their own names
    ("reward_components.format" and the like in double quotes).

    Parameters
    ----------
    run
        A rollouts file, its folder, or several files (or a glob) read as one run.
    sql
        One SELECT, as DuckDB reads it.
    format
        How to print the result. Default: table; for --out what the file's ending says.
    out
        Write the result to this file (.csv, .json or .parquet) instead of printing it.
    limit
        Rows shown in a table; csv, json and parquet are always whole.
    verifier
        Whose verdicts count. Default: the run's verdict of record, else the inline ones.
    strict
        Exit with code 2 when a line cannot be read or is odd.
    workers
        Readers at once for the first pass over the text.
    json
        The same as --format json.
    """
    from rollforge.index import open_index

    chosen = _format(format, out, json=json)
    with open_index(run, verifier=verifier, workers=workers) as index:
        result = index.select(sql)
        if out is not None:
            _write(result, out, chosen)
            say(f"wrote {result.num_rows:,} rows to {out}")
        else:
            _print(result, chosen, limit)
        return strict_exit(index, is_strict=strict)


def _format(format: Format | None, out: Path | None, *, json: bool) -> Format:
    endings: dict[str, Format] = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
    if json:
        return "json"
    if format is not None:
        return format
    if out is None:
        return "table"
    if out.suffix not in endings:
        raise UsageError(
            f"{out}: cannot tell the format from this ending", hint="add --format csv, json or parquet"
        )
    return endings[out.suffix]


def _as_json(result: pa.Table) -> dict[str, object]:
    columns = [column.to_pylist() for column in result.columns]
    return {"columns": result.column_names, "rows": [list(row) for row in zip(*columns, strict=True)]}


def _print(result: pa.Table, chosen: Format, limit: int) -> None:
    if chosen == "json":
        print_json(_as_json(result))
    elif chosen == "table":
        _print_table(result, limit)
    else:
        _dump(result, sys.stdout.buffer, chosen)
        sys.stdout.buffer.flush()


def _write(result: pa.Table, path: Path, chosen: Format) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if chosen in ("json", "table"):
        path.write_bytes(encode_json(_as_json(result)) + b"\n")
        return
    with path.open("wb") as file:
        _dump(result, file, chosen)


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
    """The result with lists, records and the like as JSON texts: CSV has no other way to hold them."""
    import pyarrow as pa

    kinds = pa.types
    for place, field in enumerate(result.schema):
        if kinds.is_nested(field.type) or kinds.is_interval(field.type) or kinds.is_binary(field.type):
            values = result.column(place).to_pylist()
            texts = [None if value is None else encode_json(value).decode() for value in values]
            result = result.set_column(place, field.name, pa.array(texts, pa.string()))
    return result


def _print_table(result: pa.Table, limit: int) -> None:
    from rich.table import Table
    from rich.text import Text

    from rollforge.cli.figures import short

    table = Table(box=None, pad_edge=False, header_style="dim")
    shown = result.slice(0, limit)
    for field in result.schema:
        is_number = str(field.type) in ("int64", "double", "int32", "float", "uint64") or "decimal" in str(
            field.type
        )
        table.add_column(field.name, justify="right" if is_number else "left", overflow="fold")
    for row in zip(*(column.to_pylist() for column in shown.columns), strict=True):
        table.add_row(
            *(
                Text(short(cell) if isinstance(cell, float) else "" if cell is None else str(cell))
                for cell in row
            )
        )
    out().print(table)
    if result.num_rows > limit:
        say(f"{result.num_rows - limit:,} more rows; see them with --limit {result.num_rows} or --out FILE")
