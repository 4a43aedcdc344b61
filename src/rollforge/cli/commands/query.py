"""`rollforge query`: SQL over a run's index."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rollforge.cli.commands.reading_flags import check_count, strict_exit
from rollforge.cli.converters import Flag, within
from rollforge.cli.render.console import say
from rollforge.cli.render.query import Format, print_result, write_result
from rollforge.errors import Exit, UsageError
from rollforge.statistics.counts import count_of

EXAMPLE = 'rollforge query runs/first "select reward, count(*) from rollouts group by 1"'


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
    workers: Annotated[int | None, within(1, 1024)] = None,
    json: Flag = False,
) -> Exit:
    """Ask a question in SQL over the tables `rollouts`, `tasks` and `failures`; nothing else can be read or changed.

    Columns: rollforge query RUN "describe rollouts" names them all. Numbers of the rows are columns under their own names
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
    from rollforge.store.outputs import refuse_output

    check_count("limit", limit)
    if len(run) == 1 and Path(sql).exists() and not Path(run[0]).exists():
        raise UsageError(
            "query takes the run first, then the SQL", hint=shlex.join(["rollforge", "query", sql, *run])
        )
    chosen = _format(format, out, json=json)
    if out is not None:
        refuse_output(out, reads=run)
    with open_index(run, verifier=verifier, workers=workers) as index:
        result = index.select(sql)
        if out is not None:
            write_result(result, out, chosen)
            say(f"wrote {count_of(result.num_rows, 'row')} to {out}")
        else:
            print_result(result, chosen, limit)
        return strict_exit(index, is_strict=strict)


def _format(format: Format | None, out: Path | None, *, json: bool) -> Format:
    endings: dict[str, Format] = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
    if json:
        other = format or (endings.get(out.suffix) if out is not None else None)
        if other not in (None, "json"):
            what = f"--format {format}" if format else f"--out {out}"
            raise UsageError(f"--json and {what} contradict each other", hint="leave out --json")
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
