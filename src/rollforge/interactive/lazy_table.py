"""A run's rollouts, tasks and failures as lazy tables: reading is deferred to the first access, and reads only columns.

Each access opens the index, which is extended if the run has grown. Texts stay in the file; `rows()` reads them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields
from rollforge.store.reading import read_row

if TYPE_CHECKING:
    import pyarrow as pa

TableName = Literal["rollouts", "tasks", "failures"]

ROWS_AT_ONCE = 4096
"""Rows converted to Python objects at a time while a table is iterated."""
SHOWN_ROWS = 10
SHOWN_COLUMNS = 12


class _Query(msgspec.Struct, frozen=True):
    """Filter, columns, order and limit of a table."""

    columns: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    order: str | None = None
    limit: int | None = None


class Table:
    """A lazy table of a run; `where`, `select`, `sort` and `head` return a narrower table."""

    def __init__(
        self,
        paths: Sequence[Path],
        name: TableName,
        *,
        verifier: str | None = None,
        query: _Query = _Query(),  # noqa: B008  (frozen)
    ) -> None:
        self._paths = list(paths)
        self._name: TableName = name
        self._verifier = verifier
        self._query = query

    def __call__(self, *, where: str | None = None, columns: Sequence[str] = ()) -> Table:
        """A table restricted by a condition, with some of its columns."""
        narrowed = self.where(where) if where is not None else self
        return narrowed.select(*columns) if columns else narrowed

    def where(self, condition: str) -> Table:
        """Only rows for which this SQL expression holds: `reward > 0.5 and turns = 1`."""
        return self._narrowed(conditions=(*self._query.conditions, condition))

    def select(self, *columns: str) -> Table:
        """Only these columns."""
        table_columns = self._all_columns()
        unknown = next((name for name in columns if name not in table_columns), None)
        if unknown is not None:
            from rollforge.registry import did_you_mean

            raise UsageError(
                f"{self._name} has no column {unknown!r}{did_you_mean(unknown, table_columns)}",
                hint=f"it has: {', '.join(table_columns)}",
            )
        return self._narrowed(columns=columns)

    def sort(self, order: str) -> Table:
        """Sort the table: `reward desc, answer_chars`."""
        return self._narrowed(order=order)

    def head(self, rows: int = SHOWN_ROWS) -> Table:
        """The first rows only."""
        return self._narrowed(limit=rows)

    def _narrowed(self, **changes: Any) -> Table:
        query = msgspec.structs.replace(self._query, **changes)
        return Table(self._paths, self._name, verifier=self._verifier, query=query)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._query.columns) or self._all_columns()

    def __len__(self) -> int:
        count: int = self._select("count(*) AS n", ordered=False).column(0)[0].as_py()
        return count if self._query.limit is None else min(count, self._query.limit)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[JsonFields]:
        """The rows as dicts of columns, a few thousand of them in memory at a time."""
        for batch in self.to_arrow().to_batches(max_chunksize=ROWS_AT_ONCE):
            yield from batch.to_pylist()

    def rows(self) -> Iterator[JsonFields]:
        """Full rows of the file behind a table of rollouts, with texts, one at a time."""
        if self._name != "rollouts":
            raise UsageError(f"{self._name} has no rows of text", hint="iterate over the table itself")
        from rollforge.index import open_index

        with open_index(self._paths, verifier=self._verifier) as index:
            rows = index.select(self._sql("row"), label=self._label()).column(0).to_pylist()
            yield from map(read_row, index.read(rows))

    def to_arrow(self) -> pa.Table:
        """The table as an in-memory Arrow table."""
        chosen = ", ".join(map(_quoted, self._query.columns)) or "*"
        return self._select(chosen)

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        try:
            import pandas  # noqa: F401  (Arrow imports it)
        except ImportError as error:
            raise UsageError("pandas is not installed", hint="pip install pandas") from error
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """The table as a Polars DataFrame."""
        try:
            import polars
        except ImportError as error:
            raise UsageError("polars is not installed", hint="pip install polars") from error
        return polars.from_arrow(self.to_arrow())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's stream interface for other libraries: `polars.DataFrame(run.rollouts)`, `duckdb.from_arrow(…)`."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        narrowing = "".join(f".where({text!r})" for text in self._query.conditions)
        return f"Table({self._name} of {', '.join(map(str, self._paths))}){narrowing}"

    def _repr_html_(self) -> str:
        from rollforge.text_safety.markup import table, tag

        first = self.head(min(SHOWN_ROWS, self._query.limit or SHOWN_ROWS)).to_arrow()
        names = first.column_names[:SHOWN_COLUMNS]
        cells = [[_cell(row[name]) for name in names] for row in first.select(names).to_pylist()]
        left = len(first.column_names) - len(names)
        caption = f"{len(self):,} {self._name}" + (f", {left} more columns" if left else "")
        return str(tag("div", table(names, cells), tag("p", caption)))

    # Questions to the index

    def _all_columns(self) -> list[str]:
        from rollforge.index import open_index

        with open_index(self._paths, verifier=self._verifier) as index:
            return index.columns(self._name)

    def _select(self, chosen: str, *, ordered: bool = True) -> pa.Table:
        from rollforge.index import open_index

        with open_index(self._paths, verifier=self._verifier) as index:
            return index.select(self._sql(chosen, ordered=ordered), label=self._label())

    def _sql(self, chosen: str, *, ordered: bool = True) -> str:
        query = self._query
        where = " AND ".join(f"({text})" for text in query.conditions)
        sql = f"SELECT {chosen} FROM {self._name}" + (f" WHERE {where}" if where else "")
        if not ordered:
            return sql
        by = query.order or {"rollouts": "row", "tasks": "task", "failures": "row"}[self._name]
        return f"{sql} ORDER BY {by}" + (f" LIMIT {query.limit}" if query.limit is not None else "")

    def _label(self) -> str:
        return f"{self._name}{''.join(f'.where({text!r})' for text in self._query.conditions)}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cell(value: object) -> str:
    if value is None:
        return "–"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"
