"""A run as tables: `rollouts`, `tasks`, `failures`, read from the parts of its index, never from the text.

Opening a run brings its index up to date first. What counts (the last of two rows with one key, the chosen verifier's verdict) is
decided here, so that every command sees the same rows.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollforge.adaptive.design import SamplingDesign
from rollforge.conversations.typed_rows import classic_line
from rollforge.errors import IncompleteError, RollforgeError, UsageError
from rollforge.index import parts
from rollforge.index.arrow import arrow_array, floats, ints
from rollforge.index.build import reader_count
from rollforge.index.cache import IndexCache, allow_open_files
from rollforge.index.connection import connect
from rollforge.index.indexed_parts import IndexUpdate, index_update, indexed_parts
from rollforge.index.overlay import Duplicate, find_overlay
from rollforge.index.row_text import RowText
from rollforge.index.run_facts import first_stages, per_run, run_facts, run_numbers, samples_per_task
from rollforge.index.schema import discovered_name, quoted
from rollforge.index.state import BadLineAt, IndexedFiles, State
from rollforge.index.user_sql import TABLES, check_sort, check_where, fetch, run_select
from rollforge.index.views_sql import Views
from rollforge.json_shapes import RowJson
from rollforge.records import TASK_KEY, JsonFields
from rollforge.runtime.on_error import OnError
from rollforge.statistics.stats import Floats, Ints, distinct, first_positions
from rollforge.store import RunFiles
from rollforge.store.find import find_runs
from rollforge.store.reading import read_row

if TYPE_CHECKING:
    import duckdb

NO_METRICS = frozenset({parts.MASKED})
"""Number fields that mark the reward and are not measurements themselves."""


def open_index(
    runs: str | Path | Sequence[str | Path], *, verifier: str | None = None, workers: int | None = None
) -> Index:
    """The run (or several files as one run) as tables; builds or extends outdated indexes.

    Args:
        verifier: whose verdicts count; else the manifest's verdict of record, else the newest of the verifier that gave the
            inline ones and, for rows without one, the newest later one, one with a reward before one without.
        workers: threads that read the text; by default one per core for large files.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"there cannot be {workers} workers", hint="give 1 or more, or leave it out")
    return Index(find_runs(runs), verifier=verifier, workers=workers)


