"""This module opens a run as tables: `rollouts`, `tasks`, `failures`, over the parts and never over the text.

`open_index` brings the parts up to date first. What counts (the last of two rows with one key, the chosen verifier's verdict) is
decided here, so that every command sees the same rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import pyarrow as pa

from rollforge.errors import UsageError
from rollforge.index.cache import Cache, State
from rollforge.index.kinds import COLUMNS, PLACES, Kind
from rollforge.index.lines import read_spans
from rollforge.index.overlay import Duplicate, Overlay, make_overlay
from rollforge.index.scan import BadLineAt
from rollforge.index.sources import find_runs, read_manifest, tasks_file
from rollforge.index.sql import check_where, fetch, literal, lock_down, quoted, run_select
from rollforge.records import TASK_KEY, JsonObject
from rollforge.store import RunFiles

MEMORY_LIMIT = "256MB"
"""What DuckDB may hold before it spills to disk."""


class Source(msgspec.Struct):
    """One file of one kind, indexed."""

    path: Path
    folder: Path
    state: State
    first_row: int
    """Rows of the files before it."""


def open_index(
    runs: str | Path | Sequence[str | Path], *, verifier: str | None = None, workers: int | None = None
) -> Index:
    """The run (or several files as one run) as tables; builds or extends what is not up to date.

    Args:
        verifier: whose verdicts count; else the manifest's verdict of record, else the inline ones and, for rows that have
            none, the newest later one.
        workers: processes for the pass over the text; by default one per core for large files.
    """
    return Index(find_runs(runs), verifier=verifier, workers=workers)


class Index:
    """A run as tables. Close it, or use it in a `with` statement, to let go of its files."""

    def __init__(
        self, runs: Sequence[RunFiles], *, verifier: str | None = None, workers: int | None = None
    ) -> None:
        self.runs = list(runs)
        self.manifests = [read_manifest(files) for files in self.runs]
        self._held = ExitStack()
        self._sources: dict[Kind, list[tuple[int, Source]]] = {
            "rollouts": [], "tasks": [], "failures": [], "verdicts": []
        }  # fmt: skip
        for number, files in enumerate(self.runs):
            for kind, path in _files(files):
                self._open(number, kind, path, files.index, workers)
        self._connection = duckdb.connect(":memory:")
        self._connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        self._connection.execute("SET preserve_insertion_order = true")
        for kind in self._sources:
            self._connection.execute(f"CREATE VIEW base_{kind} AS {self._base(kind)}")
        chosen = verifier or self._verdict_of_record()
        self._overlay = make_overlay(
            self._connection,
            folder=self._folders()[0],
            state_digest=self._digest(),
            has_verdicts=bool(self._rows("verdicts")),
            has_inline_reward="reward" in self._discovered("rollouts", "numbers"),
            verdict_numbers=self._discovered("verdicts", "numbers"),
            verdict_texts=self._discovered("verdicts", "texts"),
            verifier=chosen,
        )
        self._create_views()
        self._connection.execute(f"SET temp_directory = {literal(str(self._folders()[0] / 'spill'))}")
        lock_down(self._connection, [str(folder.resolve()) for folder in self._folders()])

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; the index itself stays."""
        self._connection.close()
        self._held.close()

    def _open(self, number: int, kind: Kind, path: Path, folder: Path, workers: int | None) -> None:
        cache = Cache(path, kind, folder)
        cache.refresh(
            workers
        )  # builds, and sweeps what it replaced, before this reader stands in its own way
        self._held.enter_context(cache.reading())
        state = cache.refresh(workers)
        before = self._sources[kind]
        first_row = before[-1][1].first_row + before[-1][1].state.counts("rows") if before else 0
        before.append((number, Source(path, cache.folder, state, first_row)))

    # What the run holds

    @property
    def verifier(self) -> str | None:
        """Whose verdicts count, when one was chosen."""
        return self._overlay.verifier

    @property
    def rejects(self) -> list[BadLineAt]:
        """Lines that are no rows, and rows with something odd, each with its place (`is_kept` tells them apart)."""
        return [bad for _, source in self._sources["rollouts"] for bad in source.state.all_listed()]

    @property
    def rejected_lines(self) -> int:
        """How many lines are no rows."""
        return sum(source.state.counts("rejected") for _, source in self._sources["rollouts"])

    @property
    def noted_lines(self) -> int:
        """How many rows count although something about them is odd."""
        return sum(source.state.counts("noted") for _, source in self._sources["rollouts"])

    @property
    def duplicates(self) -> list[Duplicate]:
        """Rows overruled by a later one with the same (task, rollout)."""
        return self._overlay.duplicates

    @property
    def duplicate_count(self) -> int:
        """How many rows are overruled (`duplicates` lists the first ones)."""
        return self._overlay.duplicate_count

    @property
    def expected(self) -> int | None:
        """Rollouts the run was asked for; None for files that rollforge did not collect."""
        wanted = [manifest.get("expected") for manifest in self.manifests]
        return sum(wanted) if all(isinstance(number, int) for number in wanted) else None

    def failed(self) -> dict[str, int]:
        """Rollouts that failed and never finished: class of the last failure → how many."""
        if not self._rows("failures"):
            return {}
        found = self._connection.execute(
            "WITH last AS (SELECT file_no, task, rollout, class FROM base_failures WHERE task IS NOT NULL QUALIFY "
            "row_number() OVER (PARTITION BY file_no, task, rollout ORDER BY row DESC) = 1) "
            "SELECT coalesce(class, 'unknown'), count(*) FROM last ANTI JOIN base_rollouts b ON b.file_no = last.file_no "
            "AND b.task = last.task AND b.rollout IS NOT DISTINCT FROM last.rollout GROUP BY 1 ORDER BY 2 DESC, 1"
        ).fetchall()
        return {str(kind): int(count) for kind, count in found}

    @cached_property
    def numbers(self) -> list[str]:
        """Discovered number columns of `rollouts`: `reward` first, then in order of appearance."""
        found = [_number_name(name) for name in self._number_counts()]
        return sorted(found, key=lambda name: name != "reward")

    @cached_property
    def texts(self) -> list[str]:
        """Discovered text columns of `rollouts`."""
        numbers = self._number_counts()
        return [_number_name(name) for name in self._text_counts() if name not in numbers]

    @property
    def mixed(self) -> dict[str, int]:
        """Number fields that are text in some rows, where they count as missing: name → how many."""
        numbers = self._number_counts()
        return {name: count for name, count in self._text_counts().items() if name in numbers}

    def columns(self, table: str = "rollouts") -> list[str]:
        """Column names of `rollouts`, `tasks` or `failures`."""
        described = self._connection.execute(f"DESCRIBE {quoted(table)}").fetchall()
        return [str(name) for name, *_ in described]

    def __len__(self) -> int:
        """Rollouts that count."""
        return self._rows("rollouts") - self._overlay.duplicate_count

    # Reading it

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A connection that reads `rollouts`, `tasks`, `failures` and no other file."""
        return self._connection.cursor()

    def table(
        self, columns: Sequence[str] | None = None, where: str | None = None, order_by: str | None = None
    ) -> pa.Table:
        """Rollouts as an Arrow table: the columns asked for, filtered by an expression, in the order of the file."""
        known = self.columns()
        chosen = "*" if columns is None else ", ".join(quoted(name) for name in columns)
        sql = f"SELECT {chosen} FROM rollouts"
        if where is not None:
            sql += " WHERE " + check_where(self._connection, where, columns=known, table="rollouts")
        if order_by is not None or self._overlay.path is not None or len(self._sources["rollouts"]) > 1:
            sql += f" ORDER BY {order_by or 'row'}"
        return run_select(self._connection, sql, columns=known, told="index")

    def select(self, sql: str) -> pa.Table:
        """One SELECT over `rollouts`, `tasks` and `failures`; a wrong name is told with the nearest right ones."""
        known = list(dict.fromkeys([*self.columns(), *self.columns("tasks"), *self.columns("failures")]))
        return run_select(self._connection, sql, columns=known)

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        """The lines of these rows, in the order asked; neighbouring ones are read together."""
        yield from self._read("rollouts", np.asarray(rows, dtype=np.int64))

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, JsonObject]]:
        """The task rows as sent, for those of `tasks` that the run has a row for."""
        for task, line in self.raw_task_rows(tasks):
            row: JsonObject = msgspec.json.decode(line)
            row[TASK_KEY] = task
            yield task, row

    def raw_task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The same as lines, unread."""
        if not self._rows("tasks"):
            return
        found = self._join(
            tasks, "SELECT t.task, t.source_row FROM tasks t JOIN wanted w ON t.task = w.task "
            "WHERE t.source_row IS NOT NULL ORDER BY t.source_row"
        )  # fmt: skip
        rows = np.asarray(found.column("source_row"), dtype=np.int64)
        yield from zip(found.column("task").to_pylist(), self._read("tasks", rows), strict=True)

    def first_rows(self, tasks: Sequence[int]) -> pa.Table:
        """The first row of each of these tasks (task, row), in the order of the file."""
        return self._join(
            tasks, "SELECT r.task, min(r.row) AS row FROM rollouts r JOIN wanted w ON r.task = w.task GROUP BY 1 ORDER BY 2"
        )

    def inputs_per_task(self) -> pa.Table | None:
        """How often each task stands in NeMo Gym's materialized inputs (task, n); None when there are none."""
        if not self._rows("tasks") or len(self.runs) > 1 or "materialized" not in self._sources["tasks"][0][1].path.name:
            return None
        return fetch(self._connection, "SELECT task, count(*) AS n FROM base_tasks WHERE task IS NOT NULL GROUP BY 1 ORDER BY 1")

    def _join(self, tasks: Sequence[int], sql: str) -> pa.Table:
        """Our own SQL with the distinct `tasks` as the table `wanted`."""
        cursor = self._connection.cursor()
        cursor.register("wanted", pa.table({"task": pa.array(sorted(set(tasks)), pa.int64())}))
        try:
            return fetch(cursor, sql)
        finally:
            cursor.unregister("wanted")

    def _read(self, kind: Kind, rows: np.ndarray) -> Iterator[bytes]:
        if not len(rows):
            return
        sources = [source for _, source in self._sources[kind]]
        for first in range(0, len(rows), 65_536):
            some = rows[first : first + 65_536]
            spans = self._spans(kind, some)
            owner = np.searchsorted([source.first_row for source in sources], some, side="right") - 1
            cuts = np.flatnonzero(np.diff(owner)) + 1
            for piece in np.split(np.arange(len(some)), cuts):
                path = sources[int(owner[piece[0]])].path
                yield from read_spans(path, [spans[int(place)] for place in piece])

    def _spans(self, kind: Kind, rows: np.ndarray) -> list[tuple[int, int]]:
        cursor = self._connection.cursor()
        cursor.register("wanted_rows", pa.table({"row": rows, "place": np.arange(len(rows))}))
        found = cursor.execute(
            f'SELECT b."offset", b.length FROM base_{kind} b JOIN wanted_rows w ON b.row = w.row ORDER BY w.place'
        ).fetchall()
        cursor.unregister("wanted_rows")
        if len(found) != len(rows):
            raise UsageError(f"{len(rows) - len(found)} of the rows asked for are not in the index")
        return found

    # How the tables are made

    def _rows(self, kind: Kind) -> int:
        return sum(source.state.counts("rows") for _, source in self._sources[kind])

    def _folders(self) -> list[Path]:
        return list(dict.fromkeys(source.folder.parent for _, source in self._sources["rollouts"]))

    def _discovered(self, kind: Kind, columns: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for _, source in self._sources[kind]:
            for name, count in source.state.columns(columns).items():
                found[name] = found.get(name, 0) + count
        return found

    def _number_counts(self) -> dict[str, int]:
        return self._discovered("rollouts", "numbers") | {
            name: 0 for name in self._overlay.numbers if name not in self._discovered("rollouts", "numbers")
        }

    def _text_counts(self) -> dict[str, int]:
        return self._discovered("rollouts", "texts") | {
            name: 0 for name in self._overlay.texts if name not in self._discovered("rollouts", "texts")
        }

    def _digest(self) -> str:
        builds = [
            (kind, number, source.state.build)
            for kind, found in self._sources.items()
            for number, source in found
        ]
        return hashlib.sha256(msgspec.json.encode(builds)).hexdigest()[:16]

    def _verdict_of_record(self) -> str | None:
        for manifest in self.manifests:
            if manifest.get("verdict_of_record"):
                return str(manifest["verdict_of_record"])
        return None

    def _base(self, kind: Kind) -> str:
        """All rows of a kind as they stand in the parts."""
        selects = [
            f"SELECT CAST({source.first_row} + row0 + file_row_number AS BIGINT) AS row, {number} AS file_no, "
            f"{literal(str(source.path))} AS file, * EXCLUDE (line, line0, row0, file_row_number), line0 + line AS line FROM read_parquet("
            f"[{', '.join(literal(str((source.folder / part).resolve())) for part in source.state.all_parts())}], union_by_name = true, "
            "file_row_number = true, hive_partitioning = true, hive_types = {'row0': BIGINT, 'line0': BIGINT})"
            for number, source in self._sources[kind]
            if source.state.counts("rows")
        ]
        if not selects:
            types = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}
            fixed = ", ".join(
                f"CAST(NULL AS {types[column]}) AS {quoted(name)}"
                for name, column in (PLACES | COLUMNS[kind]).items()
            )
            return f"SELECT CAST(NULL AS BIGINT) AS row, 0 AS file_no, '' AS file, {fixed} WHERE false"
        return " UNION ALL BY NAME ".join(selects)

    def _create_views(self) -> None:
        self._connection.execute(f"CREATE VIEW rollouts AS {self._rollouts_sql()}")
        self._connection.execute(f"CREATE VIEW tasks AS {self._tasks_sql()}")
        names = ["row", "file", *PLACES, *COLUMNS["failures"]]
        self._connection.execute(
            f"CREATE VIEW failures AS SELECT {', '.join(map(quoted, names))} FROM base_failures"
        )

    def _rollouts_sql(self) -> str:
        overlay: Overlay = self._overlay
        from_rows = self._discovered("rollouts", "numbers")
        numbers, all_texts = self._number_counts(), self._text_counts()
        texts = {name for name in all_texts if name not in numbers}
        columns = ["b.row", "b.file", "b.line", 'b."offset"', "b.length"]
        for name in COLUMNS["rollouts"]:
            columns.append(f"{overlay.fixed(name)} AS {quoted(name)}")
        if "reward" not in numbers:
            columns.append("CAST(NULL AS DOUBLE) AS reward")
        for name in sorted(numbers, key=lambda name: name != "reward"):
            columns.append(f"{overlay.value('n', name, name in from_rows)} AS {quoted(_number_name(name))}")
        for name in all_texts:
            if name in texts:
                is_in_rows = name in self._discovered("rollouts", "texts")
                columns.append(f"{overlay.value('t', name, is_in_rows)} AS {quoted(_number_name(name))}")
        return f"SELECT {', '.join(columns)} FROM base_rollouts b {overlay.join()}"

    def _tasks_sql(self) -> str:
        if not self._rows("tasks") or len(self.runs) > 1:
            return (
                "SELECT task, first(agent ORDER BY row) AS agent, first(prompt_hash ORDER BY row) AS prompt_hash, "
                "CAST(NULL AS BIGINT) AS source_row FROM rollouts GROUP BY task"
            )
        taken = {"task", "agent", "prompt_hash", "source_row"}
        numbers, texts = self._discovered("tasks", "numbers"), self._discovered("tasks", "texts")
        extra = [f"{quoted('n:' + name)} AS {quoted(name)}" for name in numbers if name not in taken]
        extra += [
            f"{quoted('t:' + name)} AS {quoted(name)}"
            for name in texts
            if name not in taken and name not in numbers
        ]
        columns = ", ".join(
            ["coalesce(task, row) AS task", "agent", "prompt_hash", "row AS source_row", *extra]
        )
        return f"SELECT {columns} FROM base_tasks QUALIFY row_number() OVER (PARTITION BY coalesce(task, row) ORDER BY row) = 1"


_RESERVED = frozenset({"row", "file", "file_no", *PLACES, *COLUMNS["rollouts"]})


def _number_name(name: str) -> str:
    """The column of a discovered field: its own name, unless a column of the index is called that."""
    return f"fields.{name}" if name in _RESERVED else name


def _files(files: RunFiles) -> list[tuple[Kind, Path]]:
    found: list[tuple[Kind, Path]] = [("rollouts", files.rollouts)]
    tasks = tasks_file(files)
    if tasks is not None:
        found.append(("tasks", tasks))
    for kind, path in (("failures", files.failures), ("verdicts", files.verdicts)):
        if path.is_file():
            found.append((kind, path))  # type: ignore[arg-type]
    return found