class Index:
    """A run as tables. Close it, or use it in a `with` statement, to release its files."""

    def __init__(
        self, runs: Sequence[RunFiles], *, verifier: str | None = None, workers: int | None = None
    ) -> None:
        self.runs = list(runs)
        self._facts = [run_facts(files) for files in self.runs]
        self._held = ExitStack()
        self._files = IndexedFiles()
        parts_by_run = [indexed_parts(files) for files in self.runs]
        size = sum(one.part.size() for parts in parts_by_run for one in parts if one.kind == "rollouts")
        self.is_small = False
        """Whether SQL may use only little memory and one thread; set it before the first query."""
        self.readers = reader_count(size, workers)
        """Number of threads for work that releases the interpreter lock."""
        allow_open_files(2 * sum(map(len, parts_by_run)))
        with OnError(self.close):
            for number, indexed in enumerate(parts_by_run):
                for kind, part in indexed:
                    cache = IndexCache(part.path, kind, part.index, part.length)
                    held = cache.update(workers)
                    self._held.callback(held.release)
                    self._files.add(kind, number, part.path, cache.folder, held.state)
            of_record = next((facts.verifier for facts in self._facts if facts.verifier), None)
            self._overlay = find_overlay(self._files, run_numbers(self._facts), verifier or of_record)
            self._views = Views(self._files, self._overlay)
            self._text = RowText(self._files)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *failure: Any) -> None:
        is_over = failure[0] is None or issubclass(failure[0], RollforgeError)
        if is_over and "_text" in self.__dict__ and self.doubt() is not None:
            self.discard()
        if "_connection" in self.__dict__:
            self._connection.close()
        self._held.__exit__(*failure)

    def for_thread(self) -> Index:
        """The same rows for another thread, which gets a database connection of its own; close this index after that one."""
        other = copy(self)
        other._held = ExitStack()
        other.__dict__.pop("_connection", None)
        return other

    def close(self) -> None:
        """Release the files; the index itself stays on disk, unless the file is no run."""
        self.__exit__(None, None, None)

    def discard(self) -> None:
        """Delete the index from disk, for a file that turns out not to be a run."""
        for folder in self._files.folders():
            shutil.rmtree(folder, ignore_errors=True)

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """The SQL connection, made on first use, since many commands need none."""
        return connect(self._files, self._overlay, self._views, is_small=self.is_small)

    # What the run holds

    @property
    def digest(self) -> str:
        """A digest that changes whenever a file of the run is reindexed or grows."""
        rows = "-".join(str(self._files.count(kind)) for kind in self._files.by_kind)
        return f"{self._files.digest()}-{rows}"

    def update_since(self, before: Mapping[Path, State]) -> IndexUpdate:
        """What opening did to the index, given its `recorded_states` before; and what it holds."""
        return index_update(", ".join(files.name for files in self.runs), self._files, before)

    @property
    def verifier(self) -> str | None:
        """The verifier whose verdicts count, if one was selected."""
        return self._overlay.verifier

    @property
    def rejects(self) -> list[BadLineAt]:
        """Lines that are not rows, and odd rows that still count (`is_kept`), with their location.

        Those of the rollouts first, then those of the tasks, failures and verdicts.
        """
        return [
            msgspec.structs.replace(bad, file=str(file.path))  # it may have been indexed under another path
            for files in self._files.by_kind.values()
            for file in files
            for bad in file.state.listed()
        ]

    @property
    def rejected_lines(self) -> int:
        """Number of lines in the run's files that are not rows."""
        return sum(self._files.count(kind, "rejected") for kind in self._files.by_kind)

    @property
    def noted_lines(self) -> int:
        """Number of odd rows in the run's files that still count."""
        return sum(self._files.count(kind, "noted") for kind in self._files.by_kind)

    @property
    def duplicates(self) -> list[Duplicate]:
        """Rows overruled by a later one with the same (task, rollout)."""
        return self._overlay.duplicates

    @cached_property
    def has_own_keys(self) -> bool:
        """Whether every rollout had a task and a rollout number in its row; missing numbers are assigned in line order."""
        rollouts = self._files.by_kind["rollouts"]
        if all(file.state.has_own_keys for file in rollouts):
            return True
        keys = parts.rollout_keys(rollouts)
        return not (keys.column("task").null_count or keys.column("rollout").null_count)

    @property
    def duplicate_count(self) -> int:
        """Number of overruled rows; `duplicates` lists the first ones."""
        return self._overlay.duplicate_count

    @property
    def expected(self) -> int | None:
        """Number of rollouts requested; None for files that rollforge did not collect."""
        return sum(per_run(self._facts, "expected")) or None

    @property
    def samples(self) -> int | None:
        """Rollouts requested per task, if uniform; summed over several runs of the same tasks."""
        return samples_per_task(self._facts, has_shifts=bool(self._overlay.shifts))

    @property
    def design(self) -> SamplingDesign | None:
        """Sampling design of an adaptive run; None for a uniform run, or for several runs."""
        return self._facts[0].design if len(self._facts) == 1 else None

    @property
    def designs(self) -> list[SamplingDesign]:
        """Sampling designs of the adaptive runs among those that were opened."""
        return [facts.design for facts in self._facts if facts.design is not None]

    @property
    def first_stage(self) -> str | None:
        """SQL condition for first-stage rollouts, which do not depend on earlier rewards; None if no run is adaptive.

        Of several runs read as one, each has its own first stage; all rollouts of a uniform run are included.
        """
        if self.design is not None:
            return f"rollout < {self.design.first}"
        return first_stages(self._facts, self.rollout_files, self._overlay.shifts)

    @property
    def has_uncorrected_stages(self) -> bool:
        """Whether adaptive runs are pooled whose first-stage rollouts cannot be identified, so that means are biased."""
        return bool(self.designs) and self.first_stage is None

    @property
    def has_failures(self) -> bool:
        """Whether any attempt failed."""
        return self._files.count("failures") > 0

    def failed(self) -> dict[str, int]:
        """Number of rollouts that failed and never finished, by class of the last failure."""
        counts = self._lost("coalesce(class, 'unknown'), count(*)", "GROUP BY 1 ORDER BY 2 DESC, 1")
        return {str(kind): int(count) for kind, count in counts}

    def failed_tasks(self) -> list[int]:
        """Task of each rollout that failed and never finished."""
        return [int(task) for (task,) in self._lost("last.task", "ORDER BY 1")]

    def _lost(self, columns: str, rest: str) -> list[tuple[Any, ...]]:
        if not self.has_failures:
            return []
        # A failure in one file may be a rollout in another: both under the numbers of the whole run.
        number = self._views.task_number("rollouts", "base_rollouts.task")
        rollout = self._views.rollout_number("base_rollouts")
        rows: list[tuple[Any, ...]] = self._connection.execute(
            "WITH last AS (SELECT task, rollout, class FROM failures WHERE task IS NOT NULL QUALIFY "
            "row_number() OVER (PARTITION BY task, rollout ORDER BY row DESC) = 1), "
            f"made AS (SELECT {number} AS task, {rollout} AS rollout FROM base_rollouts) "
            f"SELECT {columns} FROM last ANTI JOIN made ON made.task = last.task "
            f"AND made.rollout IS NOT DISTINCT FROM last.rollout {rest}"
        ).fetchall()
        return rows

    @cached_property
    def _fields(self) -> dict[str, str]:
        return self._views.fields()

    @cached_property
    def numbers(self) -> list[str]:
        """Number columns of `rollouts` that are measurements: `reward` first, then in order of appearance."""
        numbers = self._views.numbers()
        return [column for name, column in self._fields.items() if name in numbers and name not in NO_METRICS]

    @cached_property
    def whole_numbers(self) -> frozenset[str]:
        """Number columns without missing values; empty if later verdicts or duplicates decide which rows count."""
        if not self._is_plain:
            return frozenset()
        rows, counts = self._files.count("rollouts"), self._files.discovered("rollouts", "numbers")
        return frozenset(self._fields[name] for name, count in counts.items() if count == rows)

    @cached_property
    def texts(self) -> list[str]:
        """Discovered text columns of `rollouts`."""
        numbers = {"reward": 0} | self._views.numbers()
        return [column for name, column in self._fields.items() if name not in numbers]

    @cached_property
    def name_by_column(self) -> dict[str, str]:
        """Discovered column → field name in the rows; for example the column `fields.turns` is the field `turns`."""
        return {column: name for name, column in self._fields.items()}

    @property
    def mixed(self) -> dict[str, int]:
        """Number fields with text values in some rows, which count as missing → number of such rows."""
        numbers = self._views.numbers()
        return {name: count for name, count in self._views.texts().items() if name in numbers}

    def is_of_rows(self, name: str) -> bool:
        """Whether the field comes from the rows alone, not from later verdicts."""
        return self._is_plain or name not in {*self._overlay.numbers, *self._overlay.texts}

    def judged_later(self) -> Ints:
        """Rows for which a later verdict counts instead of the inline one."""
        path = self._views.overlay_path()
        if path is None or not self._overlay.has_verdicts:
            return np.zeros(0, dtype=np.int64)
        with parts.damage_reported(path.parent):
            overlay = pq.read_table(path, columns=["row"], filters=[("applies", "=", True)])
        return ints(overlay.column(0))

    def columns(self, table: str = "rollouts") -> list[str]:
        """Column names of `rollouts`, `tasks` or `failures`."""
        return self._views.column_names(table)

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        return {table: self.columns(table) for table in TABLES}

    def __len__(self) -> int:
        """Number of rollouts that count."""
        return self._files.count("rollouts") - self._overlay.duplicate_count

    def doubt(self) -> str | None:
        """A warning if the file may not be a run: rows without any response or reward look like tasks."""
        if not len(self) or self._views.numbers().get("reward") or self._overlay.has_verdicts:
            return None
        if np.nansum(self.floats(["turns"])["turns"]) > 0:
            return None
        return f"none of the {len(self):,} rows has a response or a reward: is this a file of tasks?"

    def refuse_tasks(self) -> None:
        """Raise where no row has a response or a reward; `check` has the same exit code for it."""
        doubt = self.doubt()
        if doubt is not None:
            tasks = shlex.quote(str(self.runs[0].rollouts))
            raise IncompleteError(
                f"{self.runs[0].name}: {doubt}",
                hint=f"collect rollouts for them: rollforge collect -i {tasks} -o RUN -m MODEL --verifier NAME",
            )

    @property
    def scratch(self) -> Path:
        """A temporary folder of the process, on the disk that holds the index."""
        return self._files.folders()[0]

    # Reading it

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A SQL connection with the tables `rollouts`, `tasks` and `failures` and no access to other files."""
        return self._connection.cursor()

    def table(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        *,
        may_code: bool = False,
        flag: str = "--where",
    ) -> pa.Table:
        """Rollouts as an Arrow table: the requested columns, filtered by an expression, in file order.

        With `may_code`, texts may come dictionary-encoded, which takes less time and memory. Errors call the condition `flag`.
        """
        if (
            columns is not None
            and order_by is None
            and (stored := self._as_stored(columns, where)) is not None
        ):
            if may_code:
                stored = {name: (at, _coded(kind)) for name, (at, kind) in stored.items()}
            return parts.read_columns(self._files.by_kind["rollouts"], stored)
        chosen = "*" if columns is None else ", ".join(quoted(name) for name in columns)
        sql = f"SELECT {chosen} FROM rollouts"
        if where is not None:
            sql += f" WHERE {self.checked(where, flag)}"
        if order_by is not None or self._overlay.table is not None or len(self.runs) > 1:
            sql += f" ORDER BY {order_by or 'row'}"
        label = "index" if where is None else f"{flag} {where!r}"
        return run_select(self._connection, sql, columns=self._columns, label=label)

    def floats(self, columns: Sequence[str], where: str | None = None) -> dict[str, Floats]:
        """Number columns as arrays, NaN for missing; read-only."""
        if (stored := self._as_stored(columns, where)) is not None:
            return parts.read_floats(self._files.by_kind["rollouts"], stored)
        table = self.table(columns, where)
        return {name: floats(table.column(name)) for name in columns}

    def _as_stored(
        self, columns: Sequence[str], where: str | None
    ) -> dict[str, tuple[str, pa.DataType]] | None:
        """Names and types of these columns in the parts; None if some of them need SQL."""
        if where is not None or not self._is_plain or not self._stored.keys() >= set(columns):
            return None
        return {name: self._stored[name] for name in columns}

    @property
    def _is_plain(self) -> bool:
        """Whether the rows of the parts are exactly the rows that count, in order."""
        return self._overlay.table is None

    @cached_property
    def _stored(self) -> dict[str, tuple[str, pa.DataType]]:
        return parts.stored_columns(self._fields, self._files.discovered("rollouts", "numbers"))

    def checked(self, where: str, flag: str = "--where") -> str:
        """Check a user's expression over `rollouts` and return it in parentheses; raises unless it is one expression over known
        columns.
        """
        return check_where(self._connection, where, columns=self._columns, table="rollouts", flag=flag)

    def checked_order(self, sort: str) -> str:
        """Check a user's sort order, to which more terms can be appended; raises unless it is a list of terms."""
        return check_sort(self._connection, sort)

    def select(self, sql: str, *, label: str = "query") -> pa.Table:
        """Run one SELECT over `rollouts`, `tasks` and `failures`; error messages call it `label` and suggest similar column
        names.
        """
        return run_select(self._connection, sql, columns=self._columns, label=label)

    def interrupt(self) -> None:
        """Cancel the query that another thread runs on this index; that thread gets an error."""
        if "_connection" in self.__dict__:
            self._connection.interrupt()

    def verdicts_of(self, task: int, rollout: int) -> list[JsonFields]:
        """Later verdicts on one rollout, oldest first: verifier, reward and all other numbers."""
        if not self._files.count("verdicts"):
            return []
        stored: list[JsonFields] = fetch(
            self._connection.cursor(),
            f'SELECT * EXCLUDE (row, first_row, file_no, file, line, "offset", length, task, rollout) FROM base_verdicts '
            f"WHERE task = {int(task)} AND rollout = {int(rollout)} ORDER BY row",
        ).to_pylist()
        return [
            {
                (discovered_name(column) or ("", column))[1]: value
                for column, value in one.items()
                if value is not None
            }
            for one in stored
        ]

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        """Raw lines of these rows, in the given order; typed rollouts are converted to the classic format."""
        lines = self._text.lines("rollouts", np.asarray(rows, dtype=np.int64))
        has_typed = any(file.state.has_typed for file in self._files.by_kind["rollouts"])
        yield from map(classic_line, lines) if has_typed else lines

    def read_piece(self, row: int, start: int, size: int) -> bytes:
        """Part of the line of a row; only that part of a long line is read, if the file allows it."""
        piece = self._text.piece(row, start, size)
        return next(iter(self.read([row])))[start : start + size] if piece is None else piece

    @property
    def rollout_files(self) -> list[Path]:
        """The rollout files: one per run, or one per shard part."""
        return [file.path for file in self._files.by_kind["rollouts"]]

    def file_numbers(self, rows: Ints) -> Ints:
        """Position in `rollout_files` of each row's file."""
        return self._text.file_numbers("rollouts", rows)

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, RowJson]]:
        """The task rows as sent, for those of `tasks` that have one."""
        for task, line in self.raw_task_rows(tasks):
            row = read_row(line)
            row[TASK_KEY] = task
            yield task, row

    def raw_task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Raw lines of the task rows as sent, for those of `tasks` that have one."""
        locations = self.task_locations
        if locations is None:
            return
        stored_tasks, rows = locations.rows(tasks)
        yield from zip(stored_tasks.tolist(), self._text.lines("tasks", rows), strict=True)

    @cached_property
    def task_locations(self) -> parts.TaskLocations | None:
        """Location of each task in the run's tasks files; None without tasks files."""
        if not self._views.has_tasks_file():
            return None
        return parts.task_locations(self._files.by_kind["tasks"], self._overlay.renamed)

    def first_rows(self, tasks: Sequence[int], where: str | None = None) -> pa.Table:
        """(task, first row) of each of these tasks among the rows that an expression selects, in file order."""
        if self._is_plain or where is not None:
            stored_tasks, first = self._first_rows(where)
            wanted = distinct(np.asarray(tasks, dtype=np.int64))
            positions = np.searchsorted(stored_tasks, wanted)
            positions = (
                positions[stored_tasks[np.minimum(positions, len(stored_tasks) - 1)] == wanted]
                if len(stored_tasks)
                else positions[:0]
            )
            positions = positions[np.argsort(first[positions])]
            return pa.table(
                {"task": arrow_array(stored_tasks[positions]), "row": arrow_array(first[positions])}
            )
        return self._join(
            tasks,
            "SELECT r.task, min(r.row) AS row FROM rollouts r JOIN wanted w ON r.task = w.task GROUP BY 1 ORDER BY 2",
        )

    def _first_rows(self, where: str | None) -> tuple[Ints, Ints]:
        """Task numbers, ascending, and the first row of each; cached."""
        if where not in self._firsts:
            if where is None:
                self._firsts[where] = first_positions(ints(self.table(["task"]).column(0)))
            else:
                rows = self.table(["task", "row"], where, order_by="row")
                tasks, positions = first_positions(ints(rows.column("task")))
                self._firsts[where] = tasks, ints(rows.column("row"))[positions]
        return self._firsts[where]

    @cached_property
    def _firsts(self) -> dict[str | None, tuple[Ints, Ints]]:
        return {}

    def inputs_per_task(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Tasks of NeMo Gym's materialized inputs with the count of each; None without such a file."""
        locations = self.task_locations
        if locations is None or not all(
            file.path == self.runs[file.file_no].materialized_inputs for file in self._files.by_kind["tasks"]
        ):
            return None
        return locations.tasks[locations.named > 0], locations.named[locations.named > 0]

    def _join(self, tasks: Sequence[int], sql: str) -> pa.Table:
        """Run our own SQL with the distinct `tasks` as the table `wanted`."""
        cursor = self._connection.cursor()
        cursor.register(
            "wanted", pa.table({"task": arrow_array(distinct(np.asarray(tasks, dtype=np.int64)))})
        )
        try:
            return fetch(cursor, sql)
        finally:
            cursor.unregister("wanted")


def _coded(kind: pa.DataType) -> pa.DataType:
    return parts.CODED if pa.types.is_string(kind) else kind
